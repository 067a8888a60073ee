// Callback: code that a Learner calls at the events of its loop.
//
// A struct of empty virtuals: `override` catches a misspelt event. Which events a callback has is known at compile
// time, so an event calls only those. Order: order(), then the order of adding; names are unique in a Learner.
#pragma once

#include <cstdint>
#include <memory>
#include <string_view>
#include <type_traits>
#include <utility>
#include <vector>

#include "hasten/core/value.h"
#include "hasten/learner/scope.h"

namespace hasten::learner {

class Learner;

/// The part of an epoch in which the events of a batch reach a callback. All other events always do.
enum class Phases { kBoth, kTrain, kValid };

/// A Learner's kinds of passes: fits, the range test of lr_find, validate, and get_preds with predict and tta.
enum class PassKind : uint32_t { kFit = 1, kLrFind = 2, kValidate = 4, kPredictions = 8 };
/// A set of them.
using PassSet = uint32_t;
inline constexpr PassSet kAllPasses = 15;
constexpr PassSet passes_of(PassKind one) noexcept {
  return static_cast<PassSet>(one);
}

struct Callback {
  Callback() = default;
  Callback(const Callback&) = default;
  Callback(Callback&&) = default;
  Callback& operator=(const Callback&) = default;
  Callback& operator=(Callback&&) = default;
  virtual ~Callback() = default;
  virtual std::string_view name() const = 0;
  virtual int order() const { return 0; }
  virtual Phases phases() const { return Phases::kBoth; }
  /// The passes in which events reach the callback. A callback that watches or saves a training declares kFit alone
  /// (fastai's `run`).
  virtual PassSet passes() const { return kAllPasses; }
  /// True: left out by get_preds, predict and tta.
  virtual bool removed_for_predictions() const { return false; }
  /// Returns the callback's state for checkpoints in mid-epoch. Null: nothing.
  virtual core::Value state() const { return {}; }
  virtual void load_state(const core::Value& /*state*/) {}

  virtual void after_create(Learner& /*learn*/) {}
  virtual void before_fit(Learner& /*learn*/) {}
  virtual void before_epoch(Learner& /*learn*/) {}
  virtual void before_train(Learner& /*learn*/) {}
  virtual void before_batch(Learner& /*learn*/) {}
  virtual void after_pred(Learner& /*learn*/) {}
  virtual void after_loss(Learner& /*learn*/) {}
  virtual void before_backward(Learner& /*learn*/) {}
  virtual void after_cancel_backward(Learner& /*learn*/) {}
  virtual void after_backward(Learner& /*learn*/) {}
  virtual void before_step(Learner& /*learn*/) {}
  virtual void after_cancel_step(Learner& /*learn*/) {}
  virtual void after_step(Learner& /*learn*/) {}
  virtual void after_cancel_batch(Learner& /*learn*/) {}
  virtual void after_batch(Learner& /*learn*/) {}
  virtual void after_cancel_train(Learner& /*learn*/) {}
  virtual void after_train(Learner& /*learn*/) {}
  virtual void before_validate(Learner& /*learn*/) {}
  virtual void after_cancel_validate(Learner& /*learn*/) {}
  virtual void after_validate(Learner& /*learn*/) {}
  virtual void after_cancel_epoch(Learner& /*learn*/) {}
  virtual void after_epoch(Learner& /*learn*/) {}
  virtual void after_cancel_fit(Learner& /*learn*/) {}
  virtual void after_fit(Learner& /*learn*/) {}
};

namespace detail {

template <class>
struct class_of;
template <class R, class C, class... A>
struct class_of<R (C::*)(A...)> : std::type_identity<C> {};

/// `&T::event` names the class that declares it: Callback itself if T overrides nothing.
template <auto pointer>
inline constexpr bool kOverridden = !std::is_same_v<typename class_of<decltype(pointer)>::type, Callback>;

}  // namespace detail

/// A set of events, bit i for Event i.
using EventSet = uint32_t;
inline constexpr EventSet kAllEvents = (1U << kNumEvents) - 1;

/// Returns the events that T overrides.
template <class T>
constexpr EventSet overridden_events() {
  using detail::kOverridden;
  constexpr bool kEvents[] = {kOverridden<&T::after_create>,
                              kOverridden<&T::before_fit>,
                              kOverridden<&T::before_epoch>,
                              kOverridden<&T::before_train>,
                              kOverridden<&T::before_batch>,
                              kOverridden<&T::after_pred>,
                              kOverridden<&T::after_loss>,
                              kOverridden<&T::before_backward>,
                              kOverridden<&T::after_cancel_backward>,
                              kOverridden<&T::after_backward>,
                              kOverridden<&T::before_step>,
                              kOverridden<&T::after_cancel_step>,
                              kOverridden<&T::after_step>,
                              kOverridden<&T::after_cancel_batch>,
                              kOverridden<&T::after_batch>,
                              kOverridden<&T::after_cancel_train>,
                              kOverridden<&T::after_train>,
                              kOverridden<&T::before_validate>,
                              kOverridden<&T::after_cancel_validate>,
                              kOverridden<&T::after_validate>,
                              kOverridden<&T::after_cancel_epoch>,
                              kOverridden<&T::after_epoch>,
                              kOverridden<&T::after_cancel_fit>,
                              kOverridden<&T::after_fit>};
  EventSet set = 0;
  for (size_t i = 0; i < kNumEvents; ++i) set |= kEvents[i] ? 1U << i : 0U;
  return set;
}

/// A callback with the events that it has.
struct CallbackEntry {
  std::shared_ptr<Callback> callback = {};
  EventSet events = kAllEvents;
};
using Callbacks = std::vector<CallbackEntry>;

template <class T>
  requires std::is_base_of_v<Callback, T>
CallbackEntry entry_of(std::shared_ptr<T> callback) {
  if constexpr (std::is_same_v<T, Callback>)
    return {std::move(callback), kAllEvents};
  else
    return {std::move(callback), overridden_events<T>()};
}
template <class T>
  requires std::is_base_of_v<Callback, std::remove_cvref_t<T>>
CallbackEntry entry_of(T&& callback) {
  return entry_of(std::make_shared<std::remove_cvref_t<T>>(std::forward<T>(callback)));
}
inline CallbackEntry entry_of(CallbackEntry entry) {
  return entry;
}
/// `{.cbs = callbacks(MixUp(0.1), SaveModel())}`.
template <class... T>
Callbacks callbacks(T&&... each) {
  return Callbacks{entry_of(std::forward<T>(each))...};
}

}  // namespace hasten::learner
