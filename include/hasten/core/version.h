// hasten's own version, from the one place that states it (project() in CMakeLists.txt).
#pragma once

namespace hasten {

/// "0.1.0": semantic versioning; before 1.0 a minor release may change behaviour (described in CHANGELOG.md).
const char* version() noexcept;

}  // namespace hasten
