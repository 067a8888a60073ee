// Seeds and random state of the default generators, on the CPU and on CUDA devices.
//
// libtorch's default generators are one per process and device. Ranks that are threads of one process share
// them: there, use explicit generators.
#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <vector>

#include "hasten/process/process.h"

namespace hasten::process {

struct SeedOptions {
  /// Each rank its own stream: the seed plus the rank. Off: the same on all ranks, so that models start
  /// equal.
  bool device_specific = false;
  /// cuDNN takes deterministic algorithms from now on, and none by measuring (fastai's reproducible). For the whole
  /// process.
  bool reproducible = false;
  /// Every operator does, and one that has none throws (Accelerate's deterministic, torch's
  /// use_deterministic_algorithms). For the whole process; false changes nothing.
  bool deterministic = false;
};

/// Seeds the default generators of the CPU and all CUDA devices, and gives the seed that was used.
uint64_t set_seed(const Process& process, uint64_t seed, const SeedOptions& options = {});

/// The state of the default generators: uint8 tensors, opaque and only valid for the same libtorch release.
struct RandomState {
  at::Tensor cpu;
  /// By CUDA device; empty on a machine without.
  std::vector<at::Tensor> cuda = {};
};

RandomState capture_random_state();

/// From here on the generators go on as they did after the capture. CUDA generators without a captured
/// state keep theirs.
/// Throws: UsageError if the state holds more CUDA devices than are here.
void restore_random_state(const RandomState& state);

/// Returns all states in one uint8 tensor, for checkpoints: int64 little-endian the number of states, their lengths in
/// bytes, then the states, the CPU's first.
at::Tensor pack(const RandomState& state);

/// Throws: DataError (path "") if the bytes are not what pack makes.
RandomState unpack_random_state(const at::Tensor& bytes);

}  // namespace hasten::process
