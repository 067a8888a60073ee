// The Learner's construction, with the default callbacks. See learner.h.
#include "hasten/learner/callbacks/progress.h"
#include "hasten/learner/callbacks/training.h"
#include "hasten/learner/learner.h"
#include "hasten/learner/recorder.h"
#include "hasten/process/report_errors.h"
#include "learner/learner_impl.h"

namespace hasten::learner {

Learner::Impl::Impl(Loaders own_loaders, AnyModel own_model, LearnerOptions own_options)
    : loaders(std::move(own_loaders)), model(std::move(own_model)), options(std::move(own_options)) {
  if (!options.accelerator) error_report = process::report_errors_alone(Environment::current());
  if (!options.loss && !options.loss_of_all) options.loss = loaders.loss;
  if (!model)
    throw UsageError(Origin{"learner"}, "a Learner without a model; give it a module holder or a shared_ptr.");
  groups =
      layer_groups(*model.module(), options.splitter, {.wd_bn_bias = options.wd_bn_bias, .train_bn = options.train_bn});
  if (options.default_cbs) {
    add(entry_of(TrainEval()));
    add(entry_of(Recorder()));
    add(entry_of(Progress()));
  }
  for (const auto& entry : options.cbs) add(entry);
  options.cbs.clear();
}

Learner::Learner(Loaders loaders, AnyModel model, LearnerOptions options)
    : impl_(std::make_shared<Impl>(std::move(loaders), std::move(model), std::move(options))) {
  // Aliases without owning: the Impl must not keep itself alive.
  impl_->self.impl_ = std::shared_ptr<Impl>(std::shared_ptr<void>(), impl_.get());
  if (!impl_->options.loss && !impl_->options.loss_of_all) {
    throw UsageError(Origin{"learner"},
                     "a Learner without a loss, and none in the data; set LearnerOptions::loss, for example "
                     "learner::cross_entropy().");
  }
  impl_->event(Event::kAfterCreate);
}

}  // namespace hasten::learner
