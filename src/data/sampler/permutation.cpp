// The two orders; see permutation.h.
#include "hasten/data/sampler/permutation.h"

#include <ATen/CPUGeneratorImpl.h>
#include <ATen/ops/randperm.h>

#include <algorithm>
#include <bit>

namespace hasten::data {

namespace {

constexpr uint64_t kGolden = 0x9E3779B97F4A7C15;  // SplitMix64's increment
// Few samples are permuted inside a larger domain: a network of two bits can hardly shuffle.
constexpr unsigned kLeastBits = 8;

__extension__ using Wide = unsigned __int128;

constexpr uint64_t mix(uint64_t value) noexcept {
  value = (value ^ (value >> 30)) * 0xBF58476D1CE4E5B9;
  value = (value ^ (value >> 27)) * 0x94D049BB133111EB;
  return value ^ (value >> 31);
}

// Seed and epoch are mixed one after the other, so that (seed + 1, epoch) is not (seed, epoch + 1).
constexpr uint64_t key_of(uint64_t seed, uint64_t epoch) noexcept {
  return mix(mix(seed + kGolden) + (epoch + 1) * kGolden);
}

constexpr uint64_t low_mask(unsigned bits) noexcept {
  return bits >= 64 ? ~uint64_t{0} : (uint64_t{1} << bits) - 1;
}

}  // namespace

Indices torch_permutation(size_t size, uint64_t seed) {
  const at::Tensor drawn =
      at::randperm(static_cast<int64_t>(size), at::detail::createCPUGenerator(seed), at::TensorOptions(at::kLong));
  const int64_t* data = drawn.const_data_ptr<int64_t>();
  return Indices(data, data + drawn.numel());
}

KeyedPermutation::KeyedPermutation(size_t size, uint64_t seed, uint64_t epoch) noexcept : size_(size) {
  const auto bits = std::max<unsigned>(kLeastBits, std::bit_width(size > 0 ? size - 1 : 0));
  low_bits_ = bits / 2;
  high_bits_ = bits - low_bits_;
  uint64_t state = key_of(seed, epoch);
  for (uint64_t& key : keys_) key = mix(state += kGolden);
}

uint64_t KeyedPermutation::once(uint64_t value) const noexcept {
  uint64_t low = value & low_mask(low_bits_), high = value >> low_bits_;
  for (size_t round = 0; round < keys_.size(); round += 2) {
    high ^= mix(low ^ keys_[round]) & low_mask(high_bits_);
    low ^= mix(high ^ keys_[round + 1]) & low_mask(low_bits_);
  }
  return (high << low_bits_) | low;
}

size_t KeyedPermutation::operator[](size_t position) const noexcept {
  uint64_t value = once(position);
  while (value >= size_) value = once(value);
  return value;
}

uint64_t keyed_bits(uint64_t seed, uint64_t epoch, uint64_t position) noexcept {
  return mix(key_of(seed, epoch) + (position + 1) * kGolden);
}

size_t keyed_draw(size_t limit, uint64_t seed, uint64_t epoch, uint64_t position) noexcept {
  return static_cast<size_t>((static_cast<Wide>(keyed_bits(seed, epoch, position)) * limit) >> 64);
}

double keyed_uniform(uint64_t seed, uint64_t epoch, uint64_t position) noexcept {
  return static_cast<double>(keyed_bits(seed, epoch, position) >> 11) * 0x1.0p-53;
}

}  // namespace hasten::data
