// The order of an epoch as a pure function of (size, seed, epoch): without samplers, without ranks.
//
// There are two orders. kTorch is torch.randperm's from a CPU generator seeded with seed + epoch, as in PyTorch's
// DistributedSampler and Accelerate's seedable sampler. All of it is made at once, O(size) in time and memory. kKeyed
// computes the sample at one position by itself, so that an epoch over any number of samples begins, and is resumed, in
// O(1). Drawing from them is samplers.h's.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>

#include "hasten/data/sampler/batch_shard.h"

namespace hasten::data {

/// Which order a shuffling sampler follows; either depends on seed and epoch only.
enum class Order {
  kTorch,  ///< PyTorch's permutation: equal to the peer's, regenerated once per epoch, 8 bytes a sample
  kKeyed,  ///< ours: O(1) time and memory for any position; for large data and for resuming at once
};

/// torch.randperm(size) from a CPU generator (mt19937) seeded with `seed`.
/// Throws: what libtorch throws without memory.
Indices torch_permutation(size_t size, uint64_t seed);

/// A permutation of 0 … size - 1 of which every value can be had by itself.
///
/// A Feistel network on the next power of two, keyed by seed and epoch. It has 8 half rounds (Luby and Rackoff, 1988;
/// unbalanced halves as in Schneier and Kelsey, 1996). Its round function is SplitMix64's mixer (Steele, Lea and Flood,
/// 2014). Values outside are walked on until they fall inside, fewer than two steps on average from 128 samples on.
/// Source of cycle walking: Black and Rogaway, "Ciphers with Arbitrary Finite Domains", 2002. It shuffles well and is
/// no cipher.
class KeyedPermutation {
 public:
  KeyedPermutation(size_t size, uint64_t seed, uint64_t epoch) noexcept;

  /// The value at `position`, which must be less than size().
  size_t operator[](size_t position) const noexcept;
  size_t size() const noexcept { return size_; }

 private:
  uint64_t once(uint64_t value) const noexcept;

  size_t size_;
  unsigned low_bits_, high_bits_;
  std::array<uint64_t, 8> keys_;
};

/// 64 random bits that belong to `position` of this epoch, drawn by themselves (SplitMix64's mixer).
uint64_t keyed_bits(uint64_t seed, uint64_t epoch, uint64_t position) noexcept;

/// Returns a number below `limit` (at least 1) that belongs to `position` of this epoch: drawing with replacement.
size_t keyed_draw(size_t limit, uint64_t seed, uint64_t epoch, uint64_t position) noexcept;

/// Returns the same as a number in [0, 1).
double keyed_uniform(uint64_t seed, uint64_t epoch, uint64_t position) noexcept;

}  // namespace hasten::data
