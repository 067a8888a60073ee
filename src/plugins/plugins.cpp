// See plugins.h.
#include "hasten/plugins/plugins.h"

#include <ATen/Context.h>

#include <algorithm>
#include <cmath>
#include <limits>

#include "hasten/comm/nested/objects.h"
#include "hasten/comm/types/purpose.h"
#include "hasten/core/count_text.h"
#include "hasten/core/error.h"
#include "hasten/core/sentence.h"
#include "hasten/core/strings.h"
#include "hasten/optim/schedulers/deepspeed.h"
#include "hasten/parallel/shard/leaf_modules.h"
#include "hasten/plugins/megatron.h"
#include "hasten/plugins/shard_options.h"
#include "plugins/step_policies.h"

namespace hasten {
namespace {

const Origin kFront{"accelerator"};

/// Returns the precision that the program or the launcher requests; nothing if neither does. The launcher sets "no" by
/// itself, so that counts as nothing.
std::optional<Precision> precision_of(const AcceleratorOptions& options, const Environment& environment) {
  const auto text = environment.text("ACCELERATE_MIXED_PRECISION");
  auto requested = options.mixed_precision;
  if (!requested && text) requested = precision::parse_precision(*text, "ACCELERATE_MIXED_PRECISION");
  return requested == Precision::kNo ? std::nullopt : requested;
}

/// Returns the dtype of torch_autocast, as a precision.
std::optional<Precision> autocast_precision(const plan::DeepSpeedConfig& config) {
  if (!config.is_true("torch_autocast.enabled")) return std::nullopt;
  const auto dtype = config.get_value("torch_autocast.dtype", "bfloat16");
  const bool half = dtype == core::Value("float16") || dtype == core::Value("fp16");
  return half ? Precision::kFp16 : Precision::kBf16;
}

std::optional<c10::ScalarType> dtype_of(const std::string& name) {
  const std::string own = plan::short_dtype(name);
  if (own == "fp16") return c10::kHalf;
  if (own == "bf16") return c10::kBFloat16;
  return own.empty() ? std::nullopt : std::optional(c10::kFloat);
}

checkpoint::TagValidation tag_validation_of(const std::string& text) {
  const std::string name = core::upper(text);
  if (name == "IGNORE") return checkpoint::TagValidation::kIgnore;
  return name == "FAIL" ? checkpoint::TagValidation::kFail : checkpoint::TagValidation::kWarn;
}

bool uses_device(const AcceleratorOptions& options) {
  return !options.cpu && at::globalContext().hasCUDA();
}

constexpr const char* kPartition = "zero_optimization.zero_hpz_partition_size";

// hpZ on devices: groups of so many ranks in a row hold all parameters. Hosts with CPUs map them once anyway.
void split_over_groups(parallel::ShardOptions& options, int64_t size, int world_size) {
  if (world_size % size != 0) {
    throw UsageError({"deepspeed"}, kPartition, " is ", size, ", and there are ", count_text(world_size, "rank"),
                     ". Write the number of GPUs of a host, or another one that divides the ranks.");
  }
  options.shard_over = "partition";
  options.mesh = {{"replicate", static_cast<int>(world_size / size)}, {"partition", static_cast<int>(size)}};
}

// One line for each value of a configuration: "section.key value".
void add_settings(const std::string& path, const core::Value& value, std::vector<std::string>& facts) {
  if (!value.is_map()) {
    facts.push_back(path + ' ' + value.to_json());
    return;
  }
  for (const auto& [key, own] : value.as_map()) add_settings(path.empty() ? key : path + '.' + key, own, facts);
}

}  // namespace

Plugins::Plugins(AcceleratorOptions options, const Environment& environment, int world_size)
    : options_(std::move(options)), world_size_(world_size), base_(options_.shard) {
  const bool fsdp = options_.fsdp || environment.flag("ACCELERATE_USE_FSDP").value_or(false);
  const bool deepspeed = options_.deepspeed || !options_.deepspeed_plugins.empty() ||
                         environment.flag("ACCELERATE_USE_DEEPSPEED").value_or(false);
  if (fsdp && deepspeed) {
    throw UsageError(
        kFront,
        "both FSDP (AcceleratorOptions::fsdp, ACCELERATE_USE_FSDP) and DeepSpeed (AcceleratorOptions::deepspeed, "
        "ACCELERATE_USE_DEEPSPEED) are asked for. Use one of them.");
  }
  if ((fsdp || deepspeed) && options_.shard.stage != ShardStage::kNone) {
    throw UsageError(kFront, "AcceleratorOptions::shard has a stage beside ", fsdp ? "FSDP's" : "DeepSpeed's",
                     " settings, which say it as well. Leave one out.");
  }
  if (fsdp) read_fsdp(environment);
  if (deepspeed) read_deepspeed(environment);
  // Its options are set already, since the layout of ranks follows from them.
  megatron_ = read_megatron(options_, environment);
  compared_settings_ = compared_settings();
}

void Plugins::read_fsdp(const Environment& environment) {
  fsdp_ = plan::resolve_fsdp(options_.fsdp.value_or(plan::FsdpPlugin{}), environment);
  const auto requested = precision_of(options_, environment);
  if (requested) plan::set_mixed_precision(*fsdp_, precision::name_of(*requested));
  if (fsdp_->mixed_precision_policy) {
    const auto& policy = *fsdp_->mixed_precision_policy;
    if (!requested && policy.param_dtype == "bfloat16") options_.mixed_precision = Precision::kBf16;
    if (!requested && policy.param_dtype == "float16") options_.mixed_precision = Precision::kFp16;
  }
  apply(options_.fsdp.value_or(plan::FsdpPlugin{}));
  // For code of the program that reads the variable, as the peer's plugin sets it.
  if (options_.change_process && options_.fsdp && options_.fsdp->cpu_ram_efficient_loading) {
    Environment::of({{"FSDP_CPU_RAM_EFFICIENT_LOADING", fsdp_->cpu_ram_efficient_loading ? "True" : "False"}}).apply();
  }
  if (fsdp_->activation_checkpointing) {
    options_.recompute.enabled = true;
    if (options_.recompute.modules.empty() && fsdp_->auto_wrap_policy == plan::AutoWrapPolicy::kTransformer)
      options_.recompute.modules = fsdp_->transformer_cls_names_to_wrap.value_or(std::vector<std::string>{});
  }
  options_.shard = parallel::shard_options(*fsdp_, options_.shard);
  if (fsdp_->cpu_offload) rest_on_host();
  if (fsdp_->checks_module_states) options_.ddp.sync_module_states = false;
}

// FSDP's cpu_offload: parameters and the optimizer's state rest on the host.
void Plugins::rest_on_host() {
  if (!uses_device(options_)) {
    fsdp_->notes.push_back("cpu_offload: on a CPU parameters are in its memory already");
    return;
  }
  auto& shard = options_.shard;
  using enum parallel::OffloadDevice;
  if (shard.stage == ShardStage::kNone) return;
  if (shard.optimizer_offload.device == kNone) shard.optimizer_offload.device = kCpu;
  if (shard.stage == ShardStage::kParameters && shard.parameter_offload.device == kNone)
    shard.parameter_offload.device = kCpu;
}

// FSDP's settings beside the split.
void Plugins::apply(const plan::FsdpPlugin& given) {
  options_.precision.cast_inputs = options_.precision.cast_inputs || given.cast_forward_inputs.value_or(false);
  rank0_only_ = given.state_dict_config && given.state_dict_config->rank0_only.value_or(false);
  const auto& policy = given.mixed_precision_policy;
  if (policy.contains("output_dtype") && !options_.precision.output_dtype)
    options_.precision.output_dtype = dtype_of(fsdp_->mixed_precision_policy->output_dtype);
  if (policy.contains("buffer_dtype") && !options_.precision.buffers.dtype)
    options_.precision.buffers.dtype = dtype_of(fsdp_->mixed_precision_policy->buffer_dtype);
  if (policy.contains("reduce_dtype")) {
    const auto reduce = dtype_of(fsdp_->mixed_precision_policy->reduce_dtype);
    if (reduce != c10::kFloat && !options_.ddp.communication_dtype) options_.ddp.communication_dtype = reduce;
  }
  if (given.optim_state_dict_config) {
    fsdp_->notes.push_back(
        "optim_state_dict_config has no effect: save_state writes each rank's slices from its memory");
  }
  if (fsdp_->cpu_ram_efficient_loading) {
    fsdp_->notes.push_back(
        "cpu_ram_efficient_loading: accelerator.build builds a model once a host; a model built otherwise is built by "
        "each rank");
  }
  if (given.state_dict_type && fsdp_->state_dict_type == plan::StateDictType::kFull) {
    fsdp_->notes.push_back(
        "FULL_STATE_DICT: save_state(path, {.layout = Layout::kAccelerate}) writes whole files; the other layout has "
        "slices, "
        "which load on any number of ranks");
  }
  if (fsdp_->activation_checkpointing_offload) {
    options_.recompute.offload = true;
    if (!uses_device(options_))
      fsdp_->notes.push_back("activation_checkpointing_offload: on a CPU activations are in its memory already");
  }
}

void Plugins::read_deepspeed(const Environment& environment) {
  if (options_.deepspeed && !options_.deepspeed_plugins.empty()) {
    throw UsageError(kFront, "both deepspeed and deepspeed_plugins are given. Give one plugin, or several by name.");
  }
  auto given = options_.deepspeed_plugins;
  if (given.empty()) given.emplace_back("default", options_.deepspeed.value_or(plan::DeepSpeedPlugin{}));
  const auto requested = precision_of(options_, environment);
  for (const auto& [name, plugin] : given) {
    auto settings = plan::resolve_deepspeed_plugin(plugin, environment);
    if (auto& all = settings.config.config(); all.contains("bfloat16") && !all.contains("bf16")) {
      all["bf16"] = settings.config.get_value("bfloat16");
      settings.config.del_config_sub_tree("bfloat16");
    }
    const bool fp16 = settings.config.is_true("fp16.enabled"), bf16 = settings.config.is_true("bf16.enabled");
    const auto autocast = autocast_precision(settings.config);
    if (autocast && requested && *autocast != *requested) {
      throw UsageError(kFront, settings.config.source(), ": torch_autocast.dtype is ", precision::name_of(*autocast),
                       ", and mixed_precision ", precision::name_of(*requested), ". Leave one of them out.");
    }
    const std::string of_file = fp16 ? "fp16" : bf16 ? "bf16" : autocast ? precision::name_of(*autocast) : "no";
    const std::string precision = requested ? precision::name_of(*requested) : of_file;
    // torch_autocast has a section of its own; fp16 and bf16 stay as they are written.
    if (!autocast || fp16 || bf16) plan::set_mixed_precision(settings, precision);
    if (!requested && precision != "no")
      options_.mixed_precision = precision::parse_precision(precision, "DeepSpeed configuration");
    plan::fill_auto(settings, {.world_size = world_size_,
                               .split_batches = options_.loader.split_batches,
                               .gradient_accumulation_steps = options_.gradient_accumulation_steps,
                               .has_model = false});
    plugins_.emplace_back(name, std::move(settings));
  }
  auto& first = plugins_.front().second;
  const auto resolved = plan::resolve_deepspeed(first.config, world_size_, false);
  plan::require_supported(resolved, first.config);
  if (resolved.is_given("gradient_accumulation_steps"))
    options_.gradient_accumulation_steps = resolved.count("gradient_accumulation_steps");
  apply(resolved);
  apply_monitors(first.config);
  options_.shard = options_of(first);
  if (!options_.shard.shard_over.empty() && base_.shard_over.empty()) {
    first.notes.push_back(
        text("zero_hpz_partition_size: on devices gradients and optimizer state are split in groups of ",
             resolved.count(kPartition),
             " as well and replicated between them, as by FSDP's HYBRID_SHARD: the same numbers in more memory"));
  }
}

// Sections of a configuration beside ZeRO.
void Plugins::apply(const plan::ResolvedDeepSpeed& resolved) {
  const auto communication = dtype_of(resolved.text("communication_data_type"));
  if (communication && *communication != c10::kFloat) options_.ddp.communication_dtype = communication;
  const auto safe = resolved.class_names("torch_autocast.lower_precision_safe_modules");
  if (resolved.on("torch_autocast.enabled") && !safe.empty() && !communication) {
    options_.ddp.communication_dtype = dtype_of(resolved.text("torch_autocast.dtype"));
    options_.ddp.communication_classes = safe;
  }
  if (resolved.on("prescale_gradients"))
    options_.ddp.gradient_predivide_factor = resolved.real("gradient_predivide_factor");
  if (resolved.text("gradient_allreduce_op") == "sum") options_.ddp.average = false;
  const std::string zero = "zero_optimization.";
  if (resolved.is_given(zero + "overlap_comm") && !resolved.on(zero + "overlap_comm"))
    options_.ddp.delay_allreduce = true;
  if (!resolved.on(zero + "ignore_unused_parameters")) options_.ddp.allow_unused = false;
  if (resolved.on("checkpoint.use_node_local_storage")) options_.project.save_on_each_node = true;
  if (resolved.is_given("checkpoint.tag_validation"))
    options_.project.tag_validation = tag_validation_of(resolved.text("checkpoint.tag_validation"));
  if (resolved.on("dataloader_drop_last")) options_.loader.drop_last = true;
  if (resolved.is_given("activation_checkpointing.number_checkpoints"))
    options_.recompute.num_regions = resolved.count("activation_checkpointing.number_checkpoints");
  if (resolved.on("activation_checkpointing.cpu_checkpointing")) options_.recompute.offload = true;
  const auto buffers = dtype_of(resolved.text("data_types.buffer_dtype"));
  if (buffers && !options_.precision.buffers.dtype) options_.precision.buffers.dtype = buffers;
  if (resolved.on("fp16.enabled") || resolved.on("bf16.enabled")) {
    auto& kept = options_.precision.buffers.keep_float32;
    const auto names = resolved.names("data_types.keep_in_fp32_modules");
    kept.insert(kept.end(), names.begin(), names.end());
  }
  if (!resolved.on("fp16.enabled")) return;
  options_.precision.cast_inputs = options_.precision.cast_inputs || resolved.on("fp16.auto_cast");
  const double fixed = resolved.real("fp16.loss_scale");
  options_.scaler.init_scale =
      fixed > 0 ? fixed : std::ldexp(1.0, static_cast<int>(resolved.count("fp16.initial_scale_power")));
  options_.scaler.growth_interval = std::max<int64_t>(1, resolved.count("fp16.loss_scale_window"));
  if (fixed > 0) {
    // A static scale: it neither grows nor shrinks.
    options_.scaler.min_scale = fixed;
    options_.scaler.growth_interval = std::numeric_limits<int64_t>::max();
  } else {
    options_.scaler.min_scale = resolved.real("fp16.min_loss_scale");
    options_.scaler.rule = precision::LossScaleKind::kDeepSpeed;
    options_.scaler.hysteresis = std::max<int64_t>(1, resolved.count("fp16.hysteresis"));
    options_.scaler.consecutive_hysteresis = resolved.on("fp16.consecutive_hysteresis");
  }
}

// DeepSpeed's monitors are trackers here. The program's own log_with and folder stay.
void Plugins::apply_monitors(const plan::DeepSpeedConfig& config) {
  const auto text_at = [&](const std::string& key) {
    const auto value = config.get_value(key);
    return value.is_string() ? value.as_string() : std::string();
  };
  const auto use = [&](const std::string& section, const char* tracker, const char* project_key) {
    if (!config.is_true(section + ".enabled")) return;
    const auto named = [&](const tracking::LogWith& one) { return one.name() == tracker || one.name() == "all"; };
    if (std::none_of(options_.log_with.begin(), options_.log_with.end(), named))
      options_.log_with.emplace_back(tracker);
    if (monitor_project_.empty()) monitor_project_ = text_at(section + "." + project_key);
    const std::string folder = text_at(section + ".output_path");
    if (options_.project.logging_dir.empty() && !folder.empty()) options_.project.logging_dir = folder;
  };
  use("tensorboard", "tensorboard", "job_name");
  use("csv_monitor", "csv", "job_name");
  use("wandb", "wandb", "project");
  use("comet", "comet_ml", "project");
  const auto pass_on = [&](const std::string& section, const char* tracker,
                           const std::vector<std::pair<const char*, const char*>>& names) {
    if (!config.is_true(section + ".enabled")) return;
    core::Value own = core::Value::map();
    for (const auto& [theirs, ours] : names) {
      const auto value = config.get_value(section + "." + theirs);
      if (!value.is_null()) own[ours] = value;
    }
    if (own.empty()) return;
    monitor_kwargs_[tracker] = std::move(own);
  };
  pass_on("wandb", "wandb", {{"group", "group"}, {"team", "entity"}});
  pass_on("comet", "comet_ml",
          {{"workspace", "workspace"},
           {"api_key", "api_key"},
           {"experiment_key", "experiment_key"},
           {"mode", "mode"},
           {"online", "online"}});
}

parallel::ShardOptions Plugins::options_of(const plan::DeepSpeedSettings& settings) const {
  const auto resolved = plan::resolve_deepspeed(settings.config, world_size_, false);
  auto options = parallel::shard_options(resolved, settings.config, base_);
  const int64_t partition = resolved.count(kPartition);
  const bool splits = options.stage == ShardStage::kParameters && options.shard_over.empty() && world_size_ > 1;
  if (partition > 1 && splits && uses_device(options_)) split_over_groups(options, partition, world_size_);
  return options;
}

bool Plugins::splits_later() const noexcept {
  return plugins_.size() > 1;
}

void Plugins::log_notes(const std::function<Logger(const char* subject)>& logger_of) const {
  const auto print_notes = [&](const char* of, const std::vector<std::string>& notes) {
    for (const auto& note : notes) logger_of("shard").info(text(of, ": ", note, '.'));
  };
  if (fsdp_) print_notes("FSDP", fsdp_->notes);
  if (megatron_) {
    const Logger logger = logger_of("megatron");
    for (const auto& line : megatron_->remarks()) logger.warning(line);
    for (const auto& note : megatron_notes(*megatron_)) logger.info(text("Megatron-LM: ", note, '.'));
  }
  for (const auto& [name, settings] : plugins_) {
    print_notes("DeepSpeed", settings.notes);
    print_notes("DeepSpeed", plan::resolve_deepspeed(settings.config, world_size_, false).notes);
  }
}

const plan::DeepSpeedSettings& Plugins::selected() const {
  if (plugins_.empty()) {
    throw UsageError(kFront,
                     "the DeepSpeed plugin of an Accelerator without one. Set AcceleratorOptions::deepspeed, or start "
                     "with hasten launch --use_deepspeed.");
  }
  return plugins_[selected_].second;
}

void Plugins::select(const std::string& name, const std::shared_ptr<parallel::Sharding>& sharding) {
  std::vector<std::string> names;
  for (size_t i = 0; i < plugins_.size(); ++i) {
    names.push_back(plugins_[i].first);
    if (plugins_[i].first != name) continue;
    selected_ = i;
    is_filled_ = false;
    if (sharding) sharding->set_options(options_of(plugins_[i].second));
    return;
  }
  throw UsageError(kFront, "no DeepSpeed plugin is named '", name, "'", guess_end(name, names), " There are ",
                   names.empty() ? "none" : join(names), ".");
}

void Plugins::mark_leaf_modules(const torch::nn::Module& module,
                                const std::shared_ptr<parallel::Sharding>& sharding) const {
  if (plugins_.empty() || selected().transformer_moe_cls_names.empty()) return;
  parallel::set_moe_leaf_modules(sharding, module, selected().transformer_moe_cls_names);
}

bool Plugins::takes_objects() const noexcept {
  return uses_deepspeed() || (megatron_ && counts_samples(*megatron_));
}

// A loader's batch is that of one step and rank; of several the smallest or the largest counts.
void Plugins::note_batches(const std::vector<std::optional<int64_t>>& sizes) {
  const bool least = megatron_->flag("is_train_batch_min");
  for (const auto& size : sizes) {
    if (!size) continue;
    const int64_t all = options_.loader.split_batches ? *size : *size * world_size_;
    batch_samples_ = !batch_samples_ ? all : least ? std::min(*batch_samples_, all) : std::max(*batch_samples_, all);
  }
}

int64_t Plugins::samples_per_step() const {
  if (!counts_samples(*megatron_)) return 1;
  if (batch_samples_) return *batch_samples_ * options_.gradient_accumulation_steps;
  throw UsageError(kFront,
                   "train_samples, lr_decay_samples or lr_warmup_samples of MegatronLMPlugin, and no loader has been "
                   "prepared, whose batches say how many samples a step has. Give the loader to prepare before the "
                   "scheduler, or in the same call, or count in iterations.");
}

void Plugins::fill(plan::AutoInputs known) {
  if (megatron_) note_batches(known.batch_sizes);
  if (plugins_.empty()) return;
  known.world_size = world_size_;
  known.split_batches = options_.loader.split_batches;
  known.gradient_accumulation_steps = options_.gradient_accumulation_steps;
  if (base_.hidden_size) known.hidden_size = base_.hidden_size;
  plan::fill_auto(plugins_[selected_].second, known);
}

void Plugins::require_filled() {
  if (plugins_.empty() || is_filled_) return;
  plan::require_filled(selected());
  is_filled_ = true;
}

std::shared_ptr<torch::optim::Optimizer> Plugins::make_real(const parallel::DummyOptim& dummy) const {
  const auto& config = selected().config;
  const auto* type = config.find("optimizer.type");
  if (type == nullptr || !type->is_string()) {
    throw UsageError(kFront, config.source(),
                     " has no optimizer.type for the DummyOptim. Write it, for example \"AdamW\".");
  }
  return parallel::make_deepspeed_optimizer(type->as_string(), config.get_value("optimizer.params"), dummy);
}

std::shared_ptr<optim::Scheduler> Plugins::make_real(const parallel::DummyScheduler& dummy) const {
  auto& optimizer = dummy.optimizer();
  if (megatron_) {
    return std::make_shared<MegatronScheduler>(
        optimizer, *megatron_,
        MegatronLengths{.total_num_steps = dummy.options().total_num_steps.value_or(0) / world_size_,
                        .warmup_num_steps = dummy.options().warmup_num_steps / world_size_,
                        .samples_per_step = samples_per_step()});
  }
  if (dummy.options().lr_scheduler_callable) return dummy.options().lr_scheduler_callable(optimizer);
  const auto& config = selected().config;
  const auto* type = config.find("scheduler.type");
  if (type == nullptr || !type->is_string()) {
    throw UsageError(kFront, config.source(),
                     " has no scheduler.type for the DummyScheduler. Write it, for example \"WarmupLR\".");
  }
  return optim::deepspeed::make_schedule(optimizer, type->as_string(), config.get_value("scheduler.params"));
}

void Plugins::clip_steps(training::GradientState& gradients,
                         std::function<void(const std::vector<at::Tensor>&, double)> clip) {
  if (plugins_.empty() && !megatron_) return;
  const auto policy = std::make_shared<ClipPolicy>();
  policy->clip = std::move(clip);
  policy->limit = [front = shared_from_this()] {
    const auto value = front->megatron_ ? (*front->megatron_)["gradient_clipping"]
                                        : front->selected().config.get_value("gradient_clipping");
    return value.is_number() ? value.as_double() : 0.0;
  };
  clip_ = policy;
  gradients.step_policies().add(training::StepOrder::kClip, policy);
}

void Plugins::note_clipped() noexcept {
  if (const auto policy = clip_.lock()) policy->was_clipped = true;
}

void Plugins::check_overflows(training::GradientState& gradients,
                              std::function<bool(const std::vector<at::Tensor>&)> finite, Logger logger) {
  if (plugins_.empty()) return;
  const auto policy = std::make_shared<OverflowPolicy>();
  policy->finite = std::move(finite);
  policy->applies = [front = shared_from_this()] {
    const auto& config = front->selected().config;
    return config.is_true("bf16.enabled") && !config.is_false("bf16.check_grad_overflow");
  };
  policy->warn = [logger = std::move(logger)] {
    logger.warning("a gradient is not finite: the step is skipped (bf16.check_grad_overflow).");
  };
  gradients.step_policies().add(training::StepOrder::kUnscale, policy);
}

std::vector<std::string> Plugins::compared_settings() const {
  std::vector<std::string> all;
  for (const auto& [name, settings] : plugins_)
    add_settings(plugins_.size() > 1 ? name : "", settings.config.config(), all);
  if (fsdp_) {
    const auto strategy = fsdp_->sharding_strategy ? plan::name_of(*fsdp_->sharding_strategy)
                                                   : text("reshard_after_forward ", fsdp_->splits_parameters());
    all = {text("fsdp_version ", fsdp_->fsdp_version),
           text("strategy ", strategy),
           text("state_dict_type ", plan::name_of(fsdp_->state_dict_type)),
           text("rank0_only ", rank0_only_),
           text("activation_checkpointing ", fsdp_->activation_checkpointing),
           text("sync_module_states ", !fsdp_->checks_module_states),
           text("param_dtype ", fsdp_->mixed_precision_policy ? fsdp_->mixed_precision_policy->param_dtype : "")};
  }
  if (megatron_) add_settings("", megatron_->arguments(), all);
  std::sort(all.begin(), all.end());
  return all;
}

void Plugins::require_alike(const process::Process& process) {
  if (compared_settings_.empty() || process.world_size() == 1) return;
  const auto own = std::exchange(compared_settings_, {});
  const comm::Purpose purpose("settings of all ranks");
  const auto all = comm::gather_object(process.group(), own);
  for (size_t rank = 1; rank < all.size(); ++rank) {
    if (all[rank] == all[0]) continue;
    const auto first_of = [&](size_t here, size_t there) {
      std::vector<std::string> only;
      std::set_difference(all[here].begin(), all[here].end(), all[there].begin(), all[there].end(),
                          std::back_inserter(only));
      return only.empty() ? std::string("nothing beside") : "'" + only.front() + "'";
    };
    throw UsageError(Origin{"accelerator", process.rank(), process.world_size()}, "ranks have other settings of ",
                     fsdp_       ? "FSDP"
                     : megatron_ ? "Megatron-LM"
                                 : "DeepSpeed",
                     ": rank 0 ", first_of(0, rank), ", rank ", rank, ' ', first_of(rank, 0),
                     ". Give every rank the same.");
  }
}

checkpoint::GetStateDictOptions Plugins::state_dict_options(checkpoint::GetStateDictOptions given,
                                                            Precision precision) const {
  given.rank0_only = given.rank0_only || rank0_only_;
  if (plugins_.empty() || given.dtype) return given;
  if (!selected().config.is_true("zero_optimization.stage3_gather_16bit_weights_on_model_save")) return given;
  if (precision == Precision::kBf16) given.dtype = at::kBFloat16;
  if (precision == Precision::kFp16) given.dtype = at::kHalf;
  return given;
}

}  // namespace hasten
