// The headers that most training programs need: `#include <hasten/hasten.h>`. Not included: the other datasets and
// combinators (data.h). Nor is what comm.h, checkpoint.h, learner/, models.h, offload.h, optim.h, parallel.h,
// precision.h, rpc/ and tracking.h give beyond it.
#pragma once

#include "hasten/accelerator.h"
#include "hasten/core/error.h"
#include "hasten/core/log.h"
#include "hasten/core/version.h"
#include "hasten/data/dataset/idx.h"
#include "hasten/data/dataset/map.h"
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
#include "hasten/plugins/megatron_data.h"
#include "hasten/process/stop.h"
#include "hasten/settings/megatron_lm_plugin.h"
#include "hasten/tracking/run/progress.h"
