// The front door's functions: each forwards to a component of AcceleratorState. See accelerator.h.
#include "hasten/accelerator.h"

#include <ostream>
#include <utility>

#include "accelerator/accelerator_state.h"
#include "accelerator/read_options.h"
#include "accelerator/summary.h"
#include "hasten/memory/allocator.h"
#include "hasten/plugins/plugins.h"

namespace hasten {

Accelerator::Accelerator(const AcceleratorOptions& options)
    : Accelerator(AcceleratorState::make(options, Environment::current())) {}

Accelerator::Accelerator(process::Process own, const AcceleratorOptions& options)
    : Accelerator(std::make_shared<AcceleratorState>(read_options(options, Environment::current()),
                                                     std::optional(std::move(own)))) {}

Accelerator::Accelerator(std::shared_ptr<AcceleratorState> state)
    : state_(std::move(state)), operations_(state_->operations) {}

const AcceleratorOptions& Accelerator::options() const noexcept {
  return state_->options;
}

checkpoint::Checkpoints& Accelerator::checkpoints() const noexcept {
  return *state_->checkpoints;
}

const std::shared_ptr<parallel::Sharding>& Accelerator::sharding() const noexcept {
  return state_->sharding;
}

DistributedType Accelerator::distributed_type() const noexcept {
  return state_->distributed_type();
}

int Accelerator::tensor_parallel_rank() const {
  return state_->layout.rank_along(plan::Axis::kTp);
}

int Accelerator::data_parallel_rank() const {
  return state_->layout.rank_along(plan::Axis::kDpReplicate);
}

int Accelerator::data_parallel_shard_rank() const {
  return state_->layout.rank_along(plan::Axis::kDpShard);
}

int Accelerator::pipeline_parallel_rank() const {
  return state_->layout.rank_along(plan::Axis::kPp);
}

int Accelerator::context_parallel_rank() const {
  return state_->layout.rank_along_sequence();
}

const comm::DeviceMesh& Accelerator::mesh() const {
  return state_->layout.mesh();
}

at::Tensor Accelerator::cut_sequence(const parallel::SequenceTensor& tensor) const {
  return state_->context.cut(tensor.tensor, tensor.dim);
}

ParallelReport Accelerator::explain_parallel() const {
  return state_->explain_parallel();
}

const plan::DeepSpeedSettings& Accelerator::deepspeed_plugin() const {
  return state_->plugins->selected();
}

const plan::DeepSpeedSettings* Accelerator::find_deepspeed_plugin() const noexcept {
  return state_->plugins->find_selected();
}

void Accelerator::select_deepspeed_plugin(const std::string& name) const {
  state_->plugins->select(name, state_->sharding);
}

parallel::SurviveReport Accelerator::run_survived(const parallel::SurviveOptions& options,
                                                  const parallel::SurvivedLoop& loop,
                                                  const std::function<void(int64_t)>& after_epoch) const {
  return state_->survive(options, loop, after_epoch);
}

tracking::Trackers& Accelerator::trackers() const noexcept {
  return state_->trackers;
}

Logger Accelerator::logger(const std::string& name, std::optional<LogLevel> level) const {
  return state_->logger(name, level);
}

void Accelerator::backward(const at::Tensor& loss, const parallel::BackwardOptions& options) const {
  state_->backward(loss, options);
}

at::Tensor Accelerator::run_step(const PipelineStep& step, std::optional<double> weight) const {
  return state_->forward_backward(step, weight);
}

parallel::NoSync Accelerator::accumulate(Models models) const {
  return state_->accumulate(std::move(models));
}

parallel::NoSync Accelerator::no_sync(Models models) const {
  return state_->no_sync(std::move(models));
}

void Accelerator::join(const std::function<void()>& fn, const parallel::JoinOptions& options) const {
  state_->join_uneven_inputs(fn, options);
}

parallel::LocalSgdOptions Accelerator::local_sgd_options(parallel::LocalSgdOptions options) const {
  return state_->local_sgd_options(std::move(options));
}

checkpoint::GetStateDictOptions Accelerator::state_dict_options(const checkpoint::GetStateDictOptions& options) const {
  return state_->plugins->state_dict_options(options, mixed_precision());
}

void Accelerator::require_ours(const std::shared_ptr<const parallel::Ddp>& ddp) const {
  state_->models.require(ddp);
}

Precision Accelerator::mixed_precision() const noexcept {
  return state_->precision->precision();
}

precision::Autocast Accelerator::autocast(const std::optional<precision::AutocastOptions>& options) const {
  return state_->precision->autocast(options);
}

const optim::LowWeights* Accelerator::low_weights() const noexcept {
  return state_->precision->low_weights().get();
}

const precision::GradScaler* Accelerator::scaler() const {
  return state_->precision->settled_scaler();
}

std::optional<precision::GradScalerState> Accelerator::scaler_state() const {
  return state_->precision->scaler_state();
}

void Accelerator::load_scaler_state(const precision::GradScalerState& state) const {
  state_->precision->load_scaler_state(state);
}

void Accelerator::unscale_gradients() const {
  state_->precision->unscale_all();
}

void Accelerator::unscale_gradients(torch::optim::Optimizer& optimizer) const {
  state_->precision->unscale(optimizer);
}

double Accelerator::clip_grad_norm_(const std::vector<at::Tensor>& parameters, double max_norm,
                                    double norm_type) const {
  return state_->clip_grad_norm_(parameters, max_norm, norm_type);
}

void Accelerator::clip_grad_value_(const std::vector<at::Tensor>& parameters, double clip_value) const {
  state_->clip_grad_value_(parameters, clip_value);
}

void Accelerator::end_training() const {
  state_->end_training();
}

void Accelerator::free_memory() const {
  state_->optimizer_registry.clear();
  state_->accumulation.set_step(0);
  memory::give_back_freed_memory();
}

std::ostream& operator<<(std::ostream& out, const Accelerator& accelerator) {
  return out << summary_of(accelerator);
}

}  // namespace hasten
