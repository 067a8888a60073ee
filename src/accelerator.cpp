// What the front door keeps: the process, the gradient state, the models it has distributed. See
// accelerator.h.
#include "hasten/accelerator.h"

#include <c10/util/ScopeExit.h>

#include "hasten/core/error.h"
#include "hasten/memory/allocator.h"
#include "hasten/parallel/shard/prepare_sharding.h"
#include "hasten/process/random.h"
#include "mixed_precision.h"
#include "read_options.h"
#include "shard_front.h"

namespace hasten {
namespace {

process::Process make_process(const ReadOptions& read) {
  const auto& options = read.options;
  return process::Process(
      {.cpu = options.cpu, .timeout = options.timeout, .check = options.check, .backend = options.backend},
      read.environment);
}

}  // namespace

struct Accelerator::Impl {
  Impl(const ReadOptions& read, int world_size) : options(read.options), shards(options, read.environment, world_size) {}
  AcceleratorOptions options;
  ShardFront shards;
  training::Accumulation accumulation{accumulation_options(options)};
  parallel::DistributedModels models = {};
  parallel::OptimizerRegistry optimizer_registry = {};
  std::shared_ptr<MixedPrecision> precision = {};
};

Accelerator::Accelerator(const AcceleratorOptions& options)
    : Accelerator(read_options(options, Environment::current()), std::nullopt) {}

Accelerator::Accelerator(process::Process own, const AcceleratorOptions& options)
    : Accelerator(read_options(options, Environment::current()), std::move(own)) {}

Accelerator::Accelerator(const ReadOptions& read, std::optional<process::Process> own)
    : AcceleratorBase(own ? *std::move(own) : make_process(read)),
      impl_(std::make_shared<Impl>(read, world_size())) {
  const auto& shards = impl_->shards;
  if (shards.uses_fsdp()) set_sharded_by(DistributedType::kFsdp);
  if (shards.uses_deepspeed()) set_sharded_by(DistributedType::kDeepSpeed);
  shards.log_notes(logger("shard"));
  set_sharding(parallel::make_sharding(process().group(), options().shard, *shared_gradient_state(),
                                       options().optimizer, shards.splits_later()));
  if (options().seed) process::set_seed(process(), *options().seed);
  impl_->precision = std::make_shared<MixedPrecision>(options(), read.environment, process(), shared_gradient_state(),
                                                      impl_->models, logger("precision"));
  impl_->precision->start(options(), optimizer_registry(), sharding() != nullptr);
  parallel::share_casts(sharding(), impl_->precision->precision());
  impl_->shards.clip_steps(*shared_gradient_state(), [shared = sharding(), precision = impl_->precision](const auto& parameters, double max_norm) {
    precision->clip_grad_norm_(parameters, 2.0, [&] { return parallel::clip_grad_norm_(shared, parameters, max_norm, 2.0); });
  });
  if (device().is_cpu()) {
    const auto setting = memory::tune_malloc(read.environment, options().tune_allocator);
    logger("accelerator").info(memory::describe(setting));
  }
}

void Accelerator::backward(const at::Tensor& loss, const parallel::BackwardOptions& options) const {
  impl_->shards.require_filled();
  parallel::BackwardContext context{.models = impl_->models.all(),
                                    .group = process().group(),
                                    .num_batches = impl_->accumulation.options().num_steps,
                                    .ends_window = sync_gradients(),
                                    .optimizer_calls = gradient_state().num_optimizer_calls()};
  parallel::BackwardOptions own = options;
  Models held;
  if (is_joining()) {
    own.weight = options.weight.value_or(1.0);
    const auto active = announce(parallel::describe(context));
    for (const auto& model : context.models) model->set_active(active.first(), active.all_of(world_size()));
    held = parallel::keep_window_open(active.call, context);
    shared_gradient_state()->set_sync_gradients(context.ends_window);
  }
  const parallel::NoSync until_all_end(std::move(held));
  if (own.weight) shared_gradient_state()->set_weighted();
  // Autocast is off in backward, whatever scope the caller has left open.
  const auto scope = precision::Autocast::off();
  parallel::backward(loss.defined() ? impl_->precision->begin_backward(loss) : loss, own, context);
}

void Accelerator::join(const std::function<void()>& fn, const parallel::JoinOptions& options) const {
  refuse_in_join("join_uneven_inputs");
  impl_->precision->require_whole_weights("join_uneven_inputs");
  const auto scope = std::make_shared<parallel::Join>(process().group());
  set_join(scope);
  const auto leave = c10::make_scope_exit([this] { set_join(nullptr); });
  parallel::run_joined(*scope, fn, options,
                       {.group = process().group(),
                        .models = impl_->models,
                        .optimizer_registry = impl_->optimizer_registry,
                        .accumulation = impl_->accumulation,
                        .gradients = *shared_gradient_state(),
                        .answer = [this](const auto& call, const auto& active) { answer(call, active); }});
}

parallel::OptimizerRegistry& Accelerator::optimizer_registry() const noexcept {
  return impl_->optimizer_registry;
}

parallel::NoSync Accelerator::accumulate(Models models) const {
  impl_->accumulation.next(*shared_gradient_state());
  if (sync_gradients()) return parallel::NoSync();
  return no_sync(std::move(models), impl_->accumulation.options().sync_each_batch);
}

parallel::NoSync Accelerator::no_sync(Models models, bool exchanges) const {
  exchanges = exchanges || parallel::exchanges_each_backward(sharding());
  return parallel::NoSync(models.empty() ? impl_->models.all() : std::move(models), exchanges);
}

void Accelerator::require_ours(const std::shared_ptr<const parallel::Ddp>& ddp) const {
  impl_->models.require(ddp);
}

double Accelerator::clip_grad_norm_(const std::vector<at::Tensor>& parameters, double max_norm,
                                    double norm_type) const {
  if (sync_gradients()) impl_->shards.note_clipped();
  return impl_->precision->clip_grad_norm_(parameters, norm_type, [&] {
    return parallel::clip_grad_norm_(sharding(), parameters, max_norm, norm_type);
  });
}

void Accelerator::clip_grad_value_(const std::vector<at::Tensor>& parameters, double clip_value) const {
  impl_->precision->unscale(parameters);
  parallel::clip_grad_value_(sharding(), parameters, clip_value);
}

void Accelerator::free_memory() const {
  memory::give_back_freed_memory();
}

std::shared_ptr<const parallel::Ddp> Accelerator::distribute(torch::nn::Module& module, bool place) const {
  if (!impl_->models.contains(module)) refuse_in_join("prepare of a model");
  if (place) module.to(device());
  impl_->precision->convert(module);
  return impl_->models.distribute(module, process().group(), parallel::with_sharding(options().ddp, sharding()));
}

const plan::DeepSpeedSettings& Accelerator::deepspeed_plugin() const { return impl_->shards.selected(); }
void Accelerator::select_deepspeed_plugin(const std::string& name) const { impl_->shards.select(name, sharding()); }
void Accelerator::fill_auto(const plan::AutoInputs& known) const { impl_->shards.fill(known); }
std::shared_ptr<torch::optim::Optimizer> Accelerator::make_real(const parallel::DummyOptim& dummy) const {
  return impl_->shards.make_real(dummy);
}
std::shared_ptr<optim::Scheduler> Accelerator::make_real(const parallel::DummyScheduler& dummy) const {
  return impl_->shards.make_real(dummy);
}

const optim::LowWeights* Accelerator::low_weights() const noexcept {
  return impl_->precision->low_weights().get();
}

Precision Accelerator::mixed_precision() const noexcept {
  return impl_->precision->precision();
}

precision::Autocast Accelerator::autocast(const std::optional<precision::AutocastOptions>& options) const {
  return impl_->precision->autocast(options);
}

const precision::GradScaler* Accelerator::scaler() const {
  auto* scaler = impl_->precision->scaler();
  if (scaler == nullptr) return nullptr;
  scaler->settle();
  return &scaler->scaler();
}

std::optional<precision::GradScalerState> Accelerator::scaler_state() const {
  const auto* scaler = impl_->precision->scaler();
  return scaler == nullptr ? std::nullopt : std::optional(scaler->state());
}

void Accelerator::load_scaler_state(const precision::GradScalerState& state) const {
  auto* scaler = impl_->precision->scaler();
  if (scaler == nullptr) {
    throw UsageError(Origin{"accelerator"}, "the state of a gradient scaler for an Accelerator that scales no losses; expected "
                     "mixed_precision fp16. Leave the state out, or set the precision.");
  }
  scaler->load_state(state);
}

void Accelerator::unscale_gradients() const {
  if (auto* scaler = impl_->precision->scaler()) scaler->unscale_all();
}

void Accelerator::unscale_gradients(torch::optim::Optimizer& optimizer) const {
  if (auto* scaler = impl_->precision->scaler()) scaler->unscale_(optimizer);
}

parallel::LocalSgdOptions Accelerator::local_sgd_options(parallel::LocalSgdOptions options) const {
  impl_->precision->require_whole_weights("local_sgd");
  options.on_average = [precision = impl_->precision, then = options.on_average] {
    precision->share_least_scale();
    if (then) then();
  };
  return options;
}

std::shared_ptr<parallel::ForwardScopes> Accelerator::scopes_of(torch::nn::Module& module) const {
  return impl_->precision->scopes(module);
}

void Accelerator::add_optimizer(const std::shared_ptr<torch::optim::Optimizer>& optimizer) const {
  optimizer_registry().add(optimizer);
  impl_->precision->add(optimizer);
}

data::LoaderOptions Accelerator::loader_options(bool place) const {
  return hasten::loader_options(options(), place);
}

optim::PreparedSchedulerOptions Accelerator::scheduler_options() const {
  return hasten::scheduler_options(options(), world_size());
}

const AcceleratorOptions& Accelerator::options() const noexcept {
  return impl_->options;
}

}  // namespace hasten
