// The public headers of room precision: autocast, gradient scaling, fp8, and Apex's levels. A program may include single ones.
#pragma once

#include "hasten/precision/amp.h"
#include "hasten/precision/autocast.h"
#include "hasten/precision/convert.h"
#include "hasten/precision/fp16_optimizer.h"
#include "hasten/precision/fp8.h"
#include "hasten/precision/grad_scaler.h"
#include "hasten/precision/living_casts.h"
#include "hasten/precision/options.h"
#include "hasten/precision/policy.h"
