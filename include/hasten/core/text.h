// Building messages from values: `text(parts...)`, `join`, and "did you mean".
//
// Messages are put together with the stream operators that every type already has. Not every C++20 standard library has
// std::format, and the distribution's fmt cannot be compiled beside libtorch's.
#pragma once

#include <locale>
#include <sstream>
#include <string>
#include <string_view>
#include <vector>

namespace hasten {

/// Returns all parts, one after the other, as `operator<<` prints them in the classic locale (bool as true/false).
/// Throws: only what an operator<< throws.
template <class... Parts>
std::string text(const Parts&... parts) {
  std::ostringstream out;
  out.imbue(std::locale::classic());
  out << std::boolalpha;
  (out << ... << parts);
  return std::move(out).str();
}

/// Returns the elements of `range` separated by `separator`, in the classic locale: "1, 2, 3".
template <class Range>
std::string join(const Range& range, std::string_view separator = ", ") {
  std::ostringstream out;
  out.imbue(std::locale::classic());
  bool first = true;
  for (const auto& element : range) {
    if (!first) out << separator;
    first = false;
    out << element;
  }
  return std::move(out).str();
}

/// Returns the candidate that a misspelt `word` most likely meant, or "" when none is near enough. Near is a
/// Damerau-Levenshtein distance of at most a third of the word's length, at least 1 (Ninja's habit).
std::string closest(std::string_view word, const std::vector<std::string>& candidates);

/// ", did you mean 'x'?" for the closest candidate, "" when none is near: append it to an error.
std::string did_you_mean(std::string_view word, const std::vector<std::string>& candidates);

}  // namespace hasten
