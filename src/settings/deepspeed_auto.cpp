// Fills "auto"; see deepspeed_plugin.h.
#include <algorithm>
#include <cmath>
#include <limits>
#include <optional>

#include "hasten/core/error.h"
#include "hasten/core/text.h"
#include "hasten/settings/deepspeed_plugin.h"
#include "settings/origin.h"

namespace hasten::plan {
namespace {

using core::Value;
using Given = AutoInputs::Given;

/// A call of prepare.
class AutoValues {
 public:
  AutoValues(DeepSpeedSettings& settings, const AutoInputs& inputs)
      : settings_(settings), config_(settings.config), inputs_(inputs) {}

  void all() {
    objects();
    micro_batch();
    accumulation();
    batch();
    if (inputs_.has_model) of_model();
    of_objects();
    equation();
  }

 private:
  bool has(const char* section) const { return config_.find(section) != nullptr; }

  // Optimizers and schedulers are in the program or in the configuration.
  void objects() const {
    const std::string file = config_.source();
    if (inputs_.optimizer == Given::kReal && has("optimizer")) {
      throw UsageError(kDeepSpeed, "an optimizer in the program and an optimizer section in ", file,
                       ". Remove one, or prepare a DummyOptim.");
    }
    if (inputs_.optimizer == Given::kDummy && !has("optimizer")) {
      throw UsageError(kDeepSpeed, "a DummyOptim, but no optimizer section in ", file,
                       ". Write one, or prepare a real optimizer.");
    }
    if (inputs_.scheduler == Given::kReal && has("scheduler")) {
      throw UsageError(kDeepSpeed, "a scheduler in the program and a scheduler section in ", file,
                       ". Remove one, or prepare a DummyScheduler.");
    }
    if (inputs_.scheduler == Given::kDummy && !has("scheduler")) {
      throw UsageError(kDeepSpeed, "a DummyScheduler, but neither a scheduler section in ", file,
                       " nor its lr_scheduler_callable. Give one.");
    }
    if (inputs_.optimizer == Given::kDummy && inputs_.scheduler == Given::kReal) {
      throw UsageError(kDeepSpeed, "a DummyOptim with a scheduler of the program's own. Prepare a DummyScheduler.");
    }
  }

  /// Nothing if the value is no number.
  std::optional<int64_t> count(const char* key) const {
    const Value value = config_.get_value(key);
    if (!value.is_number()) return std::nullopt;
    const double number = value.as_double();
    if (std::trunc(number) == number && std::abs(number) < 0x1p63) return value.as_int();
    throw UsageError(kDeepSpeed, key, " is ", value.to_json(), " in ", config_.source(), "; expected a whole number.");
  }

  void set(const std::string& key, Value value) { config_.fill({{key, std::move(value)}}); }

  void micro_batch() {
    if (!config_.is_auto("train_micro_batch_size_per_gpu") || inputs_.batch_sizes.empty()) return;
    std::vector<int64_t> sizes;
    for (const auto& size : inputs_.batch_sizes) {
      if (!size) {
        throw UsageError(
            kDeepSpeed,
            "train_micro_batch_size_per_gpu is \"auto\", but a loader has no batch size. Write a number into ",
            config_.source(), ".");
      }
      sizes.push_back(inputs_.split_batches ? *size / inputs_.world_size : *size);
    }
    const auto [least, most] = std::minmax_element(sizes.begin(), sizes.end());
    set("train_micro_batch_size_per_gpu", settings_.is_train_batch_min ? *least : *most);
  }

  void accumulation() {
    const std::string key = "gradient_accumulation_steps";
    const int64_t own = inputs_.gradient_accumulation_steps;
    set(key, own);
    const Value value = config_.get_value(key);
    if (!value.is_number() || value.as_double() == static_cast<double>(own)) return;
    if (!settings_.writes_accumulation) {
      config_.config()[key] = own;
    } else if (own != 1) {
      throw UsageError(kDeepSpeed, key, " is ", value.to_json(), " in ", config_.source(), " and ", own,
                       " in the program. Write \"auto\" there, or leave the program's out.");
    }
  }

