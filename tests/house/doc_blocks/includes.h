// Headers of the pages' blocks. Those that a block includes itself are added by doc_blocks.py.
#include <hasten/checkpoint.h>
#include <hasten/comm.h>
#include <hasten/data.h>
#include <hasten/hasten.h>
#include <hasten/models.h>
#include <hasten/offload.h>
#include <hasten/optim.h>
#include <hasten/parallel.h>
#include <hasten/precision.h>
#include <hasten/tracking.h>
#include <torch/script.h>
#include <torch/torch.h>

#include <fstream>
#include <iostream>
#include <nlohmann/json.hpp>

#include "hasten/comm/mesh/device_mesh.h"
#include "hasten/flight/recorder.h"
#include "hasten/learner/callbacks.h"
#include "hasten/learner/learner.h"
#include "hasten/learner/metrics.h"
#include "hasten/plan/predict.h"
#include "hasten/plan/search.h"
#include "hasten/rpc/rpc.h"
