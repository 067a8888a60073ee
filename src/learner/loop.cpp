// See loop.h.
#include "learner/loop.h"

#include <vector>

#include "hasten/core/error.h"

namespace hasten::learner {
namespace {

/// Ends a pass over batches on every way out.
class Pass {
 public:
  explicit Pass(LoopActions& actions) : actions_(actions) { actions_.begin_batches(); }
  Pass(const Pass&) = delete;
  Pass& operator=(const Pass&) = delete;
  ~Pass() { actions_.end_batches(); }

 private:
  LoopActions& actions_;
};

}  // namespace

std::string Loop::open_scopes() const {
  std::vector<std::string_view> names;
  for (size_t i = 0; i < kNumScopes; ++i) {
    if (is_open(static_cast<Scope>(i))) names.push_back(name_of(static_cast<Scope>(i)));
  }
  return names.empty() ? "none" : join(names);
}

void Loop::cancel(Scope scope) {
  if (!is_open(scope)) {
    throw UsageError(Origin{"learner"}, "cancel of ", name_of(scope),
                     ", which is not open; open scopes: ", open_scopes(),
                     ". An event after_X stands outside X: cancel a scope around it, or in an earlier event.");
  }
  if (!cancelled_ || scope < *cancelled_) cancelled_ = scope;
}

template <class Body>
void Loop::run(Scope scope, const Body& body) {
  const auto events = events_of(scope);
  const unsigned bit = 1U << static_cast<unsigned>(scope);
  open_ |= bit;
  try {
    try {
      actions_->event(events.before);
      if (!cancelled_) body();
    } catch (const Cancel& thrown) {
      cancel(thrown.scope);
    }
    open_ &= ~bit;
    if (cancelled_ == scope) {
      cancelled_.reset();
      actions_->event(events.after_cancel);
    }
  } catch (const Cancel&) {  // out of after_cancel, for a scope around this one
    throw;
  } catch (...) {
    open_ &= ~bit;
    cancelled_.reset();
    unwinding_ = true;
    try {
      actions_->event(events.after);
    } catch (...) {  // the first error is the one to report
    }
    cancelled_.reset();
    throw;
  }
  if (!cancelled_) actions_->event(events.after);
}

void Loop::within(Scope scope, const std::function<void()>& body) {
  run(scope, body);
}

void Loop::fit(int64_t num_epochs, int64_t first_epoch) {
  unwinding_ = false;
  cancelled_.reset();
  run(Scope::kFit, [&] {
    for (int64_t i = first_epoch; i < num_epochs && !cancelled_; ++i) {
      actions_->begin_epoch(i);
      epoch(true);
    }
  });
}

void Loop::validate() {
  unwinding_ = false;
  cancelled_.reset();
  run(Scope::kFit, [&] { epoch(false); });
}

void Loop::epoch(bool training) {
  run(Scope::kEpoch, [&] {
    if (training) all_batches(Scope::kTrain);
    if (!cancelled_) all_batches(Scope::kValid);
  });
}

void Loop::all_batches(Scope phase) {
  run(phase, [&] {
    const Pass pass(*actions_);
    while (!cancelled_ && actions_->next_batch()) one_batch();
  });
}

void Loop::one_batch() {
  run(Scope::kBatch, [&] {
    actions_->forward();
    actions_->event(Event::kAfterPred);
    if (cancelled_) return;
    if (actions_->has_targets()) actions_->compute_loss();
    actions_->event(Event::kAfterLoss);
    if (cancelled_ || !is_open(Scope::kTrain) || !actions_->has_targets()) return;
    run(Scope::kBackward, [&] { actions_->backward(); });
    if (cancelled_ || !actions_->steps()) return;
    run(Scope::kStep, [&] { actions_->step(); });
    if (!cancelled_) actions_->zero_grad();
  });
}

}  // namespace hasten::learner
