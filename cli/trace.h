// `hasten trace [RUN]`, with its options.
#pragma once

#include <string>
#include <vector>

#include "hasten/launch/options/option_table.h"

namespace hasten::cli {

int trace(const std::vector<std::string>& words);

const std::vector<launcher::OptionGroup>& trace_options();

}  // namespace hasten::cli
