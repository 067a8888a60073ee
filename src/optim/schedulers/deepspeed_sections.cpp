// The scheduler section of a DeepSpeed configuration; see deepspeed.h.
#include <algorithm>

#include "hasten/core/error.h"
#include "hasten/core/log.h"
#include "hasten/core/sentence.h"
#include "hasten/optim/schedulers/deepspeed.h"

namespace hasten::optim::deepspeed {
namespace {

using core::Value;

/// The params of a section. Every key is taken once, and a key that is left over is an error.
class Params {
 public:
  Params(const std::string& type, const Value& params) : type_(type), params_(params) {
    if (!params.is_null() && !params.is_map()) fail("params", params, "a map");
  }

  bool take(const char* key, double& own) {
    const auto* value = find(key);
    if (value == nullptr) return false;
    if (!value->is_number()) fail(key, *value, "a number");
    own = value->as_double();
    return true;
  }
  void take(const char* key, std::optional<double>& own) {
    double value = 0;
    if (take(key, value)) own = value;
  }
  bool take(const char* key, int64_t& own) {
    double value = 0;
    if (!take(key, value)) return false;
    // DeepSpeed takes these as integers only.
    const bool is_count = std::string(key).ends_with("_num_steps") || std::string(key).ends_with("_step_size");
    if (is_count && std::string(key) != "total_num_steps" && !params_.find(key)->is_int())
      fail(key, *params_.find(key), "a whole number, written without a point");
    if (value != static_cast<double>(static_cast<int64_t>(value))) fail(key, *params_.find(key), "a whole number");
    own = static_cast<int64_t>(value);
    return true;
  }
  void take(const char* key, std::optional<int64_t>& own) {
    int64_t value = 0;
    if (take(key, value)) own = value;
  }
  void take(const char* key, bool& own) {
    const auto* value = find(key);
    if (value == nullptr) return;
    if (!value->is_bool()) fail(key, *value, "true or false");
    own = value->as_bool();
  }
  void take(const char* key, PerGroup<double>& own) {
    const auto* value = find(key);
    if (value == nullptr) {
      // Null is a value of this one: the groups' own rates.
      if (params_.find(key) == nullptr) return;
      if (std::string(key) != "warmup_max_lr") fail(key, *params_.find(key), "a number, or a list of numbers");
      own = {};
      return;
    }
    if (value->is_number()) {
      own = value->as_double();
      return;
    }
    std::vector<double> values;
    if (value->is_list()) {
      for (const auto& each : value->as_list()) {
        if (each.is_number()) values.push_back(each.as_double());
      }
    }
    if (values.empty() || values.size() != value->size())
      fail(key, *value, "a number, or a list with one for each group");
    // A list of one counts for one group only, as with the peer.
    lists_.emplace_back(key, values.size());
    own = values;
  }
  void take(const char* key, WarmupType& own) {
    const auto* value = find(key);
    if (value == nullptr) return;
    if (*value == Value("linear")) {
      own = WarmupType::kLinear;
    } else if (*value != Value("log")) {
      Logger("optim").warning(text(type_, ": ", key, " = ", value->to_json(),
                                   " is neither \"log\" nor \"linear\"; it is read as \"log\"."));
    }
  }

  /// Throws for keys that were not taken, and for lists of another length than the groups.
  void finish(size_t num_groups) const {
    for (const auto& [key, size] : lists_) {
      if (size != num_groups)
        fail(key.c_str(), params_.at(key), text("one value, or a list of ", num_groups, ", one for each group"));
    }
    if (params_.is_null()) return;
    for (const auto& [key, value] : params_.as_map()) {
      if (key == "last_batch_iteration" && value != Value(-1))
        fail(key.c_str(), value, "-1. To go on where a run ended, load the schedule's state");
      if (std::find(known_.begin(), known_.end(), key) != known_.end() || key == "last_batch_iteration" ||
          key == "verbose")
        continue;
      throw UsageError(Origin{"optim"}, "scheduler ", type_, " has no parameter ", key, guess_end(key, known_),
                       " It has ", join(known_), ".");
    }
  }

