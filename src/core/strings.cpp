// See strings.h.
#include "hasten/core/strings.h"

#include <algorithm>

namespace hasten::core {

std::string_view trim(std::string_view text, std::string_view blanks) {
  const size_t begin = text.find_first_not_of(blanks);
  return begin == std::string_view::npos ? "" : text.substr(begin, text.find_last_not_of(blanks) - begin + 1);
}

std::string lower(std::string_view text) {
  std::string out(text);
  for (char& c : out) c = c >= 'A' && c <= 'Z' ? static_cast<char>(c - 'A' + 'a') : c;
  return out;
}

std::string upper(std::string_view text) {
  std::string out(text);
  for (char& c : out) c = c >= 'a' && c <= 'z' ? static_cast<char>(c - 'a' + 'A') : c;
  return out;
}

std::vector<std::string> split(std::string_view text, char separator) {
  std::vector<std::string> parts;
  while (!text.empty()) {
    const size_t end = std::min(text.find(separator), text.size());
    parts.emplace_back(text.substr(0, end));
    text.remove_prefix(std::min(end + 1, text.size()));
  }
  return parts;
}

std::optional<bool> parse_flag(std::string_view text) {
  const std::string word = lower(text);
  for (const char* yes : {"1", "true", "yes", "on", "y", "t"}) {
    if (word == yes) return true;
  }
  for (const char* no : {"0", "false", "no", "off", "n", "f"}) {
    if (word == no) return false;
  }
  return std::nullopt;
}

}  // namespace hasten::core
