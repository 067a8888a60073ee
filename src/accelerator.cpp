// What the front door keeps: the process, the gradient state, the models it has distributed. See
// accelerator.h.
#include "hasten/accelerator.h"

#include <map>

#include "hasten/core/env.h"
#include "hasten/core/error.h"
#include "hasten/state/allocator.h"
#include "hasten/state/random.h"

namespace hasten {
namespace {

void check_options(const AcceleratorOptions& options, const Environment& environment) {
  const auto variable = environment.choice("ACCELERATE_MIXED_PRECISION", {"no", "fp16", "bf16", "fp8"});
  if (options.mixed_precision == Precision::kNo && variable.value_or("no") == "no") return;
  const std::string asked = options.mixed_precision != Precision::kNo
                                ? "AcceleratorOptions::mixed_precision"
                                : "ACCELERATE_MIXED_PRECISION=" + *variable;
  throw UsageError(Origin{"accelerator"}, asked,
                   " asks for mixed precision, which this version does not have yet. Set it to no.");
}

state::Process make_process(const AcceleratorOptions& options) {
  check_options(options, Environment::current());
  return state::Process({.cpu = options.cpu, .timeout = options.timeout, .check = options.check});
}

}  // namespace

struct Accelerator::Impl {
  state::Process process;
  comm::Group group;
  AcceleratorOptions options;
  std::shared_ptr<state::GradientState> gradient_state = std::make_shared<state::GradientState>();
  std::map<torch::nn::Module*, std::weak_ptr<const parallel::Ddp>> distributed = {};
};

Accelerator::Accelerator(const AcceleratorOptions& options) : Accelerator(make_process(options), options) {}

Accelerator::Accelerator(state::Process process, const AcceleratorOptions& options) {
  check_options(options, Environment::current());
  if (options.seed) state::set_seed(process, *options.seed);
  if (process.device().is_cpu()) {
    const auto setting = state::keep_freed_memory(Environment::current(), options.tune_allocator);
    process.logger("accelerator").info(state::describe(setting));
  }
  auto group = process.group().with_check(true);
  impl_ = std::make_shared<Impl>(Impl{std::move(process), std::move(group), options});
}

void Accelerator::backward(const at::Tensor& loss) const {
  if (!loss.defined()) {
    throw UsageError(Origin{"accelerator", rank(), world_size()},
                     "backward of an undefined tensor; give it the loss.");
  }
  loss.backward();
}

void Accelerator::free_memory() const {
  state::give_back_freed_memory();
}

std::shared_ptr<const parallel::Ddp> Accelerator::distribute(torch::nn::Module& module) const {
  auto& known = impl_->distributed[&module];
  if (auto ddp = known.lock()) return ddp;
  if (options().device_placement) module.to(device());
  auto ddp =
      std::make_shared<const parallel::Ddp>(module, process().group(), options().ddp, impl_->gradient_state);
  known = ddp;
  return ddp;
}

data::LoaderOptions Accelerator::loader_options() const {
  return {.split_batches = options().split_batches,
          .even_batches = options().even_batches,
          .put_on_device = options().device_placement,
          .pin_memory = options().pin_memory,
          .non_blocking = options().non_blocking,
          .dispatch_batches = options().dispatch_batches,
          .use_stateful_dataloader = options().use_stateful_dataloader,
          .use_seedable_sampler = options().use_seedable_sampler,
          .data_seed = options().data_seed,
          .rng_types = options().rng_types};
}

const state::Process& Accelerator::process() const noexcept {
  return impl_->process;
}
const comm::Group& Accelerator::group() const noexcept {
  return impl_->group;
}
const state::GradientState& Accelerator::gradient_state() const noexcept {
  return *impl_->gradient_state;
}
const AcceleratorOptions& Accelerator::options() const noexcept {
  return impl_->options;
}
const std::shared_ptr<state::GradientState>& Accelerator::shared_gradient_state() const noexcept {
  return impl_->gradient_state;
}

}  // namespace hasten
