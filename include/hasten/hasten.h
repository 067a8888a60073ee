// The headers that most training programs need: `#include <hasten/hasten.h>`. Each room's headers can be included
// alone. Only so come the datasets beyond tensors and IDX files, and their combinators (hasten/data/csv.h, concat.h,
// image_folder.h, map.h, npy.h, safetensors.h, subset.h, text_lines.h).
#pragma once

#include "hasten/accelerator.h"
#include "hasten/core/error.h"
#include "hasten/core/log.h"
#include "hasten/core/version.h"
#include "hasten/data/dataset/idx.h"
#include "hasten/data/dataset/tensor_dataset.h"
#include "hasten/data/loader/distributed_dl.h"
#include "hasten/data/loader/loader.h"
#include "hasten/data/metrics/counted_metrics.h"
#include "hasten/data/sampler/batch_sampler.h"
#include "hasten/data/sampler/distributed_sampler.h"
#include "hasten/data/sampler/worker_random.h"
#include "hasten/memory/batch_size.h"
#include "hasten/optim/schedulers/schedulers.h"
#include "hasten/parallel/compress/power_sgd.h"
#include "hasten/parallel/local_sgd/local_sgd.h"
#include "hasten/parallel/model/channels_last.h"
#include "hasten/parallel/norm/sync_batch_norm.h"
#include "hasten/process/stop.h"
#include "hasten/tracking/run/progress.h"
