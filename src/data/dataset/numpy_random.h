// numpy's RandomState, draw for draw: the orders and masks of Megatron's samples are made of it.
#pragma once

#include <cmath>
#include <cstddef>
#include <cstdint>
#include <random>
#include <utility>
#include <vector>

namespace hasten::data {

// Its Mersenne Twister is the standard one, its bounded numbers are masked draws.
class NumpyRandom {
 public:
  explicit NumpyRandom(uint32_t seed) : engine_(seed) {}

  void shuffle(std::vector<int64_t>& values) {
    for (size_t i = values.size(); i-- > 1;) std::swap(values[i], values[up_to(i)]);
  }
  // An integer of [low, high), as randint draws it.
  int64_t integer(int64_t low, int64_t high) {
    return low + static_cast<int64_t>(up_to(static_cast<uint64_t>(high - low - 1)));
  }
  // A number of [0, 1) with 53 bits.
  double uniform() {
    const auto high = static_cast<double>(engine_() >> 5U), low = static_cast<double>(engine_() >> 6U);
    return (high * 67108864.0 + low) / 9007199254740992.0;
  }
  // A number from 1 of the geometric distribution. Below a third `p` numpy inverts it.
  int64_t geometric(double p) { return static_cast<int64_t>(std::ceil(std::log1p(-uniform()) / std::log(1 - p))); }
  // A place of `weights`, as choice draws it.
  size_t choice(const std::vector<double>& weights) {
    double sum = 0, before = 0;
    for (const double weight : weights) sum += weight;
    const double drawn = uniform();
    for (size_t i = 0; i + 1 < weights.size(); ++i) {
      before += weights[i];
      if (before / sum > drawn) return i;
    }
    return weights.size() - 1;
  }

 private:
  uint64_t up_to(uint64_t most) {
    if (most == 0) return 0;
    uint64_t mask = most;
    for (const int shift : {1, 2, 4, 8, 16, 32}) mask |= mask >> shift;
    const bool is_long = most > 0xffffffffULL;
    uint64_t value = 0;
    do {
      value = is_long ? draw_long() : engine_();
      value &= mask;
    } while (value > most);
    return value;
  }
  uint64_t draw_long() {
    const uint64_t low = engine_();
    return static_cast<uint64_t>(engine_()) << 32 | low;
  }
  std::mt19937 engine_;
};

}  // namespace hasten::data
