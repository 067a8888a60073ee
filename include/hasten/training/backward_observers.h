// BackwardObservers: objects that see each backward of an Accelerator before it begins and after it has ended.
//
// Observers change nothing. hasten verify records losses and gradients with one (training/verify_recorder.h). The watch
// takes the phase and the loss from one, plan_report() its times.
#pragma once

#include <ATen/core/Tensor.h>

#include <chrono>
#include <cstdint>
#include <memory>
#include <optional>
#include <vector>

namespace hasten::training {

/// A backward, as the Accelerator is about to make it, or has made it.
struct BackwardFacts {
  /// As the program gave it: not divided by the number of batches, not scaled. It may be undefined.
  const at::Tensor& loss;
  /// BackwardOptions::weight, or the one that a joined loop implies.
  std::optional<double> weight = {};
  /// Samples that this rank's loaders have given since the last backward.
  int64_t num_samples = 0;
  /// How long the loop waited for these samples.
  std::chrono::nanoseconds waited = {};
  /// Gradients are exchanged, and the optimizer steps behind it.
  bool ends_window = true;
};

class BackwardObserver {
 public:
  virtual ~BackwardObserver() = default;
  /// All ranks call alike. Throws: its exception leaves the Accelerator's backward, which has not begun.
  virtual void before_backward(const BackwardFacts&) {}
  /// Gradients are there, and exchanged if `ends_window`.
  virtual void after_backward(const BackwardFacts&) {}
  /// The call of backward ends, with an exception or without one. It may not have begun.
  virtual void leave_backward() noexcept {}
};

/// The observers of one Accelerator, in the order in which they were added.
class BackwardObservers {
 public:
  /// The observer is kept alive.
  void add(std::shared_ptr<BackwardObserver> observer) { all_.push_back(std::move(observer)); }
  /// Takes it off again; nothing if it is not there.
  void remove(const BackwardObserver* observer) {
    std::erase_if(all_, [observer](const auto& one) { return one.get() == observer; });
  }
  bool empty() const noexcept { return all_.empty(); }

  /// Call the functions of these names; leave() throws nothing.
  /// Throws: the exceptions of the observers.
  void before(const BackwardFacts& facts) const {
    for (const auto& observer : all_) observer->before_backward(facts);
  }
  void after(const BackwardFacts& facts) const {
    for (const auto& observer : all_) observer->after_backward(facts);
  }
  void leave() const noexcept {
    for (const auto& observer : all_) observer->leave_backward();
  }

 private:
  std::vector<std::shared_ptr<BackwardObserver>> all_;
};

}  // namespace hasten::training
