// All learning-rate schedulers at once; docs/schedulers.md lists them.
#pragma once

#include "hasten/optim/composed.h"
#include "hasten/optim/cosine.h"
#include "hasten/optim/cyclic.h"
#include "hasten/optim/decay.h"
#include "hasten/optim/lambda.h"
#include "hasten/optim/one_cycle.h"
#include "hasten/optim/plateau.h"
#include "hasten/optim/scale_lr.h"
#include "hasten/optim/warmup.h"
