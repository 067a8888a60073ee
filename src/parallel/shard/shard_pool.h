// ShardPool: the memory through which the ranks of a host show each other the gradients of a unit (shard_bucket.h).
#pragma once

#include <cstdint>

#include "hasten/comm/shared_region.h"

namespace hasten::parallel::shard {

class ShardBucket;

/// The slots of a model's units, and which of them are in use.
struct ShardPool {
  static constexpr int kNumSlots = 2;

  comm::SharedRegion region;
  int64_t slot_bytes = 0;
  int64_t num_launched = 0;
  /// Launched, and not yet reduced by this rank.
  ShardBucket* pending = nullptr;
  /// Its sums are on their way between hosts.
  ShardBucket* crossing = nullptr;

  int64_t offset(int local_rank, int64_t slot) const { return (local_rank * kNumSlots + slot) * slot_bytes; }
};

}  // namespace hasten::parallel::shard
