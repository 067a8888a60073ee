// All learning-rate schedulers at once; docs/schedulers.md lists them.
#pragma once

#include "hasten/optim/schedulers/composed.h"
#include "hasten/optim/schedulers/cosine.h"
#include "hasten/optim/schedulers/cyclic.h"
#include "hasten/optim/schedulers/decay.h"
#include "hasten/optim/schedulers/lambda.h"
#include "hasten/optim/schedulers/one_cycle.h"
#include "hasten/optim/schedulers/plateau.h"
#include "hasten/optim/schedulers/scale_lr.h"
#include "hasten/optim/schedulers/warmup.h"
