// Plugins: FSDP's, DeepSpeed's and Megatron-LM's settings of an Accelerator. It has the resulting options, "auto"
// values that wait for prepare, the dummies' real objects, and a configuration's clipping. The front door forwards
// here.
#pragma once

#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "hasten/accelerator/options.h"
#include "hasten/checkpoint/state_dict.h"
#include "hasten/core/env.h"
#include "hasten/core/log.h"
#include "hasten/optim/schedulers/scheduler.h"
#include "hasten/parallel/shard/sharding.h"
#include "hasten/plugins/dummy.h"
#include "hasten/process/process.h"
#include "hasten/settings/megatron_plugin.h"
#include "hasten/tracking/run/trackers.h"
#include "hasten/training/gradient_state.h"

namespace hasten {

namespace parallel {
class StepReport;
}
class StepMonitor;
class FlopsReport;
class ClipPolicy;

class Plugins : public std::enable_shared_from_this<Plugins> {
 public:
  /// Reads the settings of the plugins in `options`, or of the launcher's variables.
  /// Blocks: for a configuration file. Throws: UsageError for settings that are wrong, contradict each
  /// other or the program, or that this version lacks; DataError for a file that cannot be read.
  Plugins(AcceleratorOptions options, const Environment& environment, int world_size);

  /// Returns the options with what the plugins request.
  const AcceleratorOptions& options() const noexcept { return options_; }
  bool uses_fsdp() const noexcept { return fsdp_.has_value(); }
  bool uses_deepspeed() const noexcept { return !plugins_.empty(); }
  bool uses_megatron_lm() const noexcept { return megatron_.has_value(); }
  /// Returns the plugin's settings, null without Megatron-LM.
  const plan::MegatronPlugin* find_megatron() const noexcept { return megatron_ ? &*megatron_ : nullptr; }
  /// Returns true if fill needs the objects of a call of prepare.
  bool takes_objects() const noexcept;
  /// Returns true if any of several plugins splits something, so that an object for it is needed.
  bool splits_later() const noexcept;
  /// Lines on settings that mean something else here. `logger_of` gives the logger of a subject: "shard" for FSDP and
  /// DeepSpeed, "megatron".
  void log_notes(const std::function<Logger(const char* subject)>& logger_of) const;

  /// Returns the selected plugin. Throws: UsageError without DeepSpeed.
  const plan::DeepSpeedSettings& selected() const;
  /// Returns the same, null without DeepSpeed.
  const plan::DeepSpeedSettings* find_selected() const noexcept {
    return plugins_.empty() ? nullptr : &plugins_[selected_].second;
  }
  /// Selects by name; models prepared from now on follow it. Throws: UsageError with the names there are.
  void select(const std::string& name, const std::shared_ptr<parallel::Sharding>& sharding);

  /// Makes modules of the selected plugin's transformer_moe_cls_names leaves. Throws: as set_moe_leaf_modules.
  void mark_leaf_modules(const torch::nn::Module& module, const std::shared_ptr<parallel::Sharding>& sharding) const;

  /// Fills "auto" with the values of a call of prepare, and notes its loaders' batches for a schedule in samples.
  /// Throws: as plan::fill_auto.
  void fill(plan::AutoInputs known);
  /// Throws UsageError at the first backward for what is still "auto".
  void require_filled();

  std::shared_ptr<torch::optim::Optimizer> make_real(const parallel::DummyOptim& dummy) const;
  std::shared_ptr<optim::Scheduler> make_real(const parallel::DummyScheduler& dummy) const;

  /// Clips in the step of an optimizer, by the configuration's gradient_clipping, unless the program has clipped this
  /// window.
  void clip_steps(training::GradientState& gradients, std::function<void(const std::vector<at::Tensor>&, double)> clip);
  void note_clipped() noexcept;
  /// Skips steps whose gradients are not finite, by the configuration's bf16.check_grad_overflow. `finite` says whether
  /// the gradients of parameters are, on all ranks.
  void check_overflows(training::GradientState& gradients, std::function<bool(const std::vector<at::Tensor>&)> finite,
                       Logger logger);
  /// Compares the settings of FSDP or DeepSpeed of all ranks, once. Collective: yes. Blocks: yes.
  /// Throws: UsageError with the first difference and both values; CommError.
  void require_alike(const process::Process& process);

  /// Prints the lines that a configuration requests every few steps, on the main process.
  void report_steps(training::GradientState& gradients, const process::Process& process);
  /// Logs each step to the trackers that a configuration's monitors name, on the main process.
  void monitor_steps(training::GradientState& gradients, const tracking::Trackers& trackers,
                     const process::Process& process);
  /// Called round each backward, for reports and monitors.
  void begin_backward(const at::Tensor& loss) const;
  void end_backward() const;
  /// Returns the settings for get_state_dict, if `given` leaves it open: the dtype of DeepSpeed's gather_16bit_weights,
  /// rank0_only of FSDP's state_dict_config.
  checkpoint::GetStateDictOptions state_dict_options(checkpoint::GetStateDictOptions given, Precision precision) const;

 private:
  void read_fsdp(const Environment& environment);
  void read_deepspeed(const Environment& environment);
  void apply(const plan::FsdpPlugin& given);
  void rest_on_host();
  void apply(const plan::ResolvedDeepSpeed& resolved);
  void report_flops(training::GradientState& gradients, const process::Process& process);
  void apply_monitors(const plan::DeepSpeedConfig& config);
  parallel::ShardOptions options_of(const plan::DeepSpeedSettings& settings) const;
  void note_batches(const std::vector<std::optional<int64_t>>& sizes);
  int64_t samples_per_step() const;

  /// Settings as "key value", in the order of their keys.
  std::vector<std::string> compared_settings() const;

  AcceleratorOptions options_;
  int world_size_;
  bool is_filled_ = false;
  parallel::ShardOptions base_;
  std::optional<plan::FsdpSettings> fsdp_;
  std::vector<std::pair<std::string, plan::DeepSpeedSettings>> plugins_;
  std::optional<plan::MegatronPlugin> megatron_;
  /// Samples of all ranks in a batch of the loaders, as far as they are prepared.
  std::optional<int64_t> batch_samples_ = {};
  size_t selected_ = 0;
  /// Policies of the gradients, which keep this object: prepared handles may outlive the Accelerator.
  std::weak_ptr<ClipPolicy> clip_;
  std::weak_ptr<StepMonitor> monitor_;
  std::shared_ptr<parallel::StepReport> report_;
  std::shared_ptr<FlopsReport> flops_;
  bool rank0_only_ = false;
  /// The settings before "auto" is filled; empty once they have been compared.
  std::vector<std::string> compared_settings_;
  /// The project's name and the trackers' options, from the configuration's monitors.
  std::string monitor_project_ = {};
  core::Value monitor_kwargs_ = core::Value::map();
};

}  // namespace hasten
