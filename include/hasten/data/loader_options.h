// hasten's own options of a loader, beside torch::data::DataLoaderOptions.
#pragma once

namespace hasten::data {

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
};

}  // namespace hasten::data