 private:
  const Value* find(const char* key) {
    known_.emplace_back(key);
    const auto* value = params_.find(key);
    return value == nullptr || value->is_null() ? nullptr : value;
  }
  [[noreturn]] void fail(const char* key, const Value& value, const std::string& expected) const {
    throw UsageError(Origin{"optim"}, "scheduler ", type_, ": ", key, " is ", value.to_json(), "; expected ", expected,
                     ".");
  }

  const std::string& type_;
  const Value& params_;
  std::vector<std::string> known_;
  std::vector<std::pair<std::string, size_t>> lists_;
};

WarmupLROptions read(Params& params, WarmupLROptions own) {
  params.take("warmup_min_lr", own.warmup_min_lr);
  params.take("warmup_max_lr", own.warmup_max_lr);
  params.take("warmup_num_steps", own.warmup_num_steps);
  params.take("warmup_type", own.warmup_type);
  return own;
}

WarmupDecayLROptions read(Params& params, WarmupDecayLROptions own) {
  params.take("total_num_steps", own.total_num_steps);
  params.take("warmup_min_lr", own.warmup_min_lr);
  params.take("warmup_max_lr", own.warmup_max_lr);
  params.take("warmup_num_steps", own.warmup_num_steps);
  params.take("warmup_type", own.warmup_type);
  return own;
}

WarmupCosineLROptions read(Params& params, WarmupCosineLROptions own) {
  params.take("total_num_steps", own.total_num_steps);
  params.take("warmup_min_ratio", own.warmup_min_ratio);
  params.take("warmup_num_steps", own.warmup_num_steps);
  params.take("cos_min_ratio", own.cos_min_ratio);
  params.take("warmup_type", own.warmup_type);
  return own;
}

LRRangeTestOptions read(Params& params, LRRangeTestOptions own) {
  params.take("lr_range_test_min_lr", own.lr_range_test_min_lr);
  params.take("lr_range_test_step_size", own.lr_range_test_step_size);
  params.take("lr_range_test_step_rate", own.lr_range_test_step_rate);
  params.take("lr_range_test_staircase", own.lr_range_test_staircase);
  return own;
}

OneCycleOptions read(Params& params, OneCycleOptions own) {
  params.take("cycle_min_lr", own.cycle_min_lr);
  params.take("cycle_max_lr", own.cycle_max_lr);
  params.take("decay_lr_rate", own.decay_lr_rate);
  params.take("cycle_first_step_size", own.cycle_first_step_size);
  params.take("cycle_second_step_size", own.cycle_second_step_size);
  params.take("cycle_first_stair_count", own.cycle_first_stair_count);
  params.take("cycle_second_stair_count", own.cycle_second_stair_count);
  params.take("decay_step_size", own.decay_step_size);
  params.take("cycle_momentum", own.cycle_momentum);
  params.take("cycle_min_mom", own.cycle_min_mom);
  params.take("cycle_max_mom", own.cycle_max_mom);
  params.take("decay_mom_rate", own.decay_mom_rate);
  return own;
}

template <class S>
std::unique_ptr<Scheduler> make(torch::optim::Optimizer& optimizer, Params& params) {
  const auto options = read(params, typename S::Options{});
  params.finish(optimizer.param_groups().size());
  return std::make_unique<S>(optimizer, options);
}

}  // namespace

std::unique_ptr<Scheduler> make_schedule(torch::optim::Optimizer& optimizer, const std::string& type,
                                         const Value& params) {
  Params own(type, params);
  if (type == "WarmupLR") return make<WarmupLR>(optimizer, own);
  if (type == "WarmupDecayLR") return make<WarmupDecayLR>(optimizer, own);
  if (type == "WarmupCosineLR") return make<WarmupCosineLR>(optimizer, own);
  if (type == "LRRangeTest") return make<LRRangeTest>(optimizer, own);
  if (type == "OneCycle") return make<OneCycle>(optimizer, own);
  const std::vector<std::string> names = {"WarmupLR", "WarmupDecayLR", "WarmupCosineLR", "LRRangeTest", "OneCycle"};
  throw UsageError(Origin{"optim"}, "scheduler.type is ", type, "; expected one of ", join(names),
                   guess_end(type, names));
}

}  // namespace hasten::optim::deepspeed
