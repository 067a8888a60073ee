// ExactSum: a sum of doubles without rounding, so that its order and its parts do not matter.
//
// A fixed-point number wide enough for every double (Kulisch's accumulator: "Computer Arithmetic and Validity", 2008).
// Its limbs of 32 bits are held in 64. So an all-reduce of integers adds up the limbs of many sums.
#pragma once

#include <array>
#include <cstdint>

namespace hasten::data::detail {

class ExactSum {
 public:
  /// Limbs of weight 2^(32 i - kLowestBit), then the numbers of NaNs, infinities and negative infinities.
  static constexpr int kLowestBit = 1074, kNumLimbs = 68, kNumWords = kNumLimbs + 3;
  using Words = std::array<int64_t, kNumWords>;

  void add(double value);
  /// Returns the words to add up over the ranks: the sum of words is the words of the sum, for up to 2^30 ranks.
  Words words() const;
  static ExactSum of(const Words& words);
  /// Rounded to the nearest double, once.
  double value() const;

 private:
  void carry();

  Words words_ = {};
  int64_t pending_ = 0;  // additions since limbs were last brought below 2^32
};

}  // namespace hasten::data::detail
