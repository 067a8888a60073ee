// A number and the noun behind it, for messages: "1 rank", "2 ranks", "3 batches".
#pragma once

#include <string>
#include <string_view>

#include "hasten/core/text.h"

namespace hasten {

/// Returns the plural of an English noun by its end: ranks, processes, batches, entries.
std::string plural_of(std::string_view noun);

/// Returns the number and the noun, which is `plural` unless the number is 1. Without a plural, its end follows the
/// noun's. The number may be a text already ("1,024").
template <class Number>
std::string count_text(const Number& number, std::string_view noun, std::string_view plural = {}) {
  const std::string words = text(number);
  if (words == "1") return text(words, ' ', noun);
  return text(words, ' ', plural.empty() ? plural_of(noun) : std::string(plural));
}

}  // namespace hasten
