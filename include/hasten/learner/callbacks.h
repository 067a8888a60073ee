// All callbacks of the room.
#pragma once

#include "hasten/learner/callbacks/lr_finder.h"
#include "hasten/learner/callbacks/mix.h"
#include "hasten/learner/callbacks/precision.h"
#include "hasten/learner/callbacks/predictions.h"
#include "hasten/learner/callbacks/progress.h"
#include "hasten/learner/callbacks/rnn.h"
#include "hasten/learner/callbacks/tracker.h"
#include "hasten/learner/callbacks/tracking.h"
#include "hasten/learner/callbacks/training.h"
