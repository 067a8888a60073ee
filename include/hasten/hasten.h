// All that a training program needs: `#include <hasten/hasten.h>`. Each room's headers can be included alone.
#pragma once

#include "hasten/accelerator.h"
#include "hasten/core/error.h"
#include "hasten/core/log.h"
#include "hasten/core/version.h"
#include "hasten/data/batch_sampler.h"
#include "hasten/data/distributed_dl.h"
#include "hasten/data/distributed_sampler.h"
#include "hasten/data/idx.h"
#include "hasten/data/loader.h"
#include "hasten/data/worker_random.h"
#include "hasten/optim/schedulers.h"
#include "hasten/parallel/sync_batch_norm.h"
#include "hasten/tracking/progress.h"
