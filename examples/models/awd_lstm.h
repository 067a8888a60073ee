// The AWD-LSTM of the library (hasten/models/awd_lstm.h) under the examples' names.
#pragma once

#include <hasten/models/awd_lstm.h>

namespace models {

using hasten::models::awd_groups;
using hasten::models::AwdClassifier;
using hasten::models::AwdLanguageModel;
using hasten::models::AwdLstmOptions;

}  // namespace models
