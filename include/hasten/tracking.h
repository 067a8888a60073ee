// The public headers of room tracking: trackers, the board and the progress bar. A program may include single ones.
#pragma once

#include "hasten/tracking/board/board.h"
#include "hasten/tracking/follower/follower_options.h"
#include "hasten/tracking/follower/registry.h"
#include "hasten/tracking/follower/tracking_options.h"
#include "hasten/tracking/journal/tracker.h"
#include "hasten/tracking/journal/value.h"
#include "hasten/tracking/run/each.h"
#include "hasten/tracking/run/progress.h"
#include "hasten/tracking/run/trackers.h"
