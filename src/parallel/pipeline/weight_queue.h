// WeightQueue: gradients of weights that wait, for orders that split backwards (zero bubble).
//
// While a queue is open, a linear operator on parameters is carried out by a function of its own. Its backward gives
// the gradient of the input, and leaves that of the weight and bias here. Other parameters have theirs with the
// input's.
#pragma once

#include <ATen/core/Tensor.h>
#include <ATen/core/dispatch/Dispatcher.h>

#include <functional>
#include <map>
#include <utility>
#include <vector>

#include "hasten/interception/interceptor.h"

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

/// Carries out aten::linear on leaves that need gradients so that its backward leaves them to a queue. Returns false,
/// with the arguments as they were, for anything else. Collective: no. Blocks: no. Throws: nothing of its own.
bool carry_out_deferred(const c10::OperatorHandle& op, interception::Stack& stack);

}  // namespace hasten::parallel::pipeline
