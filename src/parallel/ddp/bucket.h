// Bucket: one flat piece of memory that holds several gradients side by side and is exchanged as a whole.
//
// Each gradient has its slot, which is its parameter's .grad() after a step. Autograd allocates the large ones of a CPU
// there. Behind the gradients lies one number a parameter, its used flag: 1 where this rank has a gradient. Their sum
// over the ranks shows whether any rank had one, at no extra message. One bucket of a model carries a trailer besides:
// numbers whose mean comes along.
#pragma once

#include <ATen/core/Tensor.h>

#include <optional>
#include <vector>

#include "hasten/comm/group/group.h"
#include "hasten/parallel/compress/comm_hook.h"
#include "parallel/ddp/abandoned_work.h"
#include "parallel/ddp/gradient_allocator.h"
#include "parallel/ddp/reducer_bucket.h"

namespace hasten::parallel {

struct BucketSettings {
  bool has_tail = false;
  /// Travels in this dtype; unset: in that of the parameters.
  std::optional<c10::ScalarType> wire_dtype = {};
  /// If true, the exchange gives the mean, and gradients go into it as they are. Otherwise it gives the sum of the
  /// values that take() has scaled.
  bool averages = false;
  /// Where autograd allocates large gradients in their slots.
  std::shared_ptr<GradientAllocator> gradient_allocator = {};
};

class Bucket : public ReducerBucket {
 public:
  /// `parameters` share dtype and device; none: the bucket is its tail, in doubles on the CPU.
  Bucket(std::vector<at::Tensor> parameters, comm::Group group, BucketSettings settings);

  size_t size() const noexcept override { return parameters_.size(); }
  bool is_cpu() const override { return flat_.is_cpu(); }

  /// Clears the record of gradients that have come.
  void begin_step() override;

  /// Takes parameter i's .grad(), times `scale` if need be, into its slot, and makes the slot its .grad(). On a device
  /// small ones wait for the bucket's last gradient, which then takes them all in few kernels. A parameter without a gradient gets a slot of zeros and
  /// its used flag is 0. Its .grad() stays undefined for now. A gradient that is part of a graph (create_graph) stays
  /// .grad() until settle. `arrived` is the tensor that autograd has just put into .grad(), if any.
  void take(size_t i, double scale, const at::Tensor& arrived = {}) override;

  /// Takes what has not come by itself: gradients left from earlier steps, or nothing.
  void take_rest(double scale) override;

  bool complete() const noexcept override { return num_taken_ == parameters_.size(); }

  /// Starts the exchange with the group; the gradients', if there is a hook, is the hook's. `tail` is read
  /// where there is one. Collective.
  void launch(const CommHook& hook, const Trailer& tail) override;

  /// Returns when it has ended.
  void wait() override;

  /// Returns the mean of the tails; waits for the device.
  Trailer tail() const override;

  /// After wait: multiplies the gradients by `factor`. Parameters that only other ranks had a gradient for get theirs.
  /// Returns the indices of those without a gradient on any rank.
  std::vector<size_t> settle(double factor) override;

  /// Makes every .grad() undefined.
  void drop_gradients() override;

 private:
  void lay_out();
  /// Makes the slot that has parameter i's gradient its .grad().
  void put_slot(size_t i);
  /// Copies the gradients of a device into their slots and scales them.
  void collect();
  /// A slot that is no parameter's .grad() any more, and that the program still holds, becomes the holder's, with its
  /// values as they are. Its place becomes another tensor's.
  void detach_view(size_t i);
  /// To other memory, since another holder has some of this.
  void move();

  std::vector<at::Tensor> parameters_;
  comm::Group group_;
  BucketSettings settings_;
  at::Tensor flat_;
  at::Tensor gradients_, presence_, tail_;
  /// The transferred tensor, if its dtype is another.
  at::Tensor wire_;
  std::vector<at::Tensor> slots_;
  /// Their numbers among the gradient_allocator, if there are any.
  std::vector<size_t> places_;
  std::vector<bool> taken_;
  std::vector<bool> absent_;
  /// Gradients that are part of a graph, by parameter.
  std::vector<at::Tensor> graphs_;
  size_t num_taken_ = 0;
  /// The factor of the step's gradients, and whether autograd records what is made of them.
  double scale_ = 1;
  bool keeps_graph_ = false;
  std::optional<comm::Work<>> work_;
};

}  // namespace hasten::parallel
