// The loop's work between its events: batches, forward, loss, backward and step, through the Accelerator.
#include <ATen/ATen.h>

#include <algorithm>

#include "hasten/precision/outputs.h"
#include "hasten/process/device.h"
#include "learner/learner_impl.h"

namespace hasten::learner {
namespace {

/// Returns a world of this process, whatever a launcher has started.
Accelerator alone() {
  const AcceleratorOptions options;
  return Accelerator(process::Process(process::RankInfo{}, comm::Group(), process::default_device()), options);
}

/// Drops the loaders of data that others have replaced.
void drop_former(Engine& engine, int64_t data_version) {
  if (std::exchange(engine.data_version, data_version) == data_version) return;
  engine.train.reset();
  engine.valid.reset();
}

}  // namespace

Engine& Learner::Impl::engine() {
  if (!current) {
    if (!own_engine) {
      own_engine = std::make_shared<Engine>(options.accelerator ? *options.accelerator : alone());
    }
    current = own_engine;
  }
  auto& used = *current;
  if (!used.model) used.model.emplace(used.accelerator.prepare(model.module()));
  if (optimizer && used.prepared_for != optimizer) {
    used.optimizer.reset();  // before the optimizer that it borrows
    used.prepared_for = optimizer;
    used.optimizer.emplace(used.accelerator.prepare(*optimizer));
  }
  return used;
}

PreparedLoader* Learner::Impl::train_loader() {
  auto& used = engine();
  drop_former(used, data_version);
  if (!used.train && loaders.train) used.train = loaders.train.prepare(used.accelerator, used.order);
  return used.train.get();
}

PreparedLoader* Learner::Impl::valid_loader() {
  auto& used = engine();
  drop_former(used, data_version);
  if (!used.valid && loaders.valid) used.valid = loaders.valid.prepare(used.accelerator);
  return used.valid.get();
}

void Learner::Impl::use(std::shared_ptr<Engine> other) {
  // Handles of one Accelerator must be gone before another's exchange the same parameters.
  if (current && current != other) {
    current->model.reset();
    current->optimizer.reset();
    current->prepared_for.reset();
  }
  current = std::move(other);
}

void Learner::Impl::begin_epoch(int64_t epoch) {
  state.epoch = epoch;
}

void Learner::Impl::begin_batches() {
  auto& used = engine();
  if (!state.training && other_source)
    other_loader = std::exchange(other_source, std::nullopt)->prepare(used.accelerator);
  if (state.training && probing && !probe) probe = loaders.train.prepare(used.accelerator, used.order);
  pass_ =
      state.training ? (probing ? probe.get() : train_loader()) : (other_loader ? other_loader.get() : valid_loader());
  state.n_iter = pass_ == nullptr ? 0 : static_cast<int64_t>(pass_->size());
  state.iter = state.training ? std::exchange(resume_iter, 0) - 1 : -1;
  if (pass_ == nullptr) return;
  if (state.training && pass_->size() == 0) {
    throw UsageError(Origin{"learner", used.accelerator.rank(), used.accelerator.world_size()},
                     "the training loader has no batches; give it samples, or leave drop_last off for fewer samples "
                     "than a batch has.");
  }
  pass_->begin();
  pass_open_ = true;
  if (state.training && accumulates() && !used.accelerator.gradient_state().in_dataloader()) {
    position_ = {};
    used.accelerator.operations().gradient_state()->loaders().enter(&position_);
  }
}

void Learner::Impl::open_window() {
  position_.end_of_dataloader = state.iter + 1 == state.n_iter;
  window_.reset();
  window_.emplace(current->accelerator.accumulate());
}

bool Learner::Impl::next_batch() {
  if (pass_ == nullptr) return false;
  if (!pass_->next(state.batch)) return false;
  ++state.iter;
  // Those of the batch before would be alive throughout this one's forward pass.
  state.predictions.clear();
  state.loss_grad.reset();
  if (state.batch.inputs.empty()) {
    throw UsageError(Origin{"learner"}, "batch ", state.iter, " of epoch ", state.epoch,
                     " has no inputs; expected at least one tensor.");
  }
  if (state.training && loaders.augment) state.batch = loaders.augment(state.batch);
  if (state.training && accumulates()) open_window();
  return true;
}

void Learner::Impl::end_batches() noexcept {
  window_.reset();
  if (current) current->accelerator.operations().gradient_state()->loaders().leave(&position_);
  if (pass_open_) pass_->end();
  pass_open_ = false;
  pass_ = nullptr;
}

Tensors Learner::Impl::call_model(const Tensors& inputs) {
  auto& prepared = *current->model;
  if (prepared.ddp()) parallel::before_forward(*prepared.ddp());
  const auto& scopes = prepared.scopes();
  if (!scopes) return model(inputs);
  const auto scope = scopes->enter(*model.module());
  auto outputs = model(scopes->input_dtype ? precision::cast_inputs(*scopes->input_dtype, inputs) : inputs);
  if (scopes->output_dtype) return precision::cast_inputs(*scopes->output_dtype, outputs);
  return scopes->float32_outputs ? precision::to_float32(outputs) : outputs;
}

void Learner::Impl::forward() {
  const at::AutoGradMode gradients(state.training);
  state.predictions = call_model(state.batch.inputs);
}

at::Tensor Learner::Impl::loss_of(const Tensors& outputs, const Tensors& targets) const {
  if (options.loss_of_all) return options.loss_of_all(outputs, targets);
  return options.loss(outputs.front(), targets.front());
}

void Learner::Impl::compute_loss() {
  const at::AutoGradMode gradients(state.training);
  state.loss_grad = loss_of(state.predictions, state.batch.targets);
  if (state.loss_grad.requires_grad()) {
    state.attached_loss = state.loss_grad;
  } else {
    state.attached_loss.reset();
    state.loss = state.loss_grad;
  }
}

void Learner::Impl::backward() {
  auto& used = *current;
  gradients_wait = true;
  if ((used.accelerator.world_size() == 1 && !accumulates()) || !weighs_batches)
    return used.accelerator.backward(state.loss_grad);
  // Batches of the ranks, or of a step, may differ in size: gradients are the mean over samples.
  used.accelerator.backward(state.loss_grad, {.weight = static_cast<double>(state.batch.size())});
}

bool Learner::Impl::steps() const {
  return !accumulates() || current->accelerator.sync_gradients();
}

void Learner::Impl::step() {
  current->optimizer->step();
}
void Learner::Impl::zero_grad() {
  current->optimizer->zero_grad();
  gradients_wait = false;
}

void Learner::Impl::forget() {
  state.batch = {};
  state.predictions.clear();
  state.loss = state.loss_grad = state.attached_loss = at::Tensor();
}

void Learner::Impl::require_ready() {
  const auto device = engine().accelerator.device();
  for (const auto& parameter : model.module()->named_parameters()) {
    if (parameter.value().device().type() != device.type()) {
      throw UsageError(Origin{"learner"}, "parameter '", parameter.key(), "' is on ", parameter.value().device(),
                       ", the Accelerator on ", device,
                       "; expected one device. Move the model, or leave device_placement on.");
    }
  }
}

}  // namespace hasten::learner
