// Batch: inputs and targets of a step, whatever the loader gives.
//
// to_batch is an overload set. It takes libtorch's Example, a pair, a tuple, a map with the targets' names, or a Batch.
// All elements of a tuple but the last are inputs, as fastai's n_inp. Own types get an overload in their own namespace.
#pragma once

#include <ATen/core/Tensor.h>
#include <torch/data/example.h>

#include <map>
#include <string>
#include <tuple>
#include <utility>
#include <vector>

#include "hasten/core/error.h"
#include "hasten/core/sentence.h"

namespace hasten::learner {

struct Batch {
  std::vector<at::Tensor> inputs = {};
  /// Empty where nothing is to be learned from the batch.
  std::vector<at::Tensor> targets = {};

  /// Rows of the first input. Throws: nothing; 0 without inputs.
  int64_t size() const {
    const auto& from = inputs.empty() ? targets : inputs;
    return from.empty() || from.front().dim() == 0 ? 0 : from.front().size(0);
  }
};

/// How a batch of named tensors is read.
struct BatchOptions {
  /// Names of a map's targets; all others are inputs, in the order of their names.
  std::vector<std::string> targets = {};
  /// Number of inputs of a tuple or array; -1: all but the last.
  int64_t n_inp = -1;
};

inline Batch to_batch(Batch batch, const BatchOptions& /*options*/) {
  return batch;
}
inline Batch to_batch(const torch::data::Example<>& example, const BatchOptions& /*options*/) {
  return {{example.data}, {example.target}};
}
inline Batch to_batch(const torch::data::Example<at::Tensor, torch::data::example::NoTarget>& example,
                      const BatchOptions& /*options*/) {
  return {{example.data}, {}};
}
inline Batch to_batch(const at::Tensor& input, const BatchOptions& /*options*/) {
  return {{input}, {}};
}
inline Batch to_batch(const std::pair<at::Tensor, at::Tensor>& pair, const BatchOptions& /*options*/) {
  return {{pair.first}, {pair.second}};
}
/// Throws: UsageError for more inputs than tensors.
inline Batch to_batch(const std::vector<at::Tensor>& tensors, const BatchOptions& options) {
  const auto size = static_cast<int64_t>(tensors.size());
  const int64_t num_inputs = options.n_inp >= 0 ? options.n_inp : (size > 1 ? size - 1 : size);
  if (num_inputs > size) {
    throw UsageError(Origin{"learner"}, "n_inp ", num_inputs, " of a batch with ", size, " tensors; expected at most ",
                     size, ".");
  }
  return {{tensors.begin(), tensors.begin() + num_inputs}, {tensors.begin() + num_inputs, tensors.end()}};
}
template <size_t n>
Batch to_batch(const std::array<at::Tensor, n>& tensors, const BatchOptions& options) {
  return to_batch(std::vector<at::Tensor>(tensors.begin(), tensors.end()), options);
}
template <class... T>
Batch to_batch(const std::tuple<T...>& tensors, const BatchOptions& options) {
  return std::apply([&](const auto&... each) { return to_batch(std::vector<at::Tensor>{each...}, options); }, tensors);
}
/// Throws: UsageError for a target's name that the batch lacks.
inline Batch to_batch(const std::map<std::string, at::Tensor>& named, const BatchOptions& options) {
  Batch batch;
  std::vector<std::string> names;
  for (const auto& [name, tensor] : named) {
    names.push_back(name);
    bool is_target = false;
    for (const auto& target : options.targets) is_target = is_target || target == name;
    if (!is_target) batch.inputs.push_back(tensor);
  }
  for (const auto& target : options.targets) {
    const auto found = named.find(target);
    if (found == named.end()) {
      throw UsageError(Origin{"learner"}, "no '", target, "' in a batch of ", join(names), guess_end(target, names),
                       " Name the targets in BatchOptions::targets.");
    }
    batch.targets.push_back(found->second);
  }
  return batch;
}

}  // namespace hasten::learner
