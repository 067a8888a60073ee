// Numbers that users and clusters write.
#pragma once

#include <charconv>
#include <optional>
#include <string_view>

namespace hasten::launcher {

/// Returns the number that the whole word is; nothing if it is none or does not fit.
inline std::optional<int> whole_number(std::string_view word) {
  int number = 0;
  const auto [end, error] = std::from_chars(word.data(), word.data() + word.size(), number);
  if (error != std::errc() || end != word.data() + word.size()) return std::nullopt;
  return number;
}

}  // namespace hasten::launcher
