// Loop: the nesting of fit, epoch, train, validate, batch, backward and step, and of their cancels. It needs no torch.
//
// The order of events is fastai's. LoopActions has the reads of an epoch and the computation of a step. The Learner
// implements it, and tests replace it by a fake. A cancel is a mark: the rest of the event's callbacks and of the scope
// is left out.
#pragma once

#include <cstdint>
#include <functional>
#include <optional>
#include <string>

#include "hasten/learner/scope.h"

namespace hasten::learner {

/// Actions of a loop between its events.
class LoopActions {
 public:
  virtual ~LoopActions() = default;
  /// Calls the callbacks of an event, and stops behind the one that cancels (Loop::is_cancelled).
  virtual void event(Event event) = 0;
  virtual void begin_epoch(int64_t epoch) = 0;
  /// A pass over batches begins: behind before_train or before_validate.
  virtual void begin_batches() = 0;
  /// Makes the next batch current; false at the pass's end.
  virtual bool next_batch() = 0;
  virtual void end_batches() noexcept = 0;
  virtual void forward() = 0;
  /// Returns true if the current batch has targets; without them there is no loss and no backward.
  virtual bool has_targets() const = 0;
  virtual void compute_loss() = 0;
  virtual void backward() = 0;
  /// Returns false if the batch's gradients wait for a later one's step: the batch ends behind its backward.
  virtual bool steps() const { return true; }
  virtual void step() = 0;
  virtual void zero_grad() = 0;
};

class Loop {
 public:
  explicit Loop(LoopActions& actions) : actions_(&actions) {}

  /// Runs epochs first_epoch … num_epochs - 1 with all events. Epochs before start_epoch are cancelled in before_epoch
  /// by the caller's callback, as in fastai.
  /// Collective: as the actions are. Blocks: as they do. Throws: what callbacks and actions throw, behind the after_…
  /// events of the open scopes; UsageError for a Cancel of a scope that is not open.
  void fit(int64_t num_epochs, int64_t first_epoch = 0);
  /// Runs a validation inside the events of a fit and an epoch; see fit.
  void validate();
  /// The validation part alone, for a loop inside a loop; see fit.
  void validation_only() { all_batches(Scope::kValid); }
  /// `body` between the events of a scope; see fit.
  void within(Scope scope, const std::function<void()>& body);

  /// Marks a scope as cancelled. Inside a scope that is marked already the outer one wins.
  /// Throws: UsageError if the scope is not open, naming those that are.
  void cancel(Scope scope);
  bool is_cancelled() const noexcept { return cancelled_.has_value(); }
  bool is_open(Scope scope) const noexcept { return (open_ >> static_cast<unsigned>(scope)) & 1U; }
  /// "fit, epoch, train" or "none".
  std::string open_scopes() const;
  /// Returns true if an exception is passing: after_… events are called so that callbacks put back what they changed.
  bool is_unwinding() const noexcept { return unwinding_; }
  /// An exception begins to pass, out of one of an event's callbacks.
  void begin_unwinding() noexcept { unwinding_ = true; }

 private:
  template <class Body>
  void run(Scope scope, const Body& body);
  void epoch(bool training);
  void all_batches(Scope phase);
  void one_batch();

  LoopActions* actions_;
  unsigned open_ = 0;
  std::optional<Scope> cancelled_;
  bool unwinding_ = false;
};

}  // namespace hasten::learner
