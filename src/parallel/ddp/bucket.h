// Bucket: one flat piece of memory that holds several gradients side by side and is exchanged as a whole.
//
// A gradient's place ("slot") is a tensor of the parameter's shape and strides that shares the flat memory
// without being an autograd view of it, so that it can be a parameter's .grad() and survive libtorch's
// zero_grad(). Behind the gradients lies one number a parameter, its presence: 1 where this rank has a
// gradient. Their sum over the ranks tells whether anybody had one, at no extra message. The mean is taken by
// scaling on the way in.
#pragma once

#include <ATen/core/Tensor.h>

#include <optional>
#include <vector>

#include "hasten/comm/group.h"
#include "hasten/parallel/comm_hook.h"

namespace hasten::parallel {

class Bucket {
 public:
  /// `parameters` share dtype and device.
  Bucket(std::vector<at::Tensor> parameters, const comm::Group& group);

  size_t size() const noexcept { return parameters_.size(); }

  /// Forgets which gradients have come.
  void begin_step();

  /// Takes parameter i's .grad(), times `scale`, into its slot, and makes the slot its .grad(). A parameter
  /// without a gradient gets a slot of zeros and its presence is 0; its .grad() stays undefined for now.
  void take(size_t i, double scale);

  /// Takes what has not come by itself: gradients left from earlier steps, or nothing.
  void take_rest(double scale);

  bool complete() const noexcept { return num_taken_ == parameters_.size(); }

  /// Starts the sum over the group; the gradients', if there is a hook, is the hook's. Collective.
  void launch(const comm::Group& group, const CommHook& hook);

  /// Waits for the sum. Parameters that only other ranks had a gradient for get theirs; gives the indices of
  /// those that nobody had one for.
  std::vector<size_t> finish();

 private:
  std::vector<at::Tensor> parameters_;
  at::Tensor flat_;
  at::Tensor presence_;
  std::vector<at::Tensor> slots_;
  std::vector<bool> taken_;
  std::vector<bool> absent_;
  size_t num_taken_ = 0;
  std::optional<comm::Work<>> work_;
};

}  // namespace hasten::parallel
