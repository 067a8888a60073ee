// What tests of the shared memory backend have in common.
#pragma once

#include <torch/types.h>

#include <chrono>

#include "support/ranks.h"

namespace hasten::comm {

constexpr int64_t kMegabyte = 1 << 20;

inline testing::RankOptions on_shared_memory(std::chrono::milliseconds timeout = std::chrono::seconds(20)) {
  return {.timeout = timeout, .check = false, .adjust = [](int, GroupOptions& options) {
            options.backend = BackendKind::kSharedMemory;
          }};
}
inline const testing::RankOptions kShared = on_shared_memory();

// Bytes that tell whose they are, and of which round.
inline at::Tensor bytes_from(int rank, int round, int64_t size) {
  const auto generator = at::make_generator<at::CPUGeneratorImpl>(100 * round + rank);
  return torch::randint(0, 256, {size}, generator, at::kByte);
}

}  // namespace hasten::comm
