// WeightQueue: gradients of weights that wait, for orders that split backwards (zero bubble).
//
// While a queue is open, a linear operator on parameters is carried out by a function of its own. Its backward gives
// the gradient of the input, and leaves that of the weight and bias here. Other parameters have theirs with the
// input's.
#pragma once

#include <ATen/core/Tensor.h>

#include <functional>
#include <map>
#include <utility>
#include <vector>

namespace hasten::parallel::pipeline {

class WeightQueue {
 public:
  /// Gradients that backwards of this thread leave go to `key`, a stage and a microbatch.
  class Scope;

  /// Computes and accumulates what waits of a stage and microbatch.
  void run(std::pair<int, int> key);

  /// Returns the queue whose scope is open on this thread; null for none.
  static WeightQueue* current() noexcept;
  void add(std::function<void()> compute) { waiting_[key_].push_back(std::move(compute)); }

 private:
  std::pair<int, int> key_ = {};
  std::map<std::pair<int, int>, std::vector<std::function<void()>>> waiting_ = {};
};

class WeightQueue::Scope {
 public:
  Scope(WeightQueue& queue, std::pair<int, int> key);
  ~Scope();
  Scope(const Scope&) = delete;
  Scope& operator=(const Scope&) = delete;

 private:
  WeightQueue* before_;
};

/// A product x @ weight.t(), with a bias or without.
struct LinearParameters {
  /// The place of x among the operator's arguments.
  size_t x = 0;
  at::Tensor weight, bias;
};

/// Returns true if the parameters are leaves that need gradients, whole on this rank, and x needs one.
bool can_be_deferred(const at::Tensor& x, const LinearParameters& linear);

/// Returns the product; its backward leaves the gradients of the parameters to the queue that is open then.
at::Tensor deferred_linear(const at::Tensor& x, const LinearParameters& linear);

}  // namespace hasten::parallel::pipeline
