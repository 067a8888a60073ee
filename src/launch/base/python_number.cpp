// Python's layout of the shortest digits that read back as the same number; see python_number.h.
#include "launch/base/python_number.h"

#include <charconv>
#include <cmath>
#include <cstdlib>

namespace hasten::launcher {

std::string python_repr(double number) {
  if (std::isnan(number)) return "nan";
  if (std::isinf(number)) return number < 0 ? "-inf" : "inf";
  const bool small_or_large = number != 0 && (std::abs(number) < 1e-4 || std::abs(number) >= 1e16);
  char digits[512];
  const auto format = small_or_large ? std::chars_format::scientific : std::chars_format::fixed;
  const auto end = std::to_chars(digits, digits + sizeof digits, number, format).ptr;
  std::string repr(digits, end);
  if (!small_or_large && repr.find('.') == std::string::npos) repr += ".0";
  return repr;
}

}  // namespace hasten::launcher
