// See accelerator/preparation.h.
#include "hasten/accelerator/preparation.h"

#include <ATen/core/grad_mode.h>

#include <algorithm>

#include "accelerator/accelerator_state.h"
#include "hasten/core/error.h"
#include "hasten/parallel/tensor/tensor_parallel.h"

namespace hasten {

const AcceleratorOptions& Preparation::options() const noexcept {
  return state_->options;
}

const process::Process& Preparation::process() const noexcept {
  return state_->data_process;
}

const std::shared_ptr<training::GradientState>& Preparation::gradient_state() const noexcept {
  return state_->gradients;
}

std::shared_ptr<const parallel::Ddp> Preparation::distribute(torch::nn::Module& module, bool place) const {
  return state_->distribute(module, place);
}

std::shared_ptr<parallel::ForwardScopes> Preparation::scopes(torch::nn::Module& module) const {
  auto scopes = state_->precision->scopes(module);
  const auto cut = state_->cut_models.find(&module);
  if (cut != state_->cut_models.end() && !scopes->has(parallel::ForwardOrder::kParallel)) {
    scopes->add(parallel::ForwardOrder::kParallel, cut->second);
  }
  const auto stages = state_->pipelines.forward_hook(module);
  // Set below, once for all handles of the model.
  const bool is_new = !scopes->output;
  if (stages && is_new) scopes->add(parallel::ForwardOrder::kParallel, stages);
  if (state_->layout.divides_model()) {
    // Without gradients, outputs go to metrics and files, which take memory.
    scopes->output = [](const at::Tensor& tensor) {
      return at::GradMode::is_enabled() ? tensor : parallel::whole_value(parallel::value_everywhere(tensor));
    };
  }
  if (state_->layout.context().world_size() > 1) {
    scopes->input = [context = state_->context, dim = options().parallel.sequence_dim,
                     process = state_->process()](const at::Tensor& x) {
      if (x.defined()) return parallel::is_cut_value(x) ? x : context.cut(x, dim);
      throw UsageError(Origin{"accelerator", process.rank(), process.world_size()},
                       "a model without a tensor among its inputs, with cp or sp: there is no sequence to cut. Give "
                       "model(x) the tokens themselves, or set cp and sp to 1.");
    };
  }
  if (!scopes->has(parallel::ForwardOrder::kPhase)) {
    if (auto hook = state_->step_record->forward_hook()) scopes->add(parallel::ForwardOrder::kPhase, std::move(hook));
  }
  const auto& recompute = options().recompute;
  if (recompute.enabled && !scopes->has(parallel::ForwardOrder::kRecompute))
    scopes->add(parallel::ForwardOrder::kRecompute, parallel::recompute_hook(module, recompute));
  return scopes;
}

void Preparation::add_optimizer(const std::shared_ptr<torch::optim::Optimizer>& optimizer) const {
  state_->require_steps_of_parts(*optimizer);
  state_->advice->note_optimizer(*optimizer);
  const auto known = state_->optimizer_registry.optimizers();
  const bool is_known =
      std::any_of(known.begin(), known.end(), [&](const auto& one) { return one.second == optimizer; });
  state_->fit_state(*optimizer, [is_known](const at::Tensor&) { return !is_known; });
  state_->optimizer_registry.add(optimizer);
  state_->precision->add(optimizer);
}

parallel::OptimizerRegistry& Preparation::optimizer_registry() const noexcept {
  return state_->optimizer_registry;
}

void Preparation::check_loader(const data::LoaderDescription& mine, bool is_stream) const {
  state_->advice->note_loader();
  const auto& loader = options().loader;
  if (!loader.allow_empty) {
    data::LoaderDescription whole = mine;
    whole.drop_last = mine.drop_last || loader.drop_last;
    const int num_shares = loader.split_batches ? 1 : state_->layout.data().world_size();
    whole.step_samples = mine.batch_size * static_cast<size_t>(num_shares);
    data::warn_if_empty(process(), whole);
  }
  // Ranks that are dispatched to need no data.
  if (loader.dispatch_batches.value_or(is_stream && loader.put_on_device)) return;
  if (!state_->operations->is_joining()) data::check_same_loader(process(), mine);
}

bool Preparation::takes_objects() const noexcept {
  return state_->plugins->takes_objects();
}

void Preparation::fill_auto(const plan::AutoInputs& known) const {
  state_->plugins->fill(known);
}

std::shared_ptr<torch::optim::Optimizer> Preparation::make_real(const parallel::DummyOptim& dummy) const {
  return state_->plugins->make_real(dummy);
}

std::shared_ptr<optim::Scheduler> Preparation::make_real(const parallel::DummyScheduler& dummy) const {
  return state_->plugins->make_real(dummy);
}

data::LoaderOptions Preparation::loader_options(bool place) const {
  return hasten::loader_options(options(), place);
}

optim::PreparedSchedulerOptions Preparation::scheduler_options() const {
  return hasten::scheduler_options(options(), state_->data_process.world_size());
}

}  // namespace hasten
