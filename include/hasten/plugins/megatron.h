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

/// Stages with other numbers of layers than the rest.
struct MegatronStages {
  /// Layers of the last stage; 0: as many as on the others.
  int last_layers = 0;
  /// The rank of pp with which a decoder begins; 0: the model has one list of layers.
  int decoder_rank = 0;
};
MegatronStages megatron_stages(const plan::MegatronPlugin& plugin);

/// Returns true if the schedule counts in samples, so that the size of a step's batch is needed.
bool counts_samples(const plan::MegatronPlugin& plugin);

/// Returns lines on fields that mean something else here.
std::vector<std::string> megatron_notes(const plan::MegatronPlugin& plugin);

/// The lengths of a schedule that the plugin may leave open, in optimizer steps.
struct MegatronLengths {
  /// In the place of train_iters and lr_warmup_iters.
  int64_t total_num_steps = 0, warmup_num_steps = 0;
  /// Samples of all ranks in a step; needed if fields count in samples.
  int64_t samples_per_step = 1;
};

/// Megatron's learning rate and weight decay (settings/megatron_schedule.h), moved by optimizer steps. The optimizer's
/// rates are the highest ones. Weight decay changes if weight_decay_incr_style says so, but for groups whose decay is
/// 0.
class MegatronScheduler final : public optim::Scheduler {
 public:
  /// Throws: as plan::MegatronSchedule; UsageError for weight decay of an optimizer other
  /// than Adam, AdamW and SGD.
  MegatronScheduler(torch::optim::Optimizer& optimizer, const plan::MegatronPlugin& plugin,
                    const MegatronLengths& lengths);

  void start() override;

 private:
  double rate(size_t group, double before, Moment moment) const override;
  void advance() override;
  void set_weight_decay();

  /// Samples so far, which the schedule counts.
  int64_t samples() const noexcept { return last_epoch() * samples_per_step_; }

  plan::MegatronSchedule schedule_;
  int64_t samples_per_step_;
  std::vector<double> decays_ = {};
};

}  // namespace hasten
