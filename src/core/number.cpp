// Numbers by the classic locale's rules; see number.h.
#include "hasten/core/number.h"

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <limits>

#include "hasten/core/digit.h"
#include "hasten/core/strings.h"

namespace hasten::core {
namespace {

// Tells an overflow from an underflow, which from_chars reports alike: the decimal exponent of the first digit that is
// not 0.
bool is_large(std::string_view digits) {
  const size_t exponent_at = digits.find_first_of("eE");
  const std::string_view mantissa = digits.substr(0, exponent_at);
  const size_t point = std::min(mantissa.find('.'), mantissa.size()), first = mantissa.find_first_of("123456789");
  if (first == std::string_view::npos) return false;
  const auto place = static_cast<int64_t>(point) - static_cast<int64_t>(first);
  int64_t exponent = 0;
  if (exponent_at != std::string_view::npos) {
    const std::string_view words = digits.substr(exponent_at + 1);
    const auto read = whole_number<int64_t>(words);
    exponent = read ? *read : words.starts_with('-') ? INT32_MIN : INT32_MAX;
  }
  return place + exponent > 0;
}

std::string written(double number, std::chars_format format, int digits) {
  char text[512];  // 309 digits before the point, and at most 100 behind
  const auto result = std::to_chars(text, text + sizeof text, number, format, digits);
  return result.ec == std::errc() ? std::string(text, result.ptr) : "";
}

}  // namespace

std::optional<double> real_number(std::string_view text) {
  if (text.starts_with('+') && text.size() > 1 && text[1] != '-') text.remove_prefix(1);
  if (text.find('(') != std::string_view::npos) return std::nullopt;  // nan(…)
  double number = 0;
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), number);
  if (end != text.data() + text.size() || text.empty()) return std::nullopt;
  if (error == std::errc()) return number;
  if (error != std::errc::result_out_of_range) return std::nullopt;
  const bool negative = text.starts_with('-');
  const double size = is_large(text.substr(negative)) ? std::numeric_limits<double>::infinity() : 0.0;
  return negative ? -size : size;
}

std::optional<double> python_number(std::string_view text) {
  text = trim(text);
  if (text.empty()) return std::nullopt;
  std::string digits;
  for (size_t i = 0; i < text.size(); ++i) {
    if (text[i] != '_') {
      digits += text[i];
    } else if (i == 0 || i + 1 == text.size() || !is_digit(text[i - 1]) || !is_digit(text[i + 1])) {
      return std::nullopt;
    }
  }
  return real_number(digits);
}

std::string fixed_text(double number, int digits) {
  return written(number, std::chars_format::fixed, digits);
}

std::string general_text(double number, int digits) {
  return written(number, std::chars_format::general, digits);
}

}  // namespace hasten::core
