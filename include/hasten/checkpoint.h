// The public headers of room checkpoint: a run's state in folders, and weights in Python's forms. A program may include single ones.
#pragma once

#include "hasten/checkpoint/checkpoints.h"
#include "hasten/checkpoint/optimizer_state.h"
#include "hasten/checkpoint/options.h"
#include "hasten/checkpoint/project_save.h"
#include "hasten/checkpoint/state_dict.h"
#include "hasten/checkpoint/weights.h"
