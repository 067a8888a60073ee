// See prepare_sharding.h.
#include "hasten/parallel/shard/prepare_sharding.h"

#include <ATen/Context.h>

#include "hasten/core/error.h"
#include "hasten/core/log.h"
#include "hasten/parallel/clip/clip.h"
#include "hasten/parallel/clip/clip_async.h"
#include "hasten/training/step_policy.h"

namespace hasten::parallel {
namespace {

// In the place of an optimizer's step: the collective one, on slices.
class StepsSlices : public training::StepPolicy {
 public:
  StepsSlices(std::shared_ptr<Sharding> sharding, const optim::PreparedOptimizerOptions& options)
      : sharding_(std::move(sharding)), options_(options) {}

  bool step(training::StepContext& context) override {
    if (!sharding_->steps(context.optimizer)) return false;
    if (context.closure) {
      // The closure's forward needs the parameters, which slices replace in the step.
      const at::AutoGradMode with_grad(true);
      context.loss = context.closure();
    }
    sharding_->announce(
        {.kind = ShardCall::Kind::kStep, .optimizer = &context.optimizer, .first = context.gradient_factor});
    step_slices(*sharding_, context.optimizer, context.gradient_factor, options_);
    return true;
  }

 private:
  std::shared_ptr<Sharding> sharding_;
  optim::PreparedOptimizerOptions options_;
};

}  // namespace

void step_slices(Sharding& sharding, torch::optim::Optimizer& optimizer, double factor,
                 const optim::PreparedOptimizerOptions& options) {
  if (factor != 1.0) {
    for (const auto& group : optimizer.param_groups()) sharding.scale_gradients_(group.params(), factor);
  }
  sharding.step(optimizer, [&] { return optim::optimizer_step(optimizer, options); });
}

std::shared_ptr<Sharding> make_sharding(const comm::Group& group, const ShardOptions& options,
                                        training::GradientState& gradients,
                                        const optim::PreparedOptimizerOptions& optimizer, bool always) {
  const bool in_files = options.optimizer_offload.device == OffloadDevice::kFile ||
                        options.parameter_offload.device == OffloadDevice::kFile;
  if (options.stage == ShardStage::kNone && !always) return nullptr;
  if (group.world_size() == 1 && !in_files) {
    const auto is_on_host = [](const OffloadOptions& of) { return of.device == OffloadDevice::kCpu; };
    if (at::globalContext().hasCUDA() &&
        (is_on_host(options.optimizer_offload) || is_on_host(options.parameter_offload)))
      Logger("shard").warning(
          "optimizer_offload and parameter_offload to the CPU need two ranks or more; one process keeps all on its "
          "device. Offload to files, or start more processes.");
    return nullptr;
  }
  auto sharding = std::make_shared<Sharding>(group, options);
  gradients.step_policies().add(training::StepOrder::kStep, std::make_shared<StepsSlices>(sharding, optimizer));
  return sharding;
}

void share_casts(const std::shared_ptr<Sharding>& sharding, precision::Precision precision) {
  if (!sharding) return;
  if (precision == precision::Precision::kBf16) sharding->set_param_dtype("bfloat16");
  if (precision == precision::Precision::kFp16) sharding->set_param_dtype("float16");
}

DdpOptions with_sharding(DdpOptions options, const std::shared_ptr<Sharding>& sharding) {
  if (!sharding || sharding->options().stage == ShardStage::kNone) return options;
  options.make_exchange = [sharding](const comm::Group& group) { return sharding->make_exchange(group); };
  return options;
}

bool exchanges_each_backward(const std::shared_ptr<Sharding>& sharding) noexcept {
  return sharding && sharding->exchanges_each_backward();
}

double clip_grad_norm_(const std::shared_ptr<Sharding>& sharding, const std::vector<at::Tensor>& parameters,
                       double max_norm, double norm_type) {
  if (sharding) return sharding->clip_grad_norm_(parameters, max_norm, norm_type);
  if (are_on_devices(parameters)) return clip_device_gradients_(parameters, max_norm, norm_type);
  return clip_gradients_(parameters, max_norm, {.norm_type = norm_type}).norm;
}

void clip_grad_value_(const std::shared_ptr<Sharding>& sharding, const std::vector<at::Tensor>& parameters,
                      double limit) {
  if (sharding) return sharding->clip_grad_value_(parameters, limit);
  clip_values_(parameters, limit);
}

bool has_finite_gradients(const std::shared_ptr<Sharding>& sharding, const std::vector<at::Tensor>& parameters) {
  return sharding ? sharding->has_finite_gradients(parameters) : gradient_norm(parameters).finite;
}

}  // namespace hasten::parallel
