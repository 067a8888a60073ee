// What prepare checks of a loader on all ranks together: that they have the same, and that it has samples.
//
// A loader gives each rank its part of one order. Ranks whose datasets or batch sizes differ would make different
// numbers of steps, and wait for each other in the middle of one.
#pragma once

#include <cstddef>
#include <optional>
#include <string>

#include "hasten/process/process.h"

namespace hasten::data {

struct LoaderDescription {
  /// The type of the dataset, as a reader of C++ writes it.
  std::string dataset = {};
  /// Samples of the dataset, nothing if unknown.
  std::optional<size_t> num_samples = {};
  size_t batch_size = 1;
  bool drop_last = false;
  /// Samples of the ranks' batches together; 0: unknown.
  size_t step_samples = 0;
};

/// Compares the loaders that the ranks prepare.
/// Collective: yes. Blocks: yes. Throws: UsageError on all ranks with the values of two that differ; CommError.
void check_same_loader(const process::Process& process, const LoaderDescription& mine);

/// Warns of a loader over which a loop makes no step: without samples, or with fewer than a step takes and drop_last.
void warn_if_empty(const process::Process& process, const LoaderDescription& mine);

}  // namespace hasten::data
