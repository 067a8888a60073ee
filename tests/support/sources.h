// Where the tests' recorded files lie, whatever folder a test program runs in.
#pragma once

#include <filesystem>

namespace hasten::testing {

/// Returns the folder tests/ of the sources. `__FILE__` is no path to rely on: with ccache's base folder it is a
/// relative one.
std::filesystem::path tests_folder();

}  // namespace hasten::testing
