// See advice.h.
#include "accelerator/advice.h"

#include <c10/util/Type.h>

#include <algorithm>
#include <typeinfo>
#include <utility>

#include "hasten/core/count_text.h"
#include "hasten/core/text.h"

namespace hasten {
namespace {

bool trains(const at::Tensor& parameter) {
  return parameter.defined() && parameter.requires_grad();
}

}  // namespace

void Advice::note_model(const torch::nn::Module& module) {
  has_model_ = true;
  for (const at::Tensor& parameter : module.parameters()) {
    if (!parameter.defined()) continue;
    of_models_.insert(parameter.unsafeGetTensorImpl());
    trains_a_model_ = trains_a_model_ || parameter.requires_grad();
  }
}

void Advice::note_optimizer(const torch::optim::Optimizer& optimizer) {
  NotedOptimizer noted{.name = c10::demangle(typeid(optimizer).name())};
  for (const auto& group : optimizer.param_groups()) {
    std::copy_if(group.params().begin(), group.params().end(), std::back_inserter(noted.parameters), trains);
  }
  optimizers_.push_back(std::move(noted));
}

void Advice::check_optimizers() {
  const auto is_foreign = [this](const at::Tensor& parameter) {
    return of_models_.count(parameter.unsafeGetTensorImpl()) == 0;
  };
  const auto noted = std::exchange(optimizers_, {});
  std::vector<int64_t> foreign;
  for (const NotedOptimizer& one : noted) {
    foreign.push_back(std::count_if(one.parameters.begin(), one.parameters.end(), is_foreign));
    steps_models_ = steps_models_ || foreign.back() < static_cast<int64_t>(one.parameters.size());
  }
  for (size_t i = 0; i < noted.size(); ++i) {
    const NotedOptimizer& one = noted[i];
    if (one.parameters.empty()) {
      log_.warning(text(one.name,
                        " has no parameter that requires a gradient, so that its steps change nothing. Make it of the "
                        "model's parameters()."));
    }
    if (foreign[i] == 0) continue;
    const auto first = std::find_if(one.parameters.begin(), one.parameters.end(), is_foreign);
    const std::string what = text(one.name, " steps ", foreign[i], " of its ", one.parameters.size(),
                                  " parameters in no prepared model (the first is [", join(first->sizes()), "])");
    if (world_size_ > 1) {
      log_.warning(text(what,
                        ", so that their gradients stay those of each rank. Pass their model through "
                        "accelerator.prepare, or make the optimizer of the prepared model's parameters()."));
    } else if (trains_a_model_ && !steps_models_) {
      log_.warning(text(what,
                        ", and no prepared optimizer steps the prepared model, which does not train. Make the "
                        "optimizer of that model's parameters()."));
    }
  }
}

void Advice::before_backward(const Facts& facts) {
  ++backwards_;
  if (!optimizers_.empty()) check_optimizers();
  if (world_size_ > 1 && !has_loader_ && !std::exchange(said_loader_, true)) {
    log_.warning(
        text("no loader was prepared, so each of the ", world_size_,
             " ranks trains on whatever its program reads. Prepare the loader, which gives each rank its part, "
             "or give each rank its part of the data (data::DistributedSampler)."));
  }
  check_windows(facts);
  // A program that makes its own windows does not step between the first two backwards.
  if (backwards_ == 1) calls_before_ = facts.optimizer_calls;
  const bool steps_each = backwards_ == 2 && facts.optimizer_calls != calls_before_;
  if (facts.num_steps > 1 && steps_each && !accumulates_ && !std::exchange(said_accumulate_, true)) {
    log_.warning(text("gradient_accumulation_steps is ", facts.num_steps,
                      ", and accumulate() is not called: every step() ", "steps, with gradients of losses divided by ",
                      facts.num_steps, ". Open `const auto scope = accelerator.accumulate(model);` for each batch."));
  }
}

void Advice::check_windows(const Facts& facts) {
  const int64_t batches = batches_since_accumulate_ + 1;
  if (facts.num_steps > 1 && facts.is_accumulating && batches > facts.num_steps && !std::exchange(said_scope_, true)) {
    log_.warning(
        text("accumulate() was called once for ", count_text(batches, "batch"),
             ", and counts one, so that step() waits. Open `const auto scope = accelerator.accumulate(model);` "
             "inside of the loop, for each batch."));
  }
  unstepped_ = facts.optimizer_calls == calls_at_last_ ? unstepped_ + 1 : 1;
  calls_at_last_ = facts.optimizer_calls;
  constexpr int64_t kMostLosses = 4;
  if (facts.num_steps > 1 && !accumulates_ && unstepped_ > kMostLosses * facts.num_steps &&
      !std::exchange(said_accumulate_, true)) {
    log_.warning(
        text("gradient_accumulation_steps is ", facts.num_steps,
             ", so losses are divided by it, and neither accumulate() nor a prepared optimizer was called in ",
             count_text(unstepped_, "backward"),
             ". Open `const auto scope = accelerator.accumulate(model);` for each batch, and step the handle that "
             "prepare returned."));
  }
  if (facts.scales_loss && unstepped_ > kMostLosses && !std::exchange(said_scale_, true)) {
    log_.warning(
        text(count_text(unstepped_, "backward"),
             " in fp16 without a step() or zero_grad() of a prepared optimizer. Gradients are those of scaled "
             "losses until the prepared optimizer, clip_grad_norm_ or unscale_gradients divides them. Step the "
             "handle that prepare returned."));
  }
}

bool Advice::are_held_back() const {
  bool any = false;
  for (const auto& each : exchanges_) {
    const auto exchange = each.lock();
    if (!exchange) continue;
    if (!exchange->step().window().holds_back() || exchange->step().local_sgd().now || exchange->joined().is_joining())
      return false;
    any = true;
  }
  return any;
}

void Advice::before_step(training::StepContext&) {
  if (!optimizers_.empty()) check_optimizers();
  if (world_size_ == 1 || said_no_sync_ || !are_held_back()) return;
  said_no_sync_ = true;
  log_.warning(
      "a step inside of no_sync(): gradients are those of each rank, so that the ranks' parameters part. Step "
      "behind the scope, after a backward that exchanges.");
}

void Advice::at_end(int num_ranks) const {
  if (num_ranks == 1 || has_model_ || has_loader_) return;
  log_.warning(text("nothing was prepared by ", num_ranks,
                    " ranks: a training would have been one of each rank for itself. Pass model, optimizer and loader "
                    "through accelerator.prepare."));
}

}  // namespace hasten
