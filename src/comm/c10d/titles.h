// Titles of operations in libtorch's profiles, which programs look for by name.
#pragma once

#include <string_view>

#include <torch/csrc/distributed/c10d/Work.hpp>

namespace hasten::comm {

/// Returns "gloo:all_reduce" under the name gloo, "hasten:all_reduce" under any other; it lasts as long as the process.
/// nullptr for operations that are not recorded.
const char* title_of(c10d::OpType type, std::string_view backend_name);

}  // namespace hasten::comm
