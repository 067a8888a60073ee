// See megatron_schedule.h.
#include "hasten/settings/megatron_schedule.h"

#include <algorithm>
#include <cmath>
#include <numbers>
#include <vector>

#include "hasten/core/error.h"
#include "hasten/core/sentence.h"
#include "hasten/core/text.h"

namespace hasten::plan {
namespace {

const Origin kMegatronSchedule{"megatron"};

void require_one_of(const char* name, const std::string& value, const std::vector<std::string>& choices) {
  if (std::find(choices.begin(), choices.end(), value) != choices.end()) return;
  throw UsageError(kMegatronSchedule, name, " is '", value, "'; expected ", join(choices, " or "),
                   guess_end(value, choices));
}

double half_cosine(double x) {
  return 0.5 * (std::cos(std::numbers::pi * x) + 1);
}

// The rest of the way from max to min, in the last part of WSD.
double wsd_part(const std::string& style, double x) {
  if (style == "linear") return 1 - x;
  if (style == "cosine") return half_cosine(x);
  if (style == "minus_sqrt") return 1 - std::sqrt(x);
  return 2 * std::pow(0.5, x) - 1;
}

}  // namespace

MegatronSchedule::MegatronSchedule(const MegatronScheduleOptions& options) : options_(options) {
  if (!(options.min_lr >= 0) || !(options.max_lr >= options.min_lr) || !(options.init_lr <= options.max_lr)) {
    throw UsageError(kMegatronSchedule, "init_lr ", options.init_lr, ", min_lr ", options.min_lr, ", max_lr ",
                     options.max_lr, "; expected 0 <= min_lr <= max_lr, and init_lr <= max_lr.");
  }
  if (options.decay < 1 || options.warmup >= options.decay) {
    throw UsageError(kMegatronSchedule, "a warm-up of ", options.warmup, " samples and a decay of ", options.decay,
                     "; expected the warm-up to end before, and a decay of at least 1.");
  }
  require_one_of("lr_decay_style", options.style, {"constant", "linear", "cosine", "inverse-square-root", "WSD"});
  if (options.style == "WSD") {
    require_one_of("lr_wsd_decay_style", options.wsd_style, {"exponential", "linear", "cosine", "minus_sqrt"});
    if (options.wsd_steps < 1) {
      throw UsageError(kMegatronSchedule, "lr_decay_style WSD with ", options.wsd_steps,
                       " samples of decay (lr_wsd_decay_iters); expected at least 1.");
    }
  }
  require_one_of("weight_decay_incr_style", options.weight_decay_style, {"constant", "linear", "cosine"});
  const double begin = options.start_weight_decay, end = options.end_weight_decay;
  if (!(begin >= 0) || !(end >= begin) || (options.weight_decay_style == "constant" && begin != end)) {
    throw UsageError(kMegatronSchedule, "weight decay from ", begin, " to ", end, " (", options.weight_decay_style,
                     "); expected 0 <= start <= end, and equal ones with 'constant'.");
  }
}

double MegatronSchedule::rate(int64_t samples, double max_lr, double min_lr) const {
  const auto n = static_cast<double>(samples);
  const auto warmup = static_cast<double>(options_.warmup), decay = static_cast<double>(options_.decay);
  if (options_.warmup > 0 && samples <= options_.warmup) {
    return options_.init_lr + (max_lr - options_.init_lr) * n / warmup;
  }
  if (options_.style == "constant") return max_lr;
  if (samples > options_.decay) return min_lr;
  if (options_.style == "inverse-square-root") {
    const double first = std::max(warmup, 1.0);
    return std::max(min_lr, max_lr * std::sqrt(first) / std::sqrt(std::max(n, 1.0)));
  }
  double part = 1;
  if (options_.style == "linear") part = 1 - (n - warmup) / (decay - warmup);
  if (options_.style == "cosine") part = half_cosine((n - warmup) / (decay - warmup));
  if (options_.style == "WSD") {
    const auto last = static_cast<double>(options_.wsd_steps), begin = decay - last;
    if (n > begin) part = wsd_part(options_.wsd_style, (n - begin) / last);
  }
  return min_lr + part * (max_lr - min_lr);
}

double MegatronSchedule::weight_decay(int64_t samples) const {
  const double begin = options_.start_weight_decay, end = options_.end_weight_decay;
  if (samples > options_.weight_decay_steps || options_.weight_decay_style == "constant") return end;
  const double x = static_cast<double>(samples) / static_cast<double>(options_.weight_decay_steps);
  const double part = options_.weight_decay_style == "linear" ? x : 0.5 * (std::cos(std::numbers::pi * (1 - x)) + 1);
  return begin + part * (end - begin);
}

}  // namespace hasten::plan
