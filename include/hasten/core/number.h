// Numbers in texts that programs read: files, keys, messages between processes, options.
//
// A program may set its user's locale, with groups of digits and a decimal comma. The functions here read and write
// what the classic locale has, whatever that is. strtod, std::stod and printf's %f follow the program's locale.
#pragma once

#include <charconv>
#include <optional>
#include <string>
#include <string_view>
#include <type_traits>

namespace hasten::core {

/// Returns the number that the whole text is: decimal digits, a "+" or "-" before, for floats a point and an exponent,
/// "inf" and "nan". Nothing if it is none, or an integer that does not fit. A float beyond the range is infinite, or 0.
std::optional<double> real_number(std::string_view text);

/// Returns the number of a text that Python's float() takes: blanks around it, underscores between digits.
std::optional<double> python_number(std::string_view text);

/// Does the same as real_number for an integer of type T in `base`.
template <class T>
std::optional<T> whole_number(std::string_view text, int base = 10) {
  static_assert(std::is_integral_v<T>);
  if (text.starts_with('+') && text.size() > 1 && text[1] != '-') text.remove_prefix(1);
  T number = 0;
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), number, base);
  if (error != std::errc() || end != text.data() + text.size() || text.empty()) return std::nullopt;
  return number;
}

/// Returns `number` with `digits` places behind the point, as printf's "%.*f" writes it: "1.50", "inf", "nan".
std::string fixed_text(double number, int digits);

/// Returns `number` with `digits` significant ones, as printf's "%.*g" writes it: "0.001", "1e-05".
std::string general_text(double number, int digits);

}  // namespace hasten::core
