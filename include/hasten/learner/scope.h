// Events and scopes of the training loop, and which contains which; pure, without torch.
//
// Follows fastai: an event before_X opens the scope X, after_X is outside it. A cancel ends the scope it names.
#pragma once

#include <array>
#include <cstddef>
#include <string_view>

namespace hasten::learner {

/// The events of a Learner, in the order of the loop.
enum class Event {
  kAfterCreate,
  kBeforeFit,
  kBeforeEpoch,
  kBeforeTrain,
  kBeforeBatch,
  kAfterPred,
  kAfterLoss,
  kBeforeBackward,
  kAfterCancelBackward,
  kAfterBackward,
  kBeforeStep,
  kAfterCancelStep,
  kAfterStep,
  kAfterCancelBatch,
  kAfterBatch,
  kAfterCancelTrain,
  kAfterTrain,
  kBeforeValidate,
  kAfterCancelValidate,
  kAfterValidate,
  kAfterCancelEpoch,
  kAfterEpoch,
  kAfterCancelFit,
  kAfterFit,
};
inline constexpr size_t kNumEvents = 24;

/// A part of the loop that a callback can cancel.
enum class Scope { kFit, kEpoch, kTrain, kValid, kBatch, kBackward, kStep };
inline constexpr size_t kNumScopes = 7;

/// "before_batch".
constexpr std::string_view name_of(Event event) noexcept {
  constexpr std::array<std::string_view, kNumEvents> kNames = {"after_create",
                                                               "before_fit",
                                                               "before_epoch",
                                                               "before_train",
                                                               "before_batch",
                                                               "after_pred",
                                                               "after_loss",
                                                               "before_backward",
                                                               "after_cancel_backward",
                                                               "after_backward",
                                                               "before_step",
                                                               "after_cancel_step",
                                                               "after_step",
                                                               "after_cancel_batch",
                                                               "after_batch",
                                                               "after_cancel_train",
                                                               "after_train",
                                                               "before_validate",
                                                               "after_cancel_validate",
                                                               "after_validate",
                                                               "after_cancel_epoch",
                                                               "after_epoch",
                                                               "after_cancel_fit",
                                                               "after_fit"};
  return kNames[static_cast<size_t>(event)];
}

/// "fit", "epoch", "train", "valid", "batch", "backward", "step".
constexpr std::string_view name_of(Scope scope) noexcept {
  constexpr std::array<std::string_view, kNumScopes> kNames = {"fit",   "epoch",    "train", "valid",
                                                               "batch", "backward", "step"};
  return kNames[static_cast<size_t>(scope)];
}

/// The three events of a scope.
struct ScopeEvents {
  Event before, after_cancel, after;
};
constexpr ScopeEvents events_of(Scope scope) noexcept {
  constexpr std::array<ScopeEvents, kNumScopes> kEvents = {{
      {Event::kBeforeFit, Event::kAfterCancelFit, Event::kAfterFit},
      {Event::kBeforeEpoch, Event::kAfterCancelEpoch, Event::kAfterEpoch},
      {Event::kBeforeTrain, Event::kAfterCancelTrain, Event::kAfterTrain},
      {Event::kBeforeValidate, Event::kAfterCancelValidate, Event::kAfterValidate},
      {Event::kBeforeBatch, Event::kAfterCancelBatch, Event::kAfterBatch},
      {Event::kBeforeBackward, Event::kAfterCancelBackward, Event::kAfterBackward},
      {Event::kBeforeStep, Event::kAfterCancelStep, Event::kAfterStep},
  }};
  return kEvents[static_cast<size_t>(scope)];
}

/// Returns true if a callback's phases() decide if the event reaches it: the events of a batch.
constexpr bool is_inner(Event event) noexcept {
  return event >= Event::kBeforeBatch && event <= Event::kAfterBatch;
}

/// Returns true for the events that end a scope: after_batch, after_fit and the like.
constexpr bool ends_scope(Event event) noexcept {
  for (size_t i = 0; i < kNumScopes; ++i) {
    if (events_of(static_cast<Scope>(i)).after == event) return true;
  }
  return false;
}

/// Ends a scope from inside code that has no Learner, such as a forward: `throw learner::Cancel(Scope::kBatch)`.
/// Callbacks call Learner::cancel, which costs no exception.
struct Cancel {
  explicit Cancel(Scope cancelled) : scope(cancelled) {}
  Scope scope;
};

}  // namespace hasten::learner
