// See search.h.
#include "hasten/plan/search.h"

#include <algorithm>
#include <array>
#include <cmath>
#include <set>
#include <tuple>

#include "hasten/core/count_text.h"
#include "hasten/core/error.h"
#include "hasten/core/text.h"

namespace hasten::plan {
namespace {

// Chunks and context parallel parts beyond these gain nothing. Shorter parts of sequences are left to --layout, since
// few published runs have them.
constexpr int kMostChunks = 16, kMostContext = 64;
constexpr double kLeastTokens = 8192;

std::vector<int> divisors(int number, int most = 1 << 30) {
  std::vector<int> found;
  for (int d = 1; d <= std::min(number, most); ++d) {
    if (number % d == 0) found.push_back(d);
  }
  return found;
}

// The fixed value alone, or all values.
std::vector<int> choices(const std::optional<int>& fixed, std::vector<int> all) {
  if (!fixed) return all;
  return std::find(all.begin(), all.end(), *fixed) == all.end() ? std::vector<int>{} : std::vector<int>{*fixed};
}

// Whole GiB, with a comma before every third digit.
std::string whole_gib(double bytes) {
  const std::string digits = text(std::llround(bytes / (1024.0 * 1024 * 1024)));
  std::string out;
  for (size_t i = 0; i < digits.size(); ++i) {
    if (i > 0 && (digits.size() - i) % 3 == 0) out += ',';
    out += digits[i];
  }
  return out;
}

// Parts of a model on several ranks, the simplest first. Numbers of two layouts compare by their hardest axis.
int model_axes(const Strategy& strategy) {
  const LayoutSizes& sizes = strategy.sizes;
  return (sizes.tp > 1 ? 1 : 0) + (sizes.cp > 1 ? 2 : 0) + (sizes.pp > 1 ? 4 : 0);
}

// What makes `taken` simpler than the fastest.
std::string simpler_by(const Strategy& taken, const Strategy& fastest) {
  const int fewer = num_axes(fastest) - num_axes(taken);
  if (fewer > 0) return fewer == 1 ? "one axis less" : fewer == 2 ? "two axes less" : "fewer axes";
  if (model_axes(taken) == model_axes(fastest)) return "with less of the state split";
  std::vector<std::string> without;
  for (const Axis axis : {Axis::kTp, Axis::kCp, Axis::kPp}) {
    if (fastest.sizes[axis] > 1 && taken.sizes[axis] == 1) without.emplace_back(axis_name(axis));
  }
  return "without " + join(without, " and ");
}

class StrategySearch {
 public:
  StrategySearch(const ModelShape& model, const Cluster& cluster, const SearchOptions& options)
      : model_(model), cluster_(cluster), options_(options), usable_(usable_bytes(cluster, options.usable_share)) {}

  SearchResult run() {
    check_fixed();
    for (const int tp : tensor_sizes()) {
      for (const int pp : pipeline_sizes(options_.devices / tp)) {
        for (const int cp : context_sizes(options_.devices / tp / pp)) try_sizes(tp, pp, cp);
      }
    }
    if (result_.considered == 0) refuse_batch();
    finish();
    return std::move(result_);
  }

 private:
  void check_fixed() const {
    const auto at_least_one = [](const char* name, double value) {
      if (!(value >= 1) || !std::isfinite(value))
        throw UsageError({"plan"}, name, " is ", value, "; expected at least 1.");
    };
    at_least_one("devices", options_.devices);
    at_least_one("batch", options_.batch);
    Strategy fixed = options_.base;
    fixed.sizes = {.pp = options_.pp.value_or(1),
                   .dp_replicate = -1,
                   .dp_shard = options_.shard.value_or(1),
                   .cp = options_.cp.value_or(1),
                   .tp = options_.tp.value_or(1)};
    fixed.sizes = fit_to_world(fixed.sizes, options_.devices);
    fixed.chunks = options_.chunks.value_or(1);
    if (fixed.chunks > 1 && !options_.pp) fixed.sizes.pp = 2;
    fixed.batch = std::max<double>(options_.batch, fixed.data_ranks());
    fixed.micro_batch = options_.micro_batch.value_or(1);
    at_least_one("micro_batch", fixed.micro_batch);
    check_strategy(model_, fixed);
  }

