// Long addition, and one rounding at the end; see exact_sum.h.
#include "data/metrics/exact_sum.h"

#include <cmath>
#include <limits>

namespace hasten::data::detail {
namespace {

constexpr int kNans = ExactSum::kNumLimbs, kInfinities = kNans + 1, kNegativeInfinities = kNans + 2;
constexpr int64_t kBase = int64_t{1} << 32;

__extension__ using Wide = unsigned __int128;

}  // namespace

void ExactSum::add(double value) {
  if (!std::isfinite(value)) {
    ++words_[std::isnan(value) ? kNans : value > 0 ? kInfinities : kNegativeInfinities];
    return;
  }
  int exponent = 0;
  const auto mantissa = static_cast<int64_t>(std::ldexp(std::frexp(std::abs(value), &exponent), 53));
  // value = mantissa * 2^(exponent - 53); subnormals end in zeros below 2^-1074, which are shifted out.
  int bit = exponent - 53 + kLowestBit;
  Wide shifted = static_cast<uint64_t>(mantissa);
  if (bit < 0) {
    shifted >>= -bit;
    bit = 0;
  }
  shifted <<= bit % 32;
  for (int limb = bit / 32; shifted != 0; ++limb, shifted >>= 32) {
    const auto part = static_cast<int64_t>(static_cast<uint32_t>(shifted));
    words_[limb] += value < 0 ? -part : part;
  }
  if (++pending_ == int64_t{1} << 30) carry();
}

void ExactSum::carry() {
  for (int limb = 0; limb + 1 < kNumLimbs; ++limb) {
    const int64_t over = words_[limb] >> 32;  // rounds down, so that what stays is not negative
    words_[limb] -= over * kBase;
    words_[limb + 1] += over;
  }
  pending_ = 0;
}

ExactSum::Words ExactSum::words() const {
  ExactSum copy = *this;
  copy.carry();
  return copy.words_;
}

ExactSum ExactSum::of(const Words& words) {
  ExactSum sum;
  sum.words_ = words;
  sum.carry();
  return sum;
}

double ExactSum::value() const {
  Words words = this->words();
  constexpr double kInfinity = std::numeric_limits<double>::infinity();
  if (words[kNans] > 0 || (words[kInfinities] > 0 && words[kNegativeInfinities] > 0)) return std::nan("");
  if (words[kInfinities] > 0) return kInfinity;
  if (words[kNegativeInfinities] > 0) return -kInfinity;
  const bool negative = words[kNumLimbs - 1] < 0;
  if (negative) {
    ExactSum opposite;
    for (int limb = 0; limb < kNumLimbs; ++limb) opposite.words_[limb] = -words[limb];
    words = opposite.words();
  }
  int top = kNumLimbs - 1;
  while (top > 2 && words[top] == 0) --top;
  // The highest limbs, at least 65 bits where there are that many, and one bit for all that is below them.
  Wide high = 0;
  for (int limb = top; limb > top - 3; --limb) {
    high = high << 32 | static_cast<uint64_t>(words[limb]);
  }
  bool below = false;
  for (int limb = 0; limb <= top - 3; ++limb) below = below || words[limb] != 0;
  int exponent = 32 * (top - 2) - kLowestBit;
  // To 62 bits and a sticky one: a conversion to double then rounds once, to nearest. Subnormals are whole.
  while (high >> 62 != 0) {
    below = below || (high & 1) != 0;
    high >>= 1;
    ++exponent;
  }
  const auto rounded = static_cast<double>(static_cast<uint64_t>(high) << 1 | static_cast<uint64_t>(below));
  return std::ldexp(negative ? -rounded : rounded, exponent - 1);
}

}  // namespace hasten::data::detail
