// Chunks: a count cut into pieces of nearly one size, none above a limit.
//
// The pieces but the last are multiples of a cache line's 64, so that ranks writing beside each other do not
// share lines.
#pragma once

#include <algorithm>
#include <cstdint>

namespace hasten::comm::shared {

class Chunks {
 public:
  static constexpr int64_t kAlign = 64;

  /// `at_most` is a multiple of kAlign.
  Chunks(int64_t total, int64_t at_most) : total_(total) {
    const int64_t least = (total + at_most - 1) / at_most;
    if (least > 0) most_ = std::min(at_most, round_up((total + least - 1) / least));
  }

  int64_t count() const { return (total_ + most_ - 1) / most_; }
  int64_t most() const { return most_; }
  int64_t begin(int64_t i) const { return i * most_; }
  int64_t size(int64_t i) const { return std::clamp(total_ - begin(i), int64_t{0}, most_); }

 private:
  static int64_t round_up(int64_t value) { return (value + kAlign - 1) / kAlign * kAlign; }

  int64_t total_;
  int64_t most_ = kAlign;
};

}  // namespace hasten::comm::shared
