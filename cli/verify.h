// `hasten verify`: the command and its options.
#pragma once

#include <string>
#include <vector>

#include "hasten/launch/options/option_table.h"

namespace hasten::cli {

/// `hasten verify PROGRAM`; returns the exit code. Throws: UsageError for what the user must mend.
int verify_command(const std::vector<std::string>& words);

const std::vector<launcher::OptionGroup>& verify_options();

}  // namespace hasten::cli
