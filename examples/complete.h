// What the complete_* programs add to cv and nlp: checkpoints by step or epoch, going on from one, trackers, precision.
#pragma once

#include <hasten/hasten.h>

#include <CLI/CLI.hpp>
#include <filesystem>
#include <functional>
#include <optional>
#include <string>

namespace example {

/// Options under Accelerate's names.
struct CompleteOptions {
  std::string checkpointing_steps, resume_from_checkpoint, output_dir = ".", mixed_precision;
  bool with_tracking = false, cpu = false;

  void add_to(CLI::App& app) {
    const auto is_steps = [](const std::string& text) {
      const bool number = !text.empty() && text.find_first_not_of("0123456789") == std::string::npos && text != "0";
      return number || text == "epoch" ? std::string() : "'" + text + "' is neither a number of steps nor 'epoch'";
    };
    app.add_option("--checkpointing_steps", checkpointing_steps,
                   "saves every so many steps, or each 'epoch', below --output_dir")
        ->check(CLI::Validator(is_steps, "N|epoch"));
    app.add_option("--resume_from_checkpoint", resume_from_checkpoint, "folder of a checkpoint, step_N or epoch_N");
    app.add_flag("--with_tracking", with_tracking, "logs to TensorBoard, below --output_dir");
    app.add_option("--output_dir", output_dir, "for checkpoints and logs")->capture_default_str();
    app.add_option("--mixed_precision", mixed_precision,
                   "what layers compute in (default: the launcher's choice, else no)")
        ->check(CLI::IsMember({"no", "fp16", "bf16", "fp8"}));
    app.add_flag("--cpu", cpu, "stays on the CPU");
  }
  hasten::AcceleratorOptions accelerator_options(uint64_t seed) const {
    hasten::AcceleratorOptions options{.cpu = cpu, .loader = {.use_seedable_sampler = true}, .seed = seed};
    if (with_tracking) options.log_with = {"tensorboard"};
    options.project.project_dir = output_dir;
    if (!mixed_precision.empty())
      options.mixed_precision = hasten::precision::parse_precision(mixed_precision, "--mixed_precision");
    return options;
  }
};

/// Saves where the options say, and finds where a resumed run stands.
class Checkpointing {
 public:
  Checkpointing(const hasten::Accelerator& accelerator, const CompleteOptions& options)
      : accelerator_(accelerator), options_(options) {}

  /// Loads the checkpoint that the options name, if they do. Loaders go on in mid-epoch by themselves. Returns the
  /// epoch to go on in.
  template <class Loader>
  int64_t resume(const Loader& train) {
    if (options_.resume_from_checkpoint.empty()) return 0;
    accelerator_.load_state(options_.resume_from_checkpoint);
    accelerator_.print("resumed from checkpoint: ", options_.resume_from_checkpoint);
    const auto name = std::filesystem::path(options_.resume_from_checkpoint).filename().string();
    const auto epoch = static_cast<int64_t>(train.state().epoch);
    if (name.rfind("step_", 0) == 0)
      step_ = std::stoll(name.substr(5));
    else
      step_ = epoch * static_cast<int64_t>(train.size());
    return epoch;
  }
  void after_step() {
    ++step_;
    if (options_.checkpointing_steps.empty() || options_.checkpointing_steps == "epoch" ||
        step_ % std::stoll(options_.checkpointing_steps) != 0)
      return;
    save(hasten::text("step_", step_));
  }
  void after_epoch(int64_t epoch) {
    if (options_.checkpointing_steps == "epoch") save(hasten::text("epoch_", epoch));
  }
  int64_t step() const { return step_; }

 private:
  void save(const std::string& name) {
    accelerator_.save_state((std::filesystem::path(options_.output_dir) / name).string(), {.background = false});
  }
  hasten::Accelerator accelerator_;
  CompleteOptions options_;
  int64_t step_ = 0;
};

}  // namespace example
