// What most training programs need: `#include <hasten/hasten.h>`. Each room's headers can be included alone,
// and the datasets beyond tensors and IDX files, and what puts datasets together, only so (hasten/data/csv.h,
// concat.h, image_folder.h, map.h, npy.h, safetensors.h, subset.h, text_lines.h).
#pragma once

#include "hasten/accelerator.h"
#include "hasten/core/error.h"
#include "hasten/core/log.h"
#include "hasten/core/version.h"
#include "hasten/data/batch_sampler.h"
#include "hasten/data/counted_metrics.h"
#include "hasten/data/distributed_dl.h"
#include "hasten/data/distributed_sampler.h"
#include "hasten/data/idx.h"
#include "hasten/data/loader.h"
#include "hasten/data/tensor_dataset.h"
#include "hasten/data/worker_random.h"
#include "hasten/optim/schedulers.h"
#include "hasten/parallel/channels_last.h"
#include "hasten/parallel/local_sgd.h"
#include "hasten/parallel/power_sgd.h"
#include "hasten/parallel/sync_batch_norm.h"
#include "hasten/state/batch_size.h"
#include "hasten/state/stop.h"
#include "hasten/tracking/progress.h"
