// Metrics over each sample exactly once: what of a gathered batch is no padding.
//
// With even_batches the last global batch is filled up with samples from the start of the epoch, behind the
// new ones; the loader in hand says how many of them are new (LoaderPosition::remainder).
#pragma once

#include <algorithm>
#include <cstdint>
#include <optional>
#include <vector>

#include "hasten/comm/nested_operations.h"
#include "hasten/state/gradient_state.h"

namespace hasten::data {

/// How many samples of the gathered batch count; nothing if all do (a full batch, not the last one, an
/// unknown length, or outside a loop).
inline std::optional<int64_t> samples_that_count(const state::GradientState& state) {
  if (!state.end_of_dataloader() || state.remainder() <= 0) return std::nullopt;
  return state.remainder();
}

/// A gathered structure of tensors without the padding behind the last batch's samples; views where something
/// is cut. Collective: no. Blocks: no. Throws: UsageError for a scalar tensor.
template <class T>
T without_padding(const T& gathered, const state::GradientState& state) {
  const auto count = samples_that_count(state);
  return count ? comm::slice(gathered, 0, *count) : gathered;
}

/// The same for gathered objects, one a sample.
/// Collective: no. Blocks: no. Throws: nothing.
template <class T>
std::vector<T> objects_without_padding(std::vector<T> gathered, const state::GradientState& state) {
  const auto count = samples_that_count(state);
  if (count && *count < static_cast<int64_t>(gathered.size())) gathered.resize(static_cast<size_t>(*count));
  return gathered;
}

}  // namespace hasten::data
