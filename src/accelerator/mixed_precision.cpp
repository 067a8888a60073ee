// See accelerator/mixed_precision.h and clip_grad_norm_async.h.
#include "accelerator/mixed_precision.h"

#include <ATen/ops/full.h>
#include <torch/nn/module.h>
#include <torch/nn/modules/conv.h>

#include <algorithm>
#include <cmath>
#include <nlohmann/json.hpp>
#include <utility>

#include "hasten/clip_grad_norm_async.h"
#include "hasten/comm/types/purpose.h"
#include "hasten/core/error.h"
#include "hasten/core/text.h"
#include "hasten/parallel/clip/clip.h"
#include "hasten/parallel/clip/clip_async.h"
#include "hasten/parallel/model/jit_module.h"
#include "hasten/plan/module_tree.h"
#include "hasten/precision/known_limitations.h"
#include "hasten/precision/living_casts.h"

namespace hasten {
namespace {

bool has_convolutions(const torch::nn::Module& module) {
  const auto children = module.modules();
  return std::any_of(children.begin(), children.end(),
                     [](const auto& each) { return each->name().find("Conv") != std::string::npos; });
}

template <class Convolution>
const auto* options_of(const torch::nn::Module& module) {
  const auto* convolution = module.as<Convolution>();
  return convolution == nullptr ? nullptr : &convolution->options;
}

precision::ConvolutionFacts convolution_facts(const torch::nn::Module& module) {
  precision::ConvolutionFacts facts;
  for (const auto& each : module.modules()) {
    if (const auto* images = options_of<torch::nn::Conv2d>(*each)) {
      facts.dilated_or_grouped |=
          images->groups() > 1 || images->dilation()->at(0) > 1 || images->dilation()->at(1) > 1;
    } else if (const auto* volumes = options_of<torch::nn::Conv3d>(*each)) {
      facts.strided_volumes |= volumes->stride()->at(2) > 1;
    }
  }
  return facts;
}

int64_t sum_over(const comm::Group& group, int64_t own) {
  if (group.world_size() == 1) return own;
  const auto count = at::full({}, own, at::TensorOptions().dtype(at::kLong));
  const comm::Purpose purpose("the loss scale");
  group.all_reduce_(count);
  return count.item<int64_t>();
}

}  // namespace

/// Opens autocast round a forward, and records that one was entered.
class MixedPrecision::AutocastHook : public parallel::ForwardHook {
 public:
  AutocastHook(c10::DeviceType device, const precision::AutocastOptions& options)
      : device_(device), options_(options) {}
  std::unique_ptr<Entered> enter(torch::nn::Module&) override {
    was_entered_ = true;
    return std::make_unique<Open>(precision::Autocast(device_, options_));
  }
  bool take_entered() noexcept { return std::exchange(was_entered_, false); }

