// The public headers of room offload: models that are built empty, loaded from files, placed and streamed. A program may include single ones.
#pragma once

#include "hasten/offload/hooks/cpu_offload_hook.h"
#include "hasten/offload/hooks/hook_site.h"
#include "hasten/offload/hooks/layerwise_casting.h"
#include "hasten/offload/hooks/model_hook.h"
#include "hasten/offload/load/dispatch.h"
#include "hasten/offload/load/empty.h"
#include "hasten/offload/load/load.h"
#include "hasten/offload/load/placement.h"
#include "hasten/offload/map/tree_of.h"
#include "hasten/offload/units/weight_streamer.h"
