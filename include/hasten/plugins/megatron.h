// Accelerate's MegatronLMPlugin applied: its fields become options of an Accelerator, and its schedule a scheduler.
//
// Degrees become sizes of `.parallel`, micro batches parts of a batch of forward_backward, the distributed optimizer
// sharded state, recomputation regions of layers. A field that has no counterpart is refused by name, with a remedy.
#pragma once

#include <optional>
#include <string>
#include <vector>

#include "hasten/accelerator/options.h"
#include "hasten/core/env.h"
#include "hasten/optim/schedulers/scheduler.h"
#include "hasten/settings/megatron_plugin.h"
#include "hasten/settings/megatron_schedule.h"

namespace hasten {

/// Returns the plugin that the program (AcceleratorOptions::megatron_lm) or the launcher (ACCELERATE_USE_MEGATRON_LM)
/// gives, its other_megatron_args among the fields; nothing without either.
/// Throws: as plan::MegatronPlugin; UsageError for an argument that is no field's.
std::optional<plan::MegatronPlugin> read_megatron(const AcceleratorOptions& options, const Environment& environment);

/// Sets the options that the plugin asks for. Without a plugin nothing changes.
/// Throws: as read_megatron; UsageError with all fields that are not there, or for a
/// program or launcher that lays the ranks out itself.
void apply_megatron(AcceleratorOptions& options, const Environment& environment);

/// Returns lines on fields that mean something else here.
std::vector<std::string> megatron_notes(const plan::MegatronPlugin& plugin);

/// Megatron's learning rate and weight decay by optimizer steps (settings/megatron_schedule.h). The optimizer's rates
/// are the highest ones. Weight decay changes if weight_decay_incr_style says so, but for groups whose decay is 0.
class MegatronScheduler final : public optim::Scheduler {
 public:
  /// `total_num_steps` and `warmup_num_steps` count where the plugin leaves train_iters and lr_warmup_iters unset.
  /// Throws: as plan::MegatronSchedule; UsageError for weight decay of an optimizer other
  /// than Adam, AdamW and SGD.
  MegatronScheduler(torch::optim::Optimizer& optimizer, const plan::MegatronPlugin& plugin, int64_t total_num_steps,
                    int64_t warmup_num_steps);

  void start() override;

 private:
  double rate(size_t group, double before, Moment moment) const override;
  void advance() override;
  void set_weight_decay();

  plan::MegatronSchedule schedule_;
  std::vector<double> decays_ = {};
};

}  // namespace hasten
