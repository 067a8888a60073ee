// The public headers of room models: models of transformers' form, and generation. A program may include single ones.
#pragma once

#include "hasten/models/awd_lstm.h"
#include "hasten/models/bert.h"
#include "hasten/models/causal_lm.h"
#include "hasten/models/generate.h"
#include "hasten/models/gpt2.h"
#include "hasten/models/gptj.h"
#include "hasten/models/kv_cache.h"
#include "hasten/models/llama.h"
#include "hasten/models/resnet.h"
#include "hasten/models/t5.h"
#include "hasten/models/train_steps.h"
