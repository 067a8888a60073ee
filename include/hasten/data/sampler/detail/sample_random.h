// Random numbers of a sample: a pure function of (seed, epoch, index). So augmentation does not depend on the worker or
// rank that fetches the sample, nor on earlier fetches. A resumed run repeats it.
//
// SplitMix64 (Steele, Lea, Flood 2014) from a state that mixes the three. It is the same on every machine.
#pragma once

#include <cstdint>

namespace hasten::data {

class SampleRandom {
 public:
  SampleRandom(uint64_t seed, uint64_t epoch, uint64_t index) noexcept
      : state_(mix(mix(mix(seed + kStep) + epoch + kStep) + index + kStep)) {}

  /// 64 random bits.
  uint64_t next() noexcept { return mix(state_ += kStep); }

  /// Returns a number in [low, high).
  double uniform(double low = 0, double high = 1) noexcept {
    return low + (high - low) * static_cast<double>(next() >> 11) * 0x1.0p-53;
  }

  /// Returns one of 0 … count-1; 0 for a count of 0.
  uint64_t below(uint64_t count) noexcept { return static_cast<uint64_t>(uniform() * static_cast<double>(count)); }

 private:
  static constexpr uint64_t kStep = 0x9e3779b97f4a7c15;
  static constexpr uint64_t mix(uint64_t value) noexcept {
    value = (value ^ value >> 30) * 0xbf58476d1ce4e5b9;
    value = (value ^ value >> 27) * 0x94d049bb133111eb;
    return value ^ value >> 31;
  }

  uint64_t state_;
};

}  // namespace hasten::data
