// What the golden tests of the launcher share.
#pragma once

#include <nlohmann/json.hpp>
#include <string>
#include <utility>

#include "support/golden.h"

namespace hasten::launcher {

inline std::string replace_all(std::string text, const std::string& from, const std::string& to) {
  for (size_t at = text.find(from); at != std::string::npos; at = text.find(from, at + to.size())) {
    text.replace(at, from.size(), to);
  }
  return text;
}

/// The rule of docs/differences.md where what the peer lets pass is refused.
inline nlohmann::json refused(const hasten::testing::GoldenCase&) {
  return hasten::testing::golden_error("UsageError");
}

}  // namespace hasten::launcher
