// See learner/callbacks/tracker.h.
#include "hasten/learner/callbacks/tracker.h"

#include <ATen/ATen.h>

#include <algorithm>
#include <cmath>

#include "hasten/comm/types/purpose.h"
#include "hasten/core/sentence.h"
#include "hasten/learner/learner.h"
#include "hasten/learner/recorder.h"

namespace hasten::learner {
namespace {

void require_patience(const char* name, int64_t patience) {
  if (patience >= 1) return;
  throw UsageError(Origin{"learner"}, name, " with patience ", patience, "; expected at least 1 epoch.");
}

template <class Options>
TrackerOptions tracker_options(const Options& o) {
  return {.monitor = o.monitor, .comp = o.comp, .min_delta = o.min_delta, .reset_on_fit = o.reset_on_fit};
}

}  // namespace

TrackerCallback::TrackerCallback(TrackerOptions given) : options(std::move(given)) {
  if (!options.comp) {
    const bool less =
        options.monitor.find("loss") != std::string::npos || options.monitor.find("error") != std::string::npos;
    options.comp = less ? Better::kLess : Better::kGreater;
  }
  best = worst();
}

double TrackerCallback::worst() const {
  constexpr double kInf = std::numeric_limits<double>::infinity();
  return options.comp == Better::kLess ? kInf : -kInf;
}

bool TrackerCallback::is_better(double value) const {
  return options.comp == Better::kLess ? value + options.min_delta < best : value - options.min_delta > best;
}

void TrackerCallback::before_fit(Learner& learn) {
  if (options.reset_on_fit) best = worst();
  new_best = has_row = trained = false;
  const auto known = learn.recorder().columns();
  if (std::find(known.begin(), known.end(), options.monitor) != known.end()) return;
  throw UsageError(Origin{"learner"}, "no column '", options.monitor, "' to monitor", guess_end(options.monitor, known),
                   " Columns: ", join(known), ".");
}

void TrackerCallback::before_train(Learner& /*learn*/) {
  trained = true;
}

void TrackerCallback::after_epoch(Learner& learn) {
  new_best = false;
  has_row = trained && !learn.is_unwinding() && !learn.recorder().final_record().empty();
  if (!has_row) return;
  double value = learn.recorder().value_of(options.monitor);
  const auto& group = learn.accelerator().group();
  if (group.world_size() > 1) {
    auto shared = at::full({1}, value, at::kDouble);
    const comm::Purpose purpose("the monitored value");
    group.broadcast_(shared, 0);
    value = shared.item<double>();
  }
  new_best = is_better(value);
  if (new_best) best = value;
}

core::Value TrackerCallback::state() const {
  return core::Value::map({{"best", best}});
}
void TrackerCallback::load_state(const core::Value& state) {
  const auto& value = state.at("best");
  best = value.as_double();
}

SaveModel::SaveModel(SaveModelOptions given) : TrackerCallback(tracker_options(given)), save(std::move(given)) {
  if (save.every_epoch != 0 && save.at_end) {
    throw UsageError(Origin{"learner"}, "SaveModel with every_epoch ", save.every_epoch,
                     " and at_end; expected one of them.");
  }
  if (save.every_epoch < 0)
    throw UsageError(Origin{"learner"}, "SaveModel with every_epoch ", save.every_epoch, "; expected at least 0.");
}

void SaveModel::before_fit(Learner& learn) {
  TrackerCallback::before_fit(learn);
  saved = false;
}

void SaveModel::after_epoch(Learner& learn) {
  if (save.every_epoch > 0) {
    if (trained && !learn.is_unwinding() && learn.epoch() % save.every_epoch == 0)
      learn.save(text(save.fname, "_", learn.epoch()), save.with_opt);
    return;
  }
  TrackerCallback::after_epoch(learn);
  if (!new_best) return;
  learn.save(save.fname, save.with_opt);
  saved = true;
}

void SaveModel::after_fit(Learner& learn) {
  if (learn.is_unwinding() || !trained) return;
  if (save.at_end) {
    learn.save(save.fname, save.with_opt);
  } else if (save.every_epoch == 0 && saved) {
    learn.load(save.fname, {.with_opt = save.with_opt});
  } else if (save.every_epoch == 0) {
    learn.accelerator().logger("learner").warning(text("save_model: ", options.monitor, " was never better than ",
                                                       worst(), "; nothing to load, kept the last weights."));
  }
}

EarlyStopping::EarlyStopping(EarlyStoppingOptions given)
    : TrackerCallback(tracker_options(given)), patience(given.patience) {
  require_patience("EarlyStopping", patience);
}

void EarlyStopping::before_fit(Learner& learn) {
  TrackerCallback::before_fit(learn);
  wait = 0;
  no_improvement_since.reset();
}

void EarlyStopping::after_epoch(Learner& learn) {
  TrackerCallback::after_epoch(learn);
  if (!has_row) return;
  if (new_best) {
    wait = 0;
    return;
  }
  if (++wait < patience) return;
  no_improvement_since = learn.epoch() - wait;
  learn.log(text("No improvement since epoch ", *no_improvement_since, ": early stopping"));
  learn.cancel(Scope::kFit);
}

core::Value EarlyStopping::state() const {
  return core::Value::map({{"best", best}, {"wait", wait}});
}
void EarlyStopping::load_state(const core::Value& state) {
  TrackerCallback::load_state(state);
  wait = state.at("wait").as_int();
}

ReduceLROnPlateau::ReduceLROnPlateau(ReduceLROnPlateauOptions given)
    : TrackerCallback(tracker_options(given)), plateau(std::move(given)) {
  require_patience("ReduceLROnPlateau", plateau.patience);
  if (!(plateau.factor > 1)) {
    throw UsageError(Origin{"learner"}, "ReduceLROnPlateau with factor ", plateau.factor,
                     "; expected above 1, rates are divided by it.");
  }
}

void ReduceLROnPlateau::before_fit(Learner& learn) {
  TrackerCallback::before_fit(learn);
  wait = 0;
}

void ReduceLROnPlateau::after_epoch(Learner& learn) {
  TrackerCallback::after_epoch(learn);
  if (!has_row) return;
  if (new_best) {
    wait = 0;
    return;
  }
  if (++wait < plateau.patience) return;
  wait = 0;
  auto rates = learn.hypers().get("lr");
  const double before = rates.back();
  for (auto& rate : rates) rate = std::max(rate / plateau.factor, plateau.min_lr);
  learn.hypers().set("lr", rates);
  if (rates.back() < before) learn.log(text("Epoch ", learn.epoch(), ": reducing lr to ", rates.back()));
}

core::Value ReduceLROnPlateau::state() const {
  return core::Value::map({{"best", best}, {"wait", wait}});
}
void ReduceLROnPlateau::load_state(const core::Value& state) {
  TrackerCallback::load_state(state);
  wait = state.at("wait").as_int();
}

}  // namespace hasten::learner
