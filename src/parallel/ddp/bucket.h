// Bucket: one flat piece of memory that holds several gradients side by side and is exchanged as a whole.
//
// A gradient's place ("slot") is a tensor of the parameter's shape and strides that shares the flat memory
// without being an autograd view of it, so that it can be a parameter's .grad() and survive libtorch's
// zero_grad(). Behind the gradients lies one number a parameter, its presence: 1 where this rank has a
// gradient. Their sum over the ranks tells whether anybody had one, at no extra message. One bucket of a
// model carries a tail besides: numbers that are summed along.
#pragma once

#include <ATen/core/Tensor.h>

#include <array>
#include <optional>
#include <vector>

#include "hasten/comm/group.h"
#include "hasten/parallel/comm_hook.h"

namespace hasten::parallel {

using Tail = std::array<double, 4>;

struct BucketSettings {
  bool has_tail = false;
  /// Travels in this dtype; unset: in that of the parameters.
  std::optional<c10::ScalarType> wire_dtype = {};
};

class Bucket {
 public:
  /// `parameters` share dtype and device; none: the bucket is its tail, in doubles on the CPU.
  Bucket(std::vector<at::Tensor> parameters, const comm::Group& group, const BucketSettings& settings);

  size_t size() const noexcept { return parameters_.size(); }
  bool is_cpu() const { return flat_.is_cpu(); }

  /// Forgets which gradients have come.
  void begin_step();

  /// Takes parameter i's .grad(), times `scale`, into its slot, and makes the slot its .grad(). A parameter
  /// without a gradient gets a slot of zeros and its presence is 0; its .grad() stays undefined for now. One
  /// that is part of a graph (create_graph) stays .grad() until settle.
  void take(size_t i, double scale);

  /// Takes what has not come by itself: gradients left from earlier steps, or nothing.
  void take_rest(double scale);

  bool complete() const noexcept { return num_taken_ == parameters_.size(); }

  /// Starts the sum over the group; the gradients', if there is a hook, is the hook's. `tail` is read where
  /// there is one. Collective.
  void launch(const comm::Group& group, const CommHook& hook, const Tail& tail);

  /// Returns when the sum is there.
  void wait();

  /// The sum of the tails; waits for the device.
  Tail tail() const;

  /// After wait: multiplies the gradients by `factor`; parameters that only other ranks had a gradient for
  /// get theirs. Gives the indices of those that nobody had one for.
  std::vector<size_t> settle(double factor);

  /// Makes every .grad() undefined.
  void drop_gradients();

 private:
  std::vector<at::Tensor> parameters_;
  at::Tensor flat_;
  at::Tensor gradients_, presence_, tail_;
  /// What travels, where its dtype is another.
  at::Tensor wire_;
  std::vector<at::Tensor> slots_;
  std::vector<bool> taken_;
  std::vector<bool> absent_;
  /// Gradients that are part of a graph, by parameter.
  std::vector<at::Tensor> graphs_;
  size_t num_taken_ = 0;
  std::optional<comm::Work<>> work_;
};

}  // namespace hasten::parallel
