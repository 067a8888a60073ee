// hasten's own options of a loader, beside torch::data::DataLoaderOptions.
#pragma once

#include <algorithm>
#include <cstdint>
#include <optional>
#include <vector>

namespace hasten::data {

/// Random states that can be made rank 0's on all ranks at the start of an epoch. The names are Accelerate's.
enum class RngType {
  kGenerator,  ///< the samplers' draws, and nothing else (sampler_stream.h)
  kTorch,      ///< the default CPU generator
  kCuda,       ///< the default generator of the process's CUDA device
};

/// How a prepared loader treats its batches; docs/data.md shows what each does to order and padding.
struct LoaderOptions {
  /// true: the batch size is that of all ranks together, each batch is cut into world_size parts.
  /// false: it is that of each rank, and whole batches go round the ranks. Accelerate's default.
  bool split_batches = false;
  /// If true, every rank gets as many batches, of one size. Samples of the first step are given once more at the end.
  /// GradientState::remainder counts the new ones, and gather_for_metrics drops the others. If false, some ranks end
  /// with a smaller batch, or a batch earlier.
  bool even_batches = true;
  /// A last batch with fewer samples is left out, as with torch::data::DataLoaderOptions::drop_last, which counts as
  /// well (DeepSpeed's dataloader_drop_last).
  bool drop_last = false;
  /// Batches come on the process's device. On the CPU nothing is copied either way.
  bool put_on_device = true;
  /// Prepare does not warn of a dataset without samples.
  bool allow_empty = false;
  /// On an accelerator, batches pass through pinned memory (filled by the workers). They are copied on a stream of
  /// their own while the loop has the batch before, and the host does not wait (staging.h). Costs pinned host memory of
  /// max_jobs batches, and device memory of one. Without effect on the CPU.
  bool pin_memory = true;
  /// For pin_memory = false: the host does not wait for the copies of what a dataset gave in pinned memory.
  bool non_blocking = false;
  /// true: rank 0 reads and hands the others their slices (dispatch.h). false: every rank reads its own part.
  /// Unset: as Accelerate, true for streams with put_on_device, false for datasets with positions.
  std::optional<bool> dispatch_batches = {};
  /// Every loader has its position (Loader::state, or by the peer's names state_dict and load_state_dict). True
  /// promises it: a loader without a position (enforce_ordering = false) is refused when it is prepared, not when its
  /// state is read hours later.
  bool use_stateful_dataloader = false;
  /// torch's RandomSampler is replaced by SeedableRandomSampler (samplers.h): the order depends on data_seed
  /// and the epoch alone, no more on the default generator. Other samplers stay.
  bool use_seedable_sampler = false;
  /// The seed for that; unset: the one that rank 0's default generator was given.
  std::optional<uint64_t> data_seed = {};
  /// The generators that are synchronised at the start of each epoch. Without kGenerator every rank draws an order of
  /// its own.
  std::vector<RngType> rng_types = {RngType::kGenerator};

  bool synchronizes(RngType type) const {
    return std::find(rng_types.begin(), rng_types.end(), type) != rng_types.end();
  }
};

}  // namespace hasten::data
