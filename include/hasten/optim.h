// The public headers of room optim: optimizers, learning-rate schedules and the handles of prepare. A program may include single ones.
#pragma once

#include "hasten/optim/apex_adam.h"
#include "hasten/optim/apex_sgd.h"
#include "hasten/optim/deepspeed.h"
#include "hasten/optim/fastai.h"
#include "hasten/optim/lamb.h"
#include "hasten/optim/larc.h"
#include "hasten/optim/novograd.h"
#include "hasten/optim/prepared/low_weights.h"
#include "hasten/optim/prepared/prepared_optimizer.h"
#include "hasten/optim/prepared/prepared_scheduler.h"
#include "hasten/optim/schedulers/deepspeed.h"
#include "hasten/optim/schedulers/schedulers.h"
#include "hasten/optim/schedulers/torch_scheduler.h"
#include "hasten/optim/steps/optimizer_step.h"
