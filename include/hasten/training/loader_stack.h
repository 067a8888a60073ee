// LoaderStack: which prepared loaders are being iterated, and where the innermost of them is.
#pragma once

#include <chrono>
#include <cstdint>
#include <optional>
#include <vector>

namespace hasten::training {

/// The part of a loader that others may read while the caller works on a batch.
struct LoaderPosition {
  bool end_of_dataloader = false;
  /// Non-padding samples of the last global batch. -1 if the length is unknown, 0 if the batch is full.
  int64_t remainder = -1;
  /// Number of non-padding samples in this rank's current batch; -1 if `remainder` determines it.
  int64_t num_local_valid = -1;
};

/// Batches that loops have received, and how long they waited for them.
struct LoaderCounts {
  int64_t num_batches = 0;
  int64_t num_samples = 0;
  std::chrono::nanoseconds waited = {};
};

class LoaderStack {
 public:
  /// A loop over a loader begins; its position must stay valid until leave. Loops nest, the last one counts.
  void enter(const LoaderPosition* loader);
  /// The loop over it ended (by its end, a break or an exception). Nothing if it was not entered.
  void leave(const LoaderPosition* loader) noexcept;

  bool empty() const noexcept { return active_.empty(); }
  /// Returns the position of the innermost active loader; {false, -1} outside a loop.
  LoaderPosition position() const noexcept { return empty() ? LoaderPosition{} : *active_.back(); }

  /// Counts a batch that a loop has received. From the loop's thread, as all functions here.
  void count(int64_t num_samples, std::chrono::nanoseconds waited) noexcept;
  /// Returns what was counted since the last call. A loop that begins or ends drops the rest. Batches of an evaluation,
  /// which no backward follows, are no part of a step.
  LoaderCounts take_counts() noexcept;

  /// Instead of LoaderOptions::even_batches, for loops that begin from now on (join_uneven_inputs).
  std::optional<bool> even_batches() const noexcept { return even_batches_; }
  void set_even_batches(std::optional<bool> even_batches) noexcept { even_batches_ = even_batches; }

 private:
  std::vector<const LoaderPosition*> active_;
  LoaderCounts counts_;
  std::optional<bool> even_batches_;
};

}  // namespace hasten::training
