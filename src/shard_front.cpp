// See shard_front.h.
#include "shard_front.h"

#include <algorithm>
#include <cmath>
#include <limits>

#include "hasten/core/error.h"
#include "hasten/optim/schedulers/deepspeed.h"
#include "hasten/parallel/shard/plugins.h"
#include "hasten/training/step_policy.h"

namespace hasten {
namespace {

const Origin kFront{"accelerator"};

/// The precision that the program or the launcher asks for; nothing if neither does. The launcher says "no" by itself, so
/// that counts as nothing.
std::optional<Precision> precision_of(const AcceleratorOptions& options, const Environment& environment) {
  const auto text = environment.text("ACCELERATE_MIXED_PRECISION");
  auto wanted = options.mixed_precision;
  if (!wanted && text) wanted = precision::parse_precision(*text, "ACCELERATE_MIXED_PRECISION");
  return wanted == Precision::kNo ? std::nullopt : wanted;
}

std::optional<c10::ScalarType> dtype_of(const std::string& name) {
  if (name == "fp16" || name == "float16") return c10::kHalf;
  if (name == "bf16" || name == "bfloat16") return c10::kBFloat16;
  return name.empty() ? std::nullopt : std::optional(c10::kFloat);
}

}  // namespace

/// Clips the gradients of the stepping optimizer, once a window.
class ShardFront::Clip : public training::StepPolicy {
 public:
  std::function<double()> limit;
  std::function<void(const std::vector<at::Tensor>&, double)> clip;
  bool was_clipped = false;