 private:
  struct Open : Entered {
    explicit Open(precision::Autocast own) : scope(std::move(own)) {}
    precision::Autocast scope;
  };
  c10::DeviceType device_;
  precision::AutocastOptions options_;
  bool was_entered_ = false;
};

/// Holds the marks of a module's parameters as long as its scopes exist; opens nothing.
struct MixedPrecision::CastsHook : parallel::ForwardHook {
  std::unique_ptr<Entered> enter(torch::nn::Module&) override { return nullptr; }
  std::optional<precision::LivingCasts> casts = {};
  std::optional<precision::Fp8Layers> fp8 = {};
};

/// Ends the windows of delayed scales behind optimizer steps. The ranks take the largest magnitudes of all, in one
/// message.
struct MixedPrecision::Fp8Windows : training::StepPolicy {
  Fp8Windows(comm::Group own, const precision::Fp8Options& given) : group(std::move(own)), options(given) {}
  void after_step(training::StepContext&) override {
    if (++windows % options.interval != 0) return;
    std::vector<precision::DelayedScales*> all;
    std::erase_if(hooks, [](const auto& hook) { return hook.expired(); });
    for (const auto& hook : hooks) {
      const auto own = hook.lock()->fp8->scales();
      all.insert(all.end(), own.begin(), own.end());
    }
    precision::collect_amax(all);
    auto amax = at::zeros({static_cast<int64_t>(all.size()), 3});
    auto* values = amax.mutable_data_ptr<float>();
    for (size_t i = 0; i < all.size(); ++i) {
      values[3 * i] = all[i]->input_amax;
      values[3 * i + 1] = all[i]->weight_amax;
      values[3 * i + 2] = all[i]->gradient_amax;
    }
    const comm::Purpose purpose("scales of fp8");
    if (group.world_size() > 1 && !all.empty()) group.all_reduce_(amax, comm::ReduceOp::kMax);
    for (size_t i = 0; i < all.size(); ++i) {
      all[i]->input_amax = values[3 * i];
      all[i]->weight_amax = values[3 * i + 1];
      all[i]->gradient_amax = values[3 * i + 2];
      all[i]->end_window(options);
    }
  }
  comm::Group group;
  precision::Fp8Options options;
  std::vector<std::weak_ptr<CastsHook>> hooks = {};
  int64_t windows = 0;
};

MixedPrecision::MixedPrecision(const AcceleratorOptions& options, const Environment& environment,
                               const process::Process& process, std::shared_ptr<training::GradientState> gradients,
                               const parallel::DistributedModels& models, Logger log)
    : options_(options.precision),
      autocast_(options.autocast),
      fp8_(options.fp8),
      resolved_(precision::resolve(options.mixed_precision, environment.text("ACCELERATE_MIXED_PRECISION"),
                                   precision::device_facts(process.device()))),
      device_(process.device()),
      group_(process.group()),
      gradients_(std::move(gradients)),
      models_(&models),
      log_(std::move(log)) {
  if (resolved_.precision == Precision::kNo) return;
  log_.info(text("mixed_precision ", precision::name_of(resolved_.precision), ", from ", resolved_.source));
  if (!autocast_.dtype) autocast_.dtype = precision::compute_dtype(resolved_.precision);
  hook_ = std::make_shared<AutocastHook>(device_.type(), autocast_);
}

/// The scaler as the registry takes it. Factors and interval come from the state too, as PyTorch's load_state_dict has
/// it.
struct MixedPrecision::JoinedScaler {
  std::shared_ptr<precision::WindowScaler> scaler;
  precision::GradScalerState state() const { return scaler->state(); }
  void load_state(const precision::GradScalerState& state) const {
    if (scaler->state().enabled && state.enabled) scaler->load_state(state);
  }
};

void MixedPrecision::start(const AcceleratorOptions& options, parallel::OptimizerRegistry& registry, bool sharded,
                           const comm::Group& model) {
  sharded_ = sharded;
  model_group_ = model;
  if (options_.weights != precision::Weights::kParameter) {
    if (sharded) {
      throw UsageError(Origin{"accelerator"},
                       "weights below float32 together with sharded parameters; expected one of them. "
                       "Use Weights::kParameter, and the sharding's own param dtype.");
    }
    const auto dtype = resolved_.precision == Precision::kFp16 ? at::kHalf : at::kBFloat16;
    low_weights_ =
        std::make_shared<optim::LowWeights>(optim::LowWeightsOptions{.form = options_.weights,
                                                                     .dtype = dtype,
                                                                     .states = options_.states.value_or(at::kFloat),
                                                                     .seed = options.seed.value_or(0),
                                                                     .maximize = options.optimizer.maximize});
    gradients_->step_policies().add(training::StepOrder::kStep, low_weights_);
  }
  if (resolved_.precision != Precision::kFp16) return;
  const std::weak_ptr<const MixedPrecision> weak = weak_from_this();
  scaler_ = std::make_shared<precision::WindowScaler>(
      options.scaler,
      precision::WindowScalerHooks{.ends_window =
                                       [weak] {
                                         const auto own = weak.lock();
                                         return !own || own->gradients_->sync_gradients();
                                       },
                                   .sum_overflows =
                                       [weak](const torch::optim::Optimizer& optimizer, int64_t count) {
                                         const auto own = weak.lock();
                                         return own ? own->sum_overflows(optimizer, count) : count;
                                       },
                                   .name_of =
                                       [weak](const at::Tensor& parameter) {
                                         const auto own = weak.lock();
                                         return own ? own->name_of(parameter) : std::string();
                                       },
                                   .warn = [log = log_](const std::string& words) { log.warning(words); }});
  gradients_->step_policies().add(training::StepOrder::kUnscale, scaler_);
  joined_ = std::make_shared<JoinedScaler>(JoinedScaler{scaler_});
  registry.add(training::StateKind::kScaler, joined_);
}

std::shared_ptr<parallel::ForwardScopes> MixedPrecision::scopes(torch::nn::Module& module) {
  std::erase_if(scopes_, [](const auto& item) { return item.second.expired(); });
  if (const auto found = scopes_.find(&module); found != scopes_.end()) return found->second.lock();
  auto scopes = std::make_shared<parallel::ForwardScopes>();
  scopes_[&module] = scopes;
  scopes->output_dtype = options_.output_dtype;
  if (low_weights_) {
    scopes->input_dtype = resolved_.precision == Precision::kFp16 ? at::kHalf : at::kBFloat16;
    scopes->float32_outputs = options_.outputs == precision::Outputs::kFloat32;
  }
  if (!hook_) return scopes;
  scopes->add(parallel::ForwardOrder::kAutocast, hook_);
  scopes->float32_outputs = options_.outputs == precision::Outputs::kFloat32;
  if (options_.cast_inputs && !scopes->input_dtype) scopes->input_dtype = precision::compute_dtype(resolved_.precision);
  mark(module, *scopes);
  const auto facts = precision::device_facts(device_);
  if (const auto note = precision::speed_note(facts, resolved_.precision, has_convolutions(module)))
    log_.warning_once(*note);
  for (const auto& note : precision::known_limitations(facts, resolved_.precision, convolution_facts(module)))
    log_.warning_once(note);
  if (device_.is_cpu()) warn_of_unsupported(module);
  return scopes;
}

void MixedPrecision::warn_of_unsupported(const torch::nn::Module& module) const {
  const auto dtype = precision::compute_dtype(resolved_.precision);
  if (!dtype) return;
  const auto classes = precision::compute_unsupported_in_float32(*dtype);
  const auto modules = module.modules();
  for (const std::string& name : classes) {
    const bool has_one = std::any_of(modules.begin(), modules.end(),
                                     [&](const auto& each) { return plan::short_class_name(each->name()) == name; });
    if (!has_one) continue;
    log_.warning_once(text(name, " cannot run in ", precision::name_of(resolved_.precision),
                           " on this CPU; it is computed in float32."));
  }
}

void MixedPrecision::mark(torch::nn::Module& module, parallel::ForwardScopes& scopes) {
  // Sharded parameters have stand-ins of their own, and TorchScript's parameters are left to libtorch.
  if (sharded_ || dynamic_cast<parallel::JitModuleImpl*>(&module) != nullptr) return;
  auto hook = std::make_shared<CastsHook>();
  if (resolved_.precision == Precision::kFp8) hook->fp8.emplace(module, fp8_);
  if (options_.living_casts) hook->casts.emplace(module);
  if (hook->fp8 && fp8_.recipe == precision::Fp8Recipe::kDelayed) {
    if (!fp8_windows_) {
      fp8_windows_ = std::make_shared<Fp8Windows>(group_, fp8_);
      gradients_->step_policies().add(training::StepOrder::kAfter, fp8_windows_);
    }
    fp8_windows_->hooks.push_back(hook);
  }
  scopes.add(parallel::ForwardOrder::kAutocast, std::move(hook));
}

precision::Autocast MixedPrecision::autocast(const std::optional<precision::AutocastOptions>& options) const {
  if (resolved_.precision == Precision::kNo) return precision::Autocast(precision::Autocast::captured());
  auto own = options.value_or(autocast_);
  if (!own.dtype) own.dtype = precision::compute_dtype(resolved_.precision);
  return precision::Autocast(device_.type(), own);
}

void MixedPrecision::convert(torch::nn::Module& module) {
  const int64_t num_cast = precision::cast_buffers(module, options_.buffers);
  if (num_cast > 0) log_.info(text(num_cast, " buffers of a model were cast"));
  if (!low_weights_) return;
  if (group_.world_size() > 1) {
    const at::NoGradGuard no_grad;
    const comm::Purpose purpose("weights below float32");
    for (const auto& parameter : module.parameters()) group_.broadcast_(parameter.detach(), 0);
  }
  low_weights_->convert(module);
}

void MixedPrecision::require_whole_weights(const char* what) const {
  if (!low_weights_) return;
  throw UsageError(Origin{"accelerator"}, what,
                   " with weights below float32, whose other halves it does not take along. Use "
                   "Weights::kParameter.");
}

void MixedPrecision::add(const std::shared_ptr<torch::optim::Optimizer>& optimizer) {
  if (low_weights_) optim::LowWeights::require(*optimizer);
  if (scaler_) scaler_->add(optimizer);
}

at::Tensor MixedPrecision::begin_backward(const at::Tensor& loss) {
  if (hook_ && !hook_->take_entered() && !models_->all().empty()) {
    log_.warning_once(
        text("backward of a loss that no prepared model has computed since the last one: net(x) past the handle "
             "runs in float32. Call model(x), with model from prepare, for ",
             precision::name_of(resolved_.precision), '.'));
  }
  return scaler_ ? scaler_->begin_backward(loss) : loss;
}

double MixedPrecision::begin_scaled() {
  return scaler_ ? scaler_->begin_backward() : 1.0;
}

// Gradients of prepared models are the same on all ranks after their exchange, and so is what they overflow. Ranks of
// one model have parts of them, and step together.
int64_t MixedPrecision::sum_overflows(const torch::optim::Optimizer& optimizer, int64_t own) const {
  if (group_.world_size() == 1) return own;
  for (const auto& model : models_->all()) {
    if (model->joined().is_joining() || model->step().local_sgd().now || model->step().window().holds_back())
      return sum_over(model_group_, own);
  }
  bool whole = !sharded_;
  for (const auto& group : optimizer.param_groups()) {
    for (const auto& parameter : group.params()) {
      bool exchanged = false;
      for (const auto& model : models_->all()) {
        const auto& known = model->parameters();
        exchanged = exchanged || std::any_of(known.begin(), known.end(),
                                             [&](const at::Tensor& one) { return one.is_same(parameter); });
      }
      whole = whole && exchanged;
    }
  }
  return whole ? own : sum_over(group_, own);
}

std::string MixedPrecision::name_of(const at::Tensor& parameter) const {
  for (auto* module : models_->modules()) {
    for (const auto& item : module->named_parameters()) {
      if (item.value().is_same(parameter)) return item.key();
    }
  }
  return {};
}

void MixedPrecision::share_least_scale() {
  if (!scaler_ || !scaler_->scaler().is_enabled() || group_.world_size() == 1) return;
  scaler_->settle();
  auto state = scaler_->state();
  const auto least = at::full({}, state.scale, at::TensorOptions().dtype(at::kDouble));
  const comm::Purpose purpose("the loss scale");
  group_.all_reduce_(least, comm::ReduceOp::kMin);
  if (least.item<double>() != state.scale) state.growth_tracker = 0;
  const auto tracker = at::full({}, state.growth_tracker, at::TensorOptions().dtype(at::kLong));
  group_.all_reduce_(tracker, comm::ReduceOp::kMin);
  state.scale = least.item<double>();
  state.growth_tracker = tracker.item<int64_t>();
  scaler_->load_state(state);
}

void MixedPrecision::unscale(const std::vector<at::Tensor>& parameters) {
  if (!scaler_) return;
  for (auto* optimizer : scaler_->owners(parameters)) scaler_->unscale_(*optimizer);
}

void MixedPrecision::unscale(torch::optim::Optimizer& optimizer) {
  if (scaler_) scaler_->unscale_(optimizer);
}

void MixedPrecision::unscale_all() {
  if (scaler_) scaler_->unscale_all();
}

const precision::GradScaler* MixedPrecision::settled_scaler() const {
  if (!scaler_) return nullptr;
  scaler_->settle();
  return &scaler_->scaler();
}

std::optional<precision::GradScalerState> MixedPrecision::scaler_state() const {
  return scaler_ ? std::optional(scaler_->state()) : std::nullopt;
}

void MixedPrecision::load_scaler_state(const precision::GradScalerState& state) const {
  if (!scaler_) {
    throw UsageError(Origin{"accelerator"},
                     "the state of a gradient scaler for an Accelerator that scales no losses; expected "
                     "mixed_precision fp16. Leave the state out, or set the precision.");
  }
  scaler_->load_state(state);
}

double MixedPrecision::clip_grad_norm_(const std::vector<at::Tensor>& parameters, double norm_type,
                                       const std::function<double()>& clip) {
  if (scaler_ && scaler_->scaler().is_enabled() && !gradients_->sync_gradients()) {
    if (model_group_.world_size() > 1) return clip() / scaler_->window_scale();
    return parallel::gradient_norm(parameters, {.norm_type = norm_type}).norm / scaler_->window_scale();
  }
  unscale(parameters);
  return clip();
}

at::Tensor clip_grad_norm_async_(const Accelerator& accelerator, const std::vector<at::Tensor>& parameters,
                                 double max_norm, double norm_type) {
  const auto& parallel = accelerator.options().parallel;
  const bool is_cut = parallel.tp != 1 || parallel.pp != 1;
  const bool clips_steps =
      accelerator.preparation().takes_objects() || accelerator.distributed_type() == DistributedType::kMegatronLm;
  const bool has_to_wait = accelerator.sharding() != nullptr || accelerator.mixed_precision() == Precision::kFp16 ||
                           is_cut || clips_steps || norm_type != 2.0;
  if (!has_to_wait) return parallel::clip_gradients_async_(parameters, max_norm);
  const double norm = accelerator.clip_grad_norm_(parameters, max_norm, norm_type);
  const auto with_gradient =
      std::find_if(parameters.begin(), parameters.end(), [](const auto& each) { return each.grad().defined(); });
  const auto device = with_gradient == parameters.end() ? at::Device(at::kCPU) : with_gradient->grad().device();
  return at::full({}, norm, at::TensorOptions(device).dtype(at::kFloat));
}

}  // namespace hasten
