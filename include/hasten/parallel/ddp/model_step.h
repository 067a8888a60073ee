// ModelStep: the backwards and the exchange of one distributed model, as backward.h drives them.
#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <memory>

#include "hasten/comm/group/group.h"
#include "hasten/parallel/ddp/accumulation_window.h"
#include "hasten/parallel/ddp/ddp_options.h"

namespace hasten::parallel {

class Reducer;
class ValueWatch;
struct ParameterSet;

/// State of local SGD on a model (local_sgd.h).
struct LocalSgdState {
  bool now = false;
  /// Steps of this rank since the parameters were averaged.
  int64_t num_steps = 0;
};

class ModelStep {
 public:
  explicit ModelStep(const comm::Group& group);
  ~ModelStep();
  ModelStep(const ModelStep&) = delete;
  ModelStep& operator=(const ModelStep&) = delete;

  AccumulationWindow& window() noexcept { return window_; }
  ExchangeSettings& settings() noexcept { return settings_; }
  LocalSgdState& local_sgd() noexcept { return local_sgd_; }
  /// Parameters were averaged: they are the same on all ranks.
  void set_averaged() noexcept;

  // None of these is collective unless its comment states it.

  /// Before a backward of any model's. Warns, once each, if parameters or gradients have changed inside the window by
  /// something other than a prepared optimizer. The ranks then compare their parameters in the window's exchange.
  void begin_backward(int64_t optimizer_calls, bool ends_window);
  /// After a backward through the model that did not end its window.
  void end_held_backward(int64_t optimizer_calls);
  /// Counts a backward of the window, whose loss counts `weight`.
  void add_weight(double weight);
  /// In a world of one, and in local SGD: divides the window's weights out, as an exchange does.
  void settle_alone();
  /// Makes the gradients of all parameters undefined.
  void drop_gradients();

  /// An exchange that offers what gradients there are, for a backward that passes the model by on this rank.
  /// Collective: yes. Blocks: finish() does. Throws: CommError.
  void start();
  void finish();
  bool is_exchanging() const noexcept;
  /// Forgets an exchange that an exception has left.
  void abandon() noexcept;
  /// Exchanges so far.
  int64_t num_exchanges() const noexcept;
  /// Returns true if any rank had a gradient in the last exchange.
  bool had_gradients() const noexcept;

 private:
  friend class Ddp;
  /// The parameters, which must stay valid, and what exchanges them; null in a world of one.
  void attach(const ParameterSet* parameters, Reducer* reducer) noexcept;
  /// Parameters were replaced, or changed on purpose on all ranks.
  void forget() noexcept;
  bool has_gradients() const noexcept;
  void warn(AccumulationWindow::Warning kind, size_t num_changed, size_t first_changed) const;

  comm::Group group_;
  AccumulationWindow window_;
  ExchangeSettings settings_;
  LocalSgdState local_sgd_;
  const ParameterSet* parameters_ = nullptr;
  Reducer* reducer_ = nullptr;
  /// The parameters after the last held backward.
  std::unique_ptr<ValueWatch> values_;
};

}  // namespace hasten::parallel