  void before_step(training::StepContext& context) override {
    const double max_norm = limit();
    if (context.skip || was_clipped || max_norm <= 0) return;
    std::vector<at::Tensor> parameters;
    for (const auto& group : context.optimizer.param_groups()) {
      parameters.insert(parameters.end(), group.params().begin(), group.params().end());
    }
    clip(parameters, max_norm);
  }
  void after_step(training::StepContext&) override { was_clipped = false; }
};

ShardFront::ShardFront(AcceleratorOptions& options, const Environment& environment, int world_size)
    : world_size_(world_size), split_batches_(options.loader.split_batches), base_(options.shard) {
  const bool fsdp = options.fsdp || environment.flag("ACCELERATE_USE_FSDP").value_or(false);
  const bool deepspeed = options.deepspeed || !options.deepspeed_plugins.empty() || environment.flag("ACCELERATE_USE_DEEPSPEED").value_or(false);
  if (fsdp && deepspeed) {
    throw UsageError(kFront, "both FSDP (AcceleratorOptions::fsdp, ACCELERATE_USE_FSDP) and DeepSpeed (AcceleratorOptions::deepspeed, "
                     "ACCELERATE_USE_DEEPSPEED) are asked for. Use one of them.");
  }
  if ((fsdp || deepspeed) && options.shard.stage != ShardStage::kNone) {
    throw UsageError(kFront, "AcceleratorOptions::shard has a stage beside ", fsdp ? "FSDP's" : "DeepSpeed's", " settings, which say it as well. Leave one out.");
  }
  if (fsdp) read_fsdp(options, environment);
  if (deepspeed) read_deepspeed(options, environment);
  gradient_accumulation_steps_ = options.gradient_accumulation_steps;
}

void ShardFront::read_fsdp(AcceleratorOptions& options, const Environment& environment) {
  fsdp_ = plan::resolve_fsdp(options.fsdp.value_or(plan::FsdpPlugin{}), environment);
  const auto wanted = precision_of(options, environment);
  if (wanted) plan::set_mixed_precision(*fsdp_, precision::name_of(*wanted));
  if (fsdp_->mixed_precision_policy) {
    const auto& policy = *fsdp_->mixed_precision_policy;
    if (!wanted && policy.param_dtype == "bfloat16") options.mixed_precision = Precision::kBf16;
    if (!wanted && policy.param_dtype == "float16") options.mixed_precision = Precision::kFp16;
    if (!policy.reduce_dtype.empty() && policy.reduce_dtype != "float32") {
      fsdp_->notes.push_back("reduce_dtype " + policy.reduce_dtype + ": gradients of one host are added up in float32 all the same");
    }
  }
  if (fsdp_->activation_checkpointing) fsdp_->notes.push_back("activation_checkpointing has no engine behind FSDP's settings yet: activations are kept");
  if (fsdp_->cpu_offload) fsdp_->notes.push_back("cpu_offload: on a CPU parameters are in its memory already");
  options.shard = parallel::shard_options(*fsdp_, options.shard);
}

void ShardFront::read_deepspeed(AcceleratorOptions& options, const Environment& environment) {
  if (options.deepspeed && !options.deepspeed_plugins.empty()) {
    throw UsageError(kFront, "both deepspeed and deepspeed_plugins are given. Give one plugin, or several by name.");
  }
  auto given = options.deepspeed_plugins;
  if (given.empty()) given.emplace_back("default", options.deepspeed.value_or(plan::DeepSpeedPlugin{}));
  const auto wanted = precision_of(options, environment);
  for (const auto& [name, plugin] : given) {
    auto settings = plan::resolve_deepspeed_plugin(plugin, environment);
    const bool fp16 = settings.config.is_true("fp16.enabled"), bf16 = settings.config.is_true("bf16.enabled");
    const std::string precision = wanted ? precision::name_of(*wanted) : fp16 ? "fp16" : bf16 ? "bf16" : "no";
    plan::set_mixed_precision(settings, precision);
    if (!wanted && precision != "no") options.mixed_precision = precision::parse_precision(precision, "DeepSpeed configuration");
    plan::fill_auto(settings, {.world_size = world_size_, .split_batches = split_batches_, .gradient_accumulation_steps = options.gradient_accumulation_steps, .has_model = false});
    plugins_.emplace_back(name, std::move(settings));
  }
  auto& first = plugins_.front().second;
  const auto resolved = plan::resolve_deepspeed(first.config, world_size_, false);
  plan::require_supported(resolved, first.config);
  if (resolved.is_given("gradient_accumulation_steps")) options.gradient_accumulation_steps = resolved.count("gradient_accumulation_steps");
  apply(resolved, options);
  options.shard = options_of(first);
}

// What stands in a configuration beside ZeRO.
void ShardFront::apply(const plan::ResolvedDeepSpeed& resolved, AcceleratorOptions& options) const {
  const auto communication = dtype_of(resolved.text("communication_data_type"));
  if (communication && *communication != c10::kFloat) options.ddp.communication_dtype = communication;
  if (resolved.on("prescale_gradients")) options.ddp.gradient_predivide_factor = resolved.real("gradient_predivide_factor");
  if (resolved.text("gradient_allreduce_op") == "sum") options.ddp.average = false;
  if (!resolved.on("fp16.enabled")) return;
  const double fixed = resolved.real("fp16.loss_scale");
  options.scaler.init_scale = fixed > 0 ? fixed : std::ldexp(1.0, static_cast<int>(resolved.count("fp16.initial_scale_power")));
  options.scaler.growth_interval = std::max<int64_t>(1, resolved.count("fp16.loss_scale_window"));
  if (fixed > 0) {
    // A static scale: it neither grows nor shrinks.
    options.scaler.min_scale = fixed;
    options.scaler.growth_interval = std::numeric_limits<int64_t>::max();
  } else {
    options.scaler.min_scale = resolved.real("fp16.min_loss_scale");
  }
}

parallel::ShardOptions ShardFront::options_of(const plan::DeepSpeedSettings& settings) const {
  return parallel::shard_options(plan::resolve_deepspeed(settings.config, world_size_, false), settings.config, base_);
}

bool ShardFront::splits_later() const noexcept { return plugins_.size() > 1; }

void ShardFront::log_notes(const Logger& logger) const {
  const auto say = [&](const char* of, const std::vector<std::string>& notes) {
    for (const auto& note : notes) logger.info(text(of, ": ", note, '.'));
  };
  if (fsdp_) say("FSDP", fsdp_->notes);
  for (const auto& [name, settings] : plugins_) {
    say("DeepSpeed", settings.notes);
    say("DeepSpeed", plan::resolve_deepspeed(settings.config, world_size_, false).notes);
  }
}

const plan::DeepSpeedSettings& ShardFront::selected() const {
  if (plugins_.empty()) {
    throw UsageError(kFront, "the DeepSpeed plugin of an Accelerator without one. Set AcceleratorOptions::deepspeed, or start with hasten launch --use_deepspeed.");
  }
  return plugins_[selected_].second;
}

void ShardFront::select(const std::string& name, const std::shared_ptr<parallel::Sharding>& sharding) {
  std::vector<std::string> names;
  for (size_t i = 0; i < plugins_.size(); ++i) {
    names.push_back(plugins_[i].first);
    if (plugins_[i].first != name) continue;
    selected_ = i;
    is_filled_ = false;
    if (sharding) sharding->set_options(options_of(plugins_[i].second));
    return;
  }
  throw UsageError(kFront, "no DeepSpeed plugin is named '", name, "'", did_you_mean(name, names), "; there are ", names.empty() ? "none" : join(names), ".");
}

void ShardFront::fill(plan::AutoInputs known) {
  if (plugins_.empty()) return;
  known.world_size = world_size_;
  known.split_batches = split_batches_;
  known.gradient_accumulation_steps = gradient_accumulation_steps_;
  if (base_.hidden_size) known.hidden_size = base_.hidden_size;
  plan::fill_auto(plugins_[selected_].second, known);
}

void ShardFront::require_filled() {
  if (plugins_.empty() || is_filled_) return;
  plan::require_filled(selected());
  is_filled_ = true;
}

std::shared_ptr<torch::optim::Optimizer> ShardFront::make_real(const parallel::DummyOptim& dummy) const {
  const auto& config = selected().config;
  const auto* type = config.find("optimizer.type");
  if (type == nullptr || !type->is_string()) {
    throw UsageError(kFront, config.source(), " has no optimizer.type for the DummyOptim. Write it, for example \"AdamW\".");
  }
  return parallel::make_deepspeed_optimizer(type->as_string(), config.get_value("optimizer.params"), dummy);
}

std::shared_ptr<optim::Scheduler> ShardFront::make_real(const parallel::DummyScheduler& dummy) const {
  auto& optimizer = dummy.optimizer();
  if (dummy.options().lr_scheduler_callable) return dummy.options().lr_scheduler_callable(optimizer);
  const auto& config = selected().config;
  const auto* type = config.find("scheduler.type");
  if (type == nullptr || !type->is_string()) {
    throw UsageError(kFront, config.source(), " has no scheduler.type for the DummyScheduler. Write it, for example \"WarmupLR\".");
  }
  return optim::deepspeed::make_schedule(optimizer, type->as_string(), config.get_value("scheduler.params"));
}

void ShardFront::clip_steps(training::GradientState& gradients, std::function<void(const std::vector<at::Tensor>&, double)> clip) {
  if (plugins_.empty()) return;
  clip_ = std::make_shared<Clip>();
  clip_->clip = std::move(clip);
  clip_->limit = [this] {
    const auto value = selected().config.get_value("gradient_clipping");
    return value.is_number() ? value.as_double() : 0.0;
  };
  gradients.step_policies().add(training::StepOrder::kClip, clip_);
}

void ShardFront::note_clipped() noexcept {
  if (clip_) clip_->was_clipped = true;
}

}  // namespace hasten
