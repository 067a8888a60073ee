// The meaning of plain scalars in YAML 1.1, the form of Accelerate's files. yaml-cpp leaves it to its user. See
// config_syntax.h.
#include <algorithm>
#include <cerrno>
#include <cmath>
#include <cstdlib>
#include <regex>

#include "hasten/core/number.h"
#include "hasten/core/strings.h"
#include "launch/config/config_syntax.h"

namespace hasten::launcher {
namespace {

using core::Value;

bool is_one_of(const std::string& text, std::initializer_list<const char*> words) {
  return std::find(words.begin(), words.end(), text) != words.end();
}

// Base 60, as 12:30:45 is in YAML 1.1.
double sexagesimal(const std::string& digits) {
  double value = 0;
  size_t begin = 0;
  while (begin <= digits.size()) {
    const size_t end = std::min(digits.find(':', begin), digits.size());
    value = value * 60 + core::real_number(digits.substr(begin, end - begin)).value_or(0);
    begin = end + 1;
  }
  return value;
}

// Text where the number has more than 64 bits.
Value integer(const std::string& text, std::string digits) {
  errno = 0;
  const bool negative = digits[0] == '-';
  if (digits[0] == '-' || digits[0] == '+') digits.erase(0, 1);
  int64_t value = 0;
  if (digits.starts_with("0b")) {
    value = std::strtoll(digits.c_str() + 2, nullptr, 2);
  } else if (digits.find(':') != std::string::npos) {
    value = static_cast<int64_t>(sexagesimal(digits));
  } else {
    value = std::strtoll(digits.c_str(), nullptr, 0);  // 0x and 0 (octal) as in C
  }
  if (errno == ERANGE) return text;
  return negative ? -value : value;
}

Value real(const std::string& digits) {
  const bool negative = digits[0] == '-';
  const std::string magnitude = digits.substr(digits[0] == '-' || digits[0] == '+');
  double value = 0;
  if (magnitude == ".nan") {
    value = std::nan("");
  } else if (magnitude == ".inf") {
    value = INFINITY;
  } else {
    value = sexagesimal(magnitude);
  }
  return negative ? -value : value;
}

}  // namespace

Value plain_scalar(const std::string& text) {
  static const std::regex integers(
      "[-+]?0b[01_]+|[-+]?0[0-7_]+|[-+]?(0|[1-9][0-9_]*)|[-+]?0x[0-9a-fA-F_]+|[-+]?[1-9][0-9_]*(:[0-5]?[0-9])"
      "+");
  static const std::regex reals(
      "[-+]?[0-9][0-9_]*\\.[0-9_]*([eE][-+][0-9]+)?|\\.[0-9][0-9_]*([eE][-+][0-9]+)?|"
      "[-+]?[0-9][0-9_]*(:[0-5]?[0-9])+\\.[0-9_]*|[-+]?\\.(inf|Inf|INF)|\\.(nan|NaN|NAN)");
  if (is_one_of(text, {"", "~", "null", "Null", "NULL"})) return {};
  if (is_one_of(text, {"yes", "Yes", "YES", "true", "True", "TRUE", "on", "On", "ON"})) return true;
  if (is_one_of(text, {"no", "No", "NO", "false", "False", "FALSE", "off", "Off", "OFF"})) return false;
  const char first = text[0];
  if (first != '-' && first != '+' && first != '.' && (first < '0' || first > '9')) return text;
  std::string digits = core::lower(text);
  std::erase(digits, '_');
  if (std::regex_match(text, integers)) return integer(text, digits);
  if (std::regex_match(text, reals)) return real(digits);
  return text;
}

bool is_timestamp(const std::string& text) {
  static const std::regex form(
      "[0-9]{4}-[0-9]{2}-[0-9]{2}|"
      "[0-9]{4}-[0-9]{1,2}-[0-9]{1,2}([Tt]|[ \\t]+)[0-9]{1,2}:[0-9]{2}:[0-9]{2}(\\.[0-9]*)?"
      "([ \\t]*(Z|[-+][0-9]{1,2}(:[0-9]{2})?))?");
  return text.size() >= 10 && text[4] == '-' && std::regex_match(text, form);
}

}  // namespace hasten::launcher