  void batch() {
    const auto micro = count("train_micro_batch_size_per_gpu"), steps = count("gradient_accumulation_steps");
    if (micro && steps) set("train_batch_size", *micro * *steps * inputs_.world_size);
  }

  void of_model() {
    if (settings_.writes_clipping) {
      if (config_.is_auto("gradient_clipping")) settings_.notes.push_back("gradient_clipping \"auto\" is read as 1.0");
      set("gradient_clipping", 1.0);
    } else if (config_.is_auto("gradient_clipping")) {
      // No setting requests it.
      config_.del_config_sub_tree("gradient_clipping");
    }
    set(kZero + "stage3_gather_16bit_weights_on_model_save", false);
    if (!inputs_.hidden_size) return;
    const int64_t hidden = *inputs_.hidden_size, square = hidden * hidden;
    set(kZero + "reduce_bucket_size", square);
    set(kZero + "stage3_prefetch_bucket_size", static_cast<int64_t>(0.9 * static_cast<double>(square)));
    set(kZero + "stage3_param_persistence_threshold", 10 * hidden);
  }

  // By both: the peer divides the total by the number of processes, not the warm-up.
  int64_t per_rank(int64_t steps) const {
    return inputs_.split_batches ? steps : (steps + inputs_.world_size - 1) / inputs_.world_size;
  }

  void of_objects() {
    if (inputs_.optimizer == Given::kReal) config_.config()["zero_allow_untested_optimizer"] = true;
    if (inputs_.optimizer == Given::kDummy) {
      set("optimizer.params.lr", inputs_.lr);
      set("optimizer.params.weight_decay", inputs_.weight_decay);
    }
    if (inputs_.scheduler != Given::kDummy) return;
    set("scheduler.params.warmup_min_lr", 0);
    set("scheduler.params.warmup_max_lr", inputs_.lr);
    set("scheduler.params.warmup_num_steps", std::max<int64_t>(1, per_rank(inputs_.warmup_num_steps)));
    if (inputs_.total_num_steps) set("scheduler.params.total_num_steps", per_rank(*inputs_.total_num_steps));
  }

  void equation() const {
    const auto train = count("train_batch_size"), micro = count("train_micro_batch_size_per_gpu"),
               steps = count("gradient_accumulation_steps");
    if (train && micro && steps) solve_batch(train, micro, steps, inputs_.world_size);
  }

  DeepSpeedSettings& settings_;
  DeepSpeedConfig& config_;
  const AutoInputs& inputs_;
};

const char* missing_for(const std::string& key) {
  if (key == "train_batch_size" || key == "train_micro_batch_size_per_gpu") return "a loader with a batch size";
  if (key.starts_with("optimizer.")) return "a DummyOptim";
  if (key == "scheduler.params.total_num_steps") return "a DummyScheduler with total_num_steps";
  if (key.starts_with("scheduler.")) return "a DummyScheduler";
  if (key.starts_with(kZero)) return "the model's hidden size (ShardOptions::hidden_size)";
  return "a model";
}

}  // namespace

void fill_auto(DeepSpeedSettings& settings, const AutoInputs& inputs) {
  if (inputs.world_size < 1) throw UsageError(kDeepSpeed, "world_size = ", inputs.world_size, "; expected at least 1.");
  AutoValues(settings, inputs).all();
}

void require_filled(const DeepSpeedSettings& settings) {
  std::vector<std::string> lines;
  for (const auto& key : settings.config.auto_keys()) lines.push_back(key + " (needs " + missing_for(key) + ")");
  if (lines.empty()) return;
  throw UsageError(kDeepSpeed, "still \"auto\" in ", settings.config.source(), ": ", join(lines),
                   ". Write numbers there, or give them to prepare before the first backward.");
}

}  // namespace hasten::plan
