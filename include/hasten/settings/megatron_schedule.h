// Megatron's schedule of learning rate and weight decay, by the number of samples.
//
// Pure. In the warm-up of w samples the rate rises from init_lr to max_lr. Then it falls to min_lr until the D-th
// sample, by a style. x = (n - w) / (D - w).
#pragma once

#include <cstdint>
#include <string>

namespace hasten::plan {

struct MegatronScheduleOptions {
  double init_lr = 0.0, max_lr = 0.0, min_lr = 0.0;
  /// w and D, in samples.
  int64_t warmup = 0, decay = 0;
  /// "constant"; "linear" (1 - x), "cosine" ((1 + cos πx) / 2); "inverse-square-root" (max · √w / √n, at least min);
  /// "WSD": max until the last wsd_steps samples before D.
  std::string style = "linear";
  int64_t wsd_steps = 0;
  /// "exponential" (2 · 2^-x - 1), "linear", "cosine", "minus_sqrt" (1 - √x); x over the last wsd_steps.
  std::string wsd_style = "exponential";
  double start_weight_decay = 0.0, end_weight_decay = 0.0;
  /// Samples over which the weight decay grows, and how: "constant", "linear", "cosine".
  int64_t weight_decay_steps = 0;
  std::string weight_decay_style = "constant";
};

class MegatronSchedule {
 public:
  /// Expects 0 <= min_lr <= max_lr, a warm-up that ends before `decay`, and the numbers of WSD where it is the style.
  /// Weight decay may not fall, nor change with style "constant".
  /// Throws: UsageError for other options, or an unknown style.
  explicit MegatronSchedule(const MegatronScheduleOptions& options);

  /// The rate after `samples`.
  double rate(int64_t samples) const { return rate(samples, options_.max_lr, options_.min_lr); }
  /// As above, for a group with limits of its own.
  double rate(int64_t samples, double max_lr, double min_lr) const;
  double weight_decay(int64_t samples) const;
  const MegatronScheduleOptions& options() const noexcept { return options_; }

 private:
  MegatronScheduleOptions options_;
};

}  // namespace hasten::plan
