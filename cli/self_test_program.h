// The program beside this command that is linked to libtorch: `hasten test` and `hasten plan --measure` start it.
#pragma once

#include <string>

namespace hasten::cli {

/// Returns its path. Throws: UsageError naming `command` if it was not installed.
std::string self_test_program(const std::string& command);

}  // namespace hasten::cli