  std::vector<int> tensor_sizes() const {
    const int host = static_cast<int>(cluster_.machine.devices_per_host);
    std::vector<int> sizes;
    for (const int tp : divisors(options_.devices, options_.tp ? options_.devices : host)) {
      const bool cuts =
          model_.is_transformer() && std::fmod(model_.heads, tp) == 0 && std::fmod(model_.kv_heads, tp) == 0;
      if (cuts || tp == 1 || options_.tp) sizes.push_back(tp);
    }
    return choices(options_.tp, sizes);
  }
  std::vector<int> pipeline_sizes(int devices) const {
    return choices(options_.pp, divisors(devices, std::max(1, static_cast<int>(model_.layers))));
  }
  std::vector<int> context_sizes(int devices) const {
    std::vector<int> sizes;
    for (const int cp : divisors(devices, options_.cp ? devices : kMostContext)) {
      const bool cuts =
          std::fmod(model_.sequence, cp) == 0 && model_.sequence / cp >= kLeastTokens && (cp & (cp - 1)) == 0;
      if (cp == 1 || cuts || options_.cp) sizes.push_back(cp);
    }
    return choices(options_.cp, sizes);
  }

  void try_sizes(int tp, int pp, int cp) {
    const int data = options_.devices / tp / pp / cp;
    data_ranks_.insert(data);
    for (const DataParallel form : options_.data_parallel) {
      const bool split = form != DataParallel::kDdp;
      if (split && data * cp == 1 && options_.data_parallel.front() == DataParallel::kDdp) continue;
      for (const int shard : shard_sizes(form, data, tp)) {
        Strategy strategy = options_.base;
        strategy.sizes = {.pp = pp, .dp_replicate = data / shard, .dp_shard = shard, .cp = cp, .tp = tp};
        strategy.data_parallel = form;
        // Split state is exchanged in the dtype of computing; Ddp exchanges the gradients of float32 weights.
        strategy.gradient_bytes = split ? strategy.element_bytes : 4;
        strategy.batch = options_.batch;
        strategy.sequence_parallel = options_.sequence_parallel.value_or(tp > 1) && tp > 1;
        try_layout(strategy);
      }
    }
  }

  std::vector<int> shard_sizes(DataParallel form, int data, int tp) const {
    if (form == DataParallel::kDdp) return {1};
    if (options_.shard) return data % *options_.shard == 0 ? std::vector<int>{*options_.shard} : std::vector<int>{};
    // Shards over one host alone are the hybrid that is worth a row.
    const int host = static_cast<int>(cluster_.machine.devices_per_host) / tp;
    const bool hybrid = form == DataParallel::kZero3 && host > 1 && host < data && data % host == 0;
    return hybrid ? std::vector<int>{data, host} : std::vector<int>{data};
  }

  std::vector<int> chunk_sizes(const Strategy& strategy) const {
    if (options_.chunks) return {*options_.chunks};
    if (strategy.sizes.pp == 1) return {1};
    std::vector<int> sizes;
    const double even = std::ceil(model_.layers / strategy.sizes.pp);
    for (int v = 1; v <= std::min<double>(kMostChunks, model_.layers / strategy.sizes.pp); ++v) {
      if (std::ceil(model_.layers / strategy.sizes.pp / v) * v <= 1.1 * even) sizes.push_back(v);
    }
    return sizes;
  }

  std::vector<Recompute> recompute_kinds() const {
    if (options_.recompute) return {*options_.recompute};
    if (model_.flash) return {Recompute::kNone, Recompute::kFull};
    return {Recompute::kNone, Recompute::kSelective, Recompute::kFull};
  }

  // The fastest of a layout that fits, over chunks, microbatches and recompute; else the smallest.
  void try_layout(Strategy strategy) {
    const int data = strategy.data_ranks();
    Candidate fastest, smallest;
    bool fits = false, any = false;
    if (std::fmod(options_.batch, data) == 0) {
      const double each = options_.batch / data;
      for (const int chunks : chunk_sizes(strategy)) {
        strategy.chunks = chunks;
        for (const int micro_batch : micro_batches(each)) {
          strategy.micro_batch = micro_batch;
          const int microbatches = static_cast<int>(each / micro_batch);
          if (!problem_with_order(strategy.order, {strategy.sizes.pp, chunks, microbatches}).empty()) continue;
          for (const Recompute recompute : recompute_kinds()) {
            strategy.recompute = recompute;
            ++result_.considered;
            any = true;
            consider(strategy, fastest, smallest, fits);
          }
        }
      }
    }
    if (!any) return note_undivided(strategy);
    if (fits) return result_.fitting.push_back(fastest);
    smallest.prediction = predict_checked(model_, cluster_, smallest.strategy);
    smallest.reason = text("does not fit: ", whole_gib(smallest.prediction.memory.total()), " GiB of ",
                           whole_gib(usable_ / options_.usable_share),
                           smallest.strategy.recompute == Recompute::kFull ? " with full recompute" : "");
    if (!result_.nearest || smallest.prediction.memory.total() < result_.nearest->prediction.memory.total())
      result_.nearest = smallest;
    if (is_pure(smallest.strategy)) result_.pure.push_back(smallest);
  }

