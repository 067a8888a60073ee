// See learner/callbacks/training.h.
#include "hasten/learner/callbacks/training.h"

#include <ATen/ATen.h>
#include <torch/nn/modules/batchnorm.h>
#include <torch/nn/modules/dropout.h>

#include <csignal>

#include "hasten/comm/types/purpose.h"
#include "hasten/learner/learner.h"
#include "hasten/process/stop.h"
#include "learner/learner_impl.h"

namespace hasten::learner {

void TrainEval::after_create(Learner& learn) {
  learn.impl().state.n_epoch = 1;
}

void TrainEval::before_fit(Learner& learn) {
  auto& state = learn.impl().state;
  state.epoch = 0;
  state.train_iter = 0;
  state.pct_train = 0;
  state.loss = state.attached_loss = at::Tensor();
  learn.impl().require_ready();
  learn.model().reset();
}

void TrainEval::before_train(Learner& learn) {
  auto& state = learn.impl().state;
  state.pct_train = static_cast<double>(state.epoch) / static_cast<double>(state.n_epoch);
  state.training = true;
  learn.model().module()->train();
}

void TrainEval::before_validate(Learner& learn) {
  learn.impl().state.training = false;
  learn.model().module()->eval();
}

void TrainEval::after_batch(Learner& learn) {
  auto& state = learn.impl().state;
  ++state.train_iter;
  // From integers, so that a resumed fit and a long one have the same positions.
  state.pct_train = static_cast<double>(state.epoch * state.n_iter + state.iter + 1) /
                    static_cast<double>(state.n_iter * state.n_epoch);
}

void TerminateOnNaN::after_batch(Learner& learn) {
  const auto& accelerator = learn.accelerator();
  bool finite = learn.loss_is_finite();
  if (accelerator.world_size() > 1) {
    auto bad = at::full({1}, finite ? 0 : 1, at::kLong);
    const comm::Purpose purpose("terminate_on_nan");
    accelerator.group().all_reduce_(bad, comm::ReduceOp::kMax);
    finite = bad.item<int64_t>() == 0;
  }
  if (!finite) learn.cancel(Scope::kFit);
}

void ShortEpoch::after_batch(Learner& learn) {
  if (static_cast<double>(learn.iter()) / static_cast<double>(learn.n_iter()) < pct) return;
  if (learn.training())
    learn.cancel(Scope::kTrain);
  else if (short_valid)
    learn.cancel(Scope::kValid);
}

namespace {

template <class... Norms>
void freeze_statistics(torch::nn::Module& module) {
  const auto frozen = [](auto* norm) {
    if (norm != nullptr && norm->weight.defined() && !norm->weight.requires_grad()) norm->eval();
  };
  (frozen(dynamic_cast<Norms*>(&module)), ...);
}

}  // namespace

void BnFreeze::before_train(Learner& learn) {
  using namespace torch::nn;
  for (const auto& module : learn.model().module()->modules()) {
    freeze_statistics<BatchNorm1dImpl, BatchNorm2dImpl, BatchNorm3dImpl>(*module);
  }
}

void MCDropout::before_validate(Learner& learn) {
  for (const auto& module : learn.model().module()->modules()) {
    if (module->name().find("Dropout") != std::string::npos) module->train();
  }
}

void GradientClip::before_step(Learner& learn) {
  learn.accelerator().clip_grad_norm_(learn.model().module()->parameters(), max_norm, norm_type);
}

void GradientAccumulation::before_fit(Learner& learn) {
  if (options.n_acc < 1) {
    throw UsageError(Origin{"learner"}, "GradientAccumulation of ", options.n_acc, " samples; expected at least 1.");
  }
  count = 0;
  learn.impl().weighs_batches = false;
}

void GradientAccumulation::before_train(Learner& learn) {
  const auto steps = learn.accelerator().options().gradient_accumulation_steps;
  if (steps == 1) return;
  throw UsageError(Origin{"learner"}, "GradientAccumulation of ", options.n_acc,
                   " samples with an Accelerator of gradient_accumulation_steps = ", steps,
                   "; expected one of them. Remove the callback, or leave the option at 1.");
}

bool GradientAccumulation::steps_now(const Learner& learn) const {
  return count >= options.n_acc || (!options.as_fastai && learn.iter() + 1 == learn.n_iter());
}

void GradientAccumulation::after_loss(Learner& learn) {
  if (!learn.loss_grad().defined()) return;
  const int64_t samples = learn.targets().front().dim() == 0 ? 1 : learn.targets().front().size(0);
  count += samples;
  const auto divisor = options.as_fastai ? static_cast<double>(options.n_acc) : 1.0;
  learn.loss_grad() = learn.loss_grad() * (static_cast<double>(samples) / divisor);
  if (!steps_now(learn)) no_sync_ = std::make_shared<parallel::NoSync>(learn.accelerator().no_sync());
}

void GradientAccumulation::after_backward(Learner& /*learn*/) {
  no_sync_.reset();
}

void GradientAccumulation::before_step(Learner& learn) {
  if (!steps_now(learn)) return learn.cancel(Scope::kBatch);
  if (!options.as_fastai) {
    const at::NoGradGuard no_grad;
    for (const auto& parameter : learn.model().module()->parameters()) {
      if (parameter.grad().defined()) parameter.mutable_grad().div_(static_cast<double>(count));
    }
  }
  count = 0;
}

void GradientAccumulation::after_fit(Learner& learn) {
  no_sync_.reset();
  learn.impl().weighs_batches = true;
}

void ParamScheduler::before_fit(Learner& learn) {
  hps.clear();
  for (const auto& [name, functions] : schedules) {
    learn.hypers().get(name);  // refuses an unknown name before the first batch
    if (functions.size() != 1 && functions.size() != learn.hypers().num_groups()) {
      throw UsageError(Origin{"learner"}, functions.size(), " schedules for ", name, " with ",
                       learn.hypers().num_groups(), " layer groups (", join(learn.hypers().group_names()),
                       "); expected one, or one a group.");
    }
  }
}

void ParamScheduler::before_batch(Learner& learn) {
  auto& hypers = learn.hypers();
  const double position = learn.pct_train();
  for (const auto& [name, functions] : schedules) {
    for (size_t group = 0; group < hypers.num_groups(); ++group) {
      hypers.set(name, group, functions[functions.size() == 1 ? 0 : group](position));
    }
  }
}

void ParamScheduler::after_batch(Learner& learn) {
  for (const auto& [name, functions] : schedules) hps[name].push_back(learn.hypers().last(name));
}

void SkipToEpoch::before_epoch(Learner& learn) {
  if (learn.epoch() < start_epoch) learn.cancel(Scope::kEpoch);
}

StopOnSignal::StopOnSignal(StopOnSignalOptions given) : options(std::move(given)) {
  if (options.every < 1) {
    throw UsageError(Origin{"learner"}, "StopOnSignal with every ", options.every, "; expected at least 1 batch.");
  }
}

void StopOnSignal::before_fit(Learner& /*learn*/) {
  stopped = false;
  exit_code = 0;
  code_ = 0;
  interrupt_ = std::make_shared<process::StopSignals>(std::vector<int>{SIGINT});
  terminate_ = std::make_shared<process::StopSignals>(std::vector<int>{SIGTERM});
}

int64_t StopOnSignal::code_of_all(Learner& learn) const {
  constexpr int kSignalBase = 128;
  const auto& group = learn.accelerator().group();
  const auto came = [](const std::shared_ptr<void>& signals) {
    return std::static_pointer_cast<process::StopSignals>(signals)->received();
  };
  int64_t code = came(terminate_) ? kSignalBase + SIGTERM : came(interrupt_) ? kSignalBase + SIGINT : 0;
  if (group.world_size() > 1) {
    auto all = at::full({1}, code, at::kLong);
    const comm::Purpose purpose("checkpoint of the learner");
    group.all_reduce_(all, comm::ReduceOp::kMax);
    code = all.item<int64_t>();
  }
  return code;
}

void StopOnSignal::stop(Learner& learn) {
  stopped = true;
  exit_code = static_cast<int>(code_);
  if (saves(learn)) learn.save_checkpoint(options.checkpoint);
  learn.cancel(Scope::kFit);
}

bool StopOnSignal::saves(const Learner& learn) const {
  return !options.checkpoint.empty() && learn.train_iter() > 0;  // a validation alone has nothing to go on with
}

void StopOnSignal::after_batch(Learner& learn) {
  if (learn.is_unwinding() || stopped) return;
  const bool compares = (learn.iter() + 1) % options.every == 0 || learn.iter() + 1 == learn.n_iter();
  if (code_ == 0 && (compares || learn.accelerator().world_size() == 1)) code_ = code_of_all(learn);
  const bool can_be_saved = learn.training() && !learn.gradients_wait();
  if (code_ != 0 && (!saves(learn) || can_be_saved)) stop(learn);
}

void StopOnSignal::after_epoch(Learner& learn) {
  if (learn.is_unwinding() || stopped) return;
  if (code_ == 0) code_ = code_of_all(learn);
  if (code_ != 0 && !(saves(learn) && learn.gradients_wait())) stop(learn);
}

void StopOnSignal::after_fit(Learner& /*learn*/) {
  interrupt_.reset();
  terminate_.reset();
}

CheckpointEvery::CheckpointEvery(CheckpointEveryOptions given) : options(std::move(given)) {
  if (options.dir.empty() || options.steps < 0 || options.epochs < 0 || options.steps + options.epochs == 0) {
    throw UsageError(Origin{"learner"}, "checkpoint_every of ", options.steps, " steps and ", options.epochs,
                     " epochs into '", options.dir.string(),
                     "'; expected a folder, and a number of steps or epochs from 1 on.");
  }
}

void CheckpointEvery::before_fit(Learner& /*learn*/) {
  due_ = false;
}

void CheckpointEvery::after_batch(Learner& learn) {
  if (!learn.training() || learn.is_unwinding()) return;
  due_ = due_ || (options.steps > 0 && learn.train_iter() % options.steps == 0);
  if (due_ && !learn.gradients_wait()) save(learn);
}

void CheckpointEvery::after_epoch(Learner& learn) {
  if (learn.is_unwinding() || learn.train_iter() == 0) return;
  due_ = due_ || (options.epochs > 0 && (learn.epoch() + 1) % options.epochs == 0);
  if (due_ && !learn.gradients_wait()) save(learn);
}

void CheckpointEvery::save(Learner& learn) {
  due_ = false;
  learn.save_checkpoint(options.dir);
}

}  // namespace hasten::learner
