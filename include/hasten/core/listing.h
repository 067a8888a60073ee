// Lists of names in messages, of bounded length: a model has hundreds of modules, a folder hundreds of files.
#pragma once

#include <algorithm>
#include <string>
#include <vector>

#include "hasten/core/text.h"

namespace hasten::core {

/// Returns "a, b, c" of the names, "a, b and 12 more" of more than `most`, "nothing" of none.
inline std::string listing(const std::vector<std::string>& names, size_t most = 12) {
  if (names.empty()) return "nothing";
  if (names.size() <= most) return join(names);
  const std::vector<std::string> shown(names.begin(), names.begin() + static_cast<std::ptrdiff_t>(most));
  return text(join(shown), " and ", names.size() - most, " more");
}

}  // namespace hasten::core