  std::vector<int> micro_batches(double each) const {
    return choices(options_.micro_batch, divisors(static_cast<int>(std::min(each, 1e9)), 1024));
  }

  void consider(const Strategy& strategy, Candidate& fastest, Candidate& smallest, bool& fits) const {
    const StepMemory memory = step_memory(model_, cluster_, strategy);
    const double bytes = memory.total();
    if (bytes <= usable_) {
      const Prediction prediction = predict_checked(model_, cluster_, strategy);
      if (!fits || prediction.seconds.total() < fastest.prediction.seconds.total())
        fastest = {strategy, prediction, ""};
      fits = true;
    }
    if (smallest.prediction.memory.total() == 0 || bytes < smallest.prediction.memory.total()) {
      smallest.strategy = strategy;
      smallest.prediction.memory = memory;
    }
  }

  bool is_pure(const Strategy& strategy) const {
    const LayoutSizes& sizes = strategy.sizes;
    return sizes.tp == 1 && sizes.pp == 1 && sizes.cp == 1 && (sizes.dp_replicate == 1 || sizes.dp_shard == 1);
  }

  void note_undivided(const Strategy& strategy) {
    if (!is_pure(strategy)) return;
    const std::string reason =
        text("a batch of ", options_.batch, " is not shared out evenly over ",
             count_text(strategy.data_ranks(), "rank"));
    result_.pure.push_back({strategy, {}, reason});
  }

  [[noreturn]] void refuse_batch() const {
    double below = 0, above = 0;
    const double step = std::max(1, options_.micro_batch.value_or(1));
    for (const int ranks : data_ranks_) {
      const double unit = ranks * step, down = std::floor(options_.batch / unit) * unit, up = down + unit;
      below = std::max(below, down);
      above = above == 0 ? up : std::min(above, up);
    }
    if (data_ranks_.empty())
      throw UsageError({"plan"}, "no layout of ", count_text(options_.devices, "device"),
                       " has the parts that are fixed. Leave one open.");
    throw UsageError({"plan"}, "no layout of ", count_text(options_.devices, "device"), " divides a batch of ",
                     options_.batch,
                     step > 1 ? text(" in microbatches of ", step) : "", "; the nearest that one divides are ",
                     below > 0 ? text(below, " and ") : "", above, ".");
  }

  void finish() {
    auto& fitting = result_.fitting;
    std::stable_sort(fitting.begin(), fitting.end(), [](const Candidate& a, const Candidate& b) {
      return a.prediction.seconds.total() < b.prediction.seconds.total();
    });
    if (fitting.empty()) return;
    result_.nearest.reset();
    const double limit = fitting.front().prediction.seconds.total() * (1 + options_.tie_share);
    for (size_t i = 1; i < fitting.size() && fitting[i].prediction.seconds.total() <= limit; ++i) {
      if (is_simpler(fitting[i].strategy, fitting[result_.taken].strategy)) result_.taken = i;
    }
    result_.why = result_.taken == 0 ? "the fastest"
                                     : text("within ", 100 * options_.tie_share, " % of the fastest, ",
                                            simpler_by(fitting[result_.taken].strategy, fitting.front().strategy));
  }

  const ModelShape& model_;
  const Cluster& cluster_;
  const SearchOptions& options_;
  double usable_;
  std::set<int> data_ranks_;
  SearchResult result_;
};

}  // namespace

bool is_simpler(const Strategy& a, const Strategy& b) {
  const auto key = [](const Strategy& one) { return std::tuple(num_axes(one), model_axes(one), one.data_parallel); };
  return key(a) < key(b);
}

SearchResult search(const ModelShape& model, const Cluster& cluster, const SearchOptions& options) {
  check_shape(model);
  return StrategySearch(model, cluster, options).run();
}

}  // namespace hasten::plan
