// RankPlace: words for a rank's place in a layout, "rank 13 (pp 1, dp 0, tp 5)", in errors of groups along its axes.
//
// A group along an axis numbers its ranks from 0, so that its errors would name a rank of that axis alone.
#pragma once

#include <string>
#include <utility>

#include "hasten/core/error.h"

namespace hasten::parallel {

struct RankPlace {
  /// plan::coordinate_text of the rank; empty: errors stay as they are.
  std::string words = {};
  /// The number of the rank in the run.
  int rank = 0;
};

/// Throws the error again, with the place in front of its words; as it is if it has one already, or without words.
/// Throws: CommError.
[[noreturn]] void throw_at(const RankPlace& place, const CommError& error);

/// Returns fn(); a CommError of it is thrown by throw_at. Throws: the exceptions of `fn`.
template <class Fn>
decltype(auto) at_place(const RankPlace& place, Fn&& fn) {
  try {
    return std::forward<Fn>(fn)();
  } catch (const CommError& error) {
    throw_at(place, error);
  }
}

}  // namespace hasten::parallel
