// The refusal of a timeout that is no time: one form of words for all options that have one.
#pragma once

#include <chrono>
#include <string_view>
#include <type_traits>

#include "hasten/core/error.h"

namespace hasten {

/// Words about a timeout: "timeout", "the time that ranks wait for each other", "30 minutes".
struct TimeoutWords {
  std::string_view name;
  std::string_view meaning;
  std::string_view fallback;  ///< the value if it is left out
};

/// Throws: UsageError with the value in its unit (ms or s) unless it is more than 0.
template <class Rep, class Period>
void require_timeout(const Origin& origin, std::chrono::duration<Rep, Period> value, const TimeoutWords& words) {
  if (value.count() > 0) return;
  constexpr bool kIsMs = std::is_same_v<Period, std::milli>;
  static_assert(kIsMs || std::is_same_v<Period, std::ratio<1>>);
  throw UsageError(origin, words.name, " is ", value.count(), kIsMs ? " ms" : " s", "; expected ", words.meaning,
                   ", more than 0. Leave it out for ", words.fallback, '.');
}

/// As above, for the time that ranks wait for each other: 30 minutes by default.
inline void require_timeout(const Origin& origin, std::chrono::milliseconds value) {
  require_timeout(origin, value, {"timeout", "the time that ranks wait for each other", "30 minutes"});
}

}  // namespace hasten
