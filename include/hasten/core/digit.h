// Decimal digits, whatever the locale.
#pragma once

namespace hasten::core {

constexpr bool is_digit(char c) noexcept {
  return c >= '0' && c <= '9';
}

}  // namespace hasten::core
