// hasten's own options of a loader, beside torch::data::DataLoaderOptions.
#pragma once

#include <algorithm>
#include <cstdint>
#include <optional>
#include <vector>

namespace hasten::data {

/// Random states that can be made rank 0's on all ranks at the start of an epoch; Accelerate's names.
enum class RngType {
  kGenerator,  ///< what samplers draw, and nothing else (sampler_stream.h)
  kTorch,      ///< the default CPU generator
  kCuda,       ///< the default generator of the process's CUDA device
};

/// How a prepared loader treats its batches; docs/data.md shows what each does to order and padding.
struct LoaderOptions {
  /// true: the batch size is that of all ranks together, each batch is cut into world_size parts.
  /// false: it is that of each rank, and whole batches go round the ranks. Accelerate's default.
  bool split_batches = false;
  /// true: every rank gets as many batches, of one size; samples of the first step are given once more at the
  /// end (GradientState::remainder counts the new ones, gather_for_metrics drops the others). false: some
  /// ranks end with a smaller batch, or one batch earlier.
  bool even_batches = true;
  /// Batches come on the process's device. On the CPU nothing is copied either way.
  bool put_on_device = true;
  /// Copies to the device do not wait for their end; this helps where the batch lies in pinned memory.
  bool non_blocking = false;
  /// true: rank 0 reads and hands the others their slices (dispatch.h). false: every rank reads its own part.
  /// Unset: as Accelerate, true for streams with put_on_device, false for datasets with positions.
  std::optional<bool> dispatch_batches = {};
  /// torch's RandomSampler is replaced by SeedableRandomSampler (samplers.h): the order depends on data_seed
  /// and the epoch alone, no more on the default generator. Other samplers stay.
  bool use_seedable_sampler = false;
  /// The seed for that; unset: the one that rank 0's default generator was given.
  std::optional<uint64_t> data_seed = {};
  /// What is synchronised at the start of each epoch. Without kGenerator every rank draws an order of its
  /// own.
  std::vector<RngType> rng_types = {RngType::kGenerator};

  bool synchronizes(RngType type) const {
    return std::find(rng_types.begin(), rng_types.end(), type) != rng_types.end();
  }
};

}  // namespace hasten::data
