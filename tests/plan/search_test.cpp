// The search: equal to trying everything by hand, the simpler of two that are as fast, reasons for the others.
#include "hasten/plan/search.h"

#include <gmock/gmock.h>

#include <cmath>
#include <random>

#include "hasten/core/error.h"
#include "hasten/plan/model_presets.h"

namespace hasten::plan {
namespace {

using ::testing::HasSubstr;

std::string refusal(const ModelShape& model, const SearchOptions& options) {
  try {
    search(model, preset_cluster("h100"), options);
  } catch (const UsageError& error) {
    return error.what();
  }
  return "";
}

// The least seconds of any strategy of these sizes that fits, by loops over all numbers.
double least_of_sizes(const ModelShape& model, const Cluster& cluster, const LayoutSizes& sizes, int batch) {
  double least = INFINITY;
  const int d = sizes.dp_shard, host = static_cast<int>(cluster.machine.devices_per_host);
  for (int shard = 1; shard <= d; ++shard) {
    for (int v = 1; v <= 16; ++v) {
      for (int b = 1; b <= batch; ++b) {
        for (int variant = 0; variant < 8; ++variant) {
          const int form = variant / 2;
          if (batch % (d * b) != 0 || d % shard != 0) continue;
          if (form == 0 ? shard != 1 : shard != d && !(form == 3 && shard == host / sizes.tp && shard > 1)) continue;
          if (v > 1 && (sizes.pp == 1 || v > model.layers / sizes.pp)) continue;
          if (std::ceil(model.layers / sizes.pp / v) * v > 1.1 * std::ceil(model.layers / sizes.pp)) continue;
          if (!problem_with_order(OrderKind::kDefault, {sizes.pp, v, batch / d / b}).empty()) continue;
          Strategy strategy;
          strategy.sizes = sizes;
          strategy.sizes.dp_shard = shard;
          strategy.sizes.dp_replicate = d / shard;
          strategy.chunks = v;
          strategy.data_parallel = static_cast<DataParallel>(form);
          strategy.sequence_parallel = sizes.tp > 1;
          strategy.recompute = variant % 2 == 0 ? Recompute::kNone : Recompute::kFull;
          strategy.batch = batch;
          strategy.micro_batch = b;
          strategy.gradient_bytes = form == 0 ? 4 : 2;
          const Prediction p = predict(model, cluster, strategy);
          if (p.memory.total() <= usable_bytes(cluster)) least = std::min(least, p.seconds.total());
        }
      }
    }
  }
  return least;
}

double least_seconds(const ModelShape& model, const Cluster& cluster, int devices, int batch) {
  double least = INFINITY;
  for (int tp = 1; tp <= cluster.machine.devices_per_host; ++tp) {
    for (int pp = 1; pp <= model.layers; ++pp) {
      for (int d = 1; d <= devices; ++d) {
        for (int cp = 1; cp <= devices; cp *= 2) {
          if (tp * pp * d * cp != devices || (cp > 1 && model.sequence / cp < 8192)) continue;
          if (std::fmod(model.heads, tp) != 0 || std::fmod(model.kv_heads, tp) != 0) continue;
          least = std::min(least, least_of_sizes(model, cluster, {.pp = pp, .dp_shard = d, .cp = cp, .tp = tp}, batch));
        }
      }
    }
  }
  return least;
}

TEST(Search, finds_what_trying_everything_finds) {
  const auto seed = std::random_device{}();
  SCOPED_TRACE(seed);
  std::mt19937 random(seed);
  const auto among = [&](std::initializer_list<int> values) { return *(values.begin() + random() % values.size()); };
  int fitting = 0;
  for (int round = 0; round < 200; ++round) {
    ModelShape model = *preset_model("llama3-8b");
    model.layers = among({2, 3, 6, 8});
    model.sequence = among({1024, 8192, 32768});
    Cluster cluster = preset_cluster(random() % 2 ? "a100_40gb" : "h100");
    cluster.machine.devices_per_host = among({2, 4});
    cluster.machine.memory_gib = among({12, 24, 40, 80});
    cluster.machine.network_bandwidth = 1e9 * among({1, 25});
    SearchOptions options{.devices = among({1, 2, 4, 6, 8}), .batch = static_cast<double>(among({12, 24}))};
    const double least = least_seconds(model, cluster, options.devices, static_cast<int>(options.batch));
    const SearchResult result = search(model, cluster, options);
    ASSERT_EQ(result.fitting.empty(), std::isinf(least));
    if (result.fitting.empty()) {
      ASSERT_TRUE(result.nearest.has_value());
      continue;
    }
    ++fitting;
    ASSERT_DOUBLE_EQ(result.fitting.front().prediction.seconds.total(), least);
  }
  EXPECT_GT(fitting, 50);
}

TEST(Search, the_simplest_of_those_as_fast_is_taken) {
  const SearchResult result =
      search(*preset_model("llama3-70b"), preset_cluster("h100"), {.devices = 256, .batch = 1024});
  const Candidate& taken = result.fitting[result.taken];
  const double fastest = result.fitting.front().prediction.seconds.total();
  EXPECT_LE(taken.prediction.seconds.total(), 1.02 * fastest);
  for (const Candidate& other : result.fitting) {
    if (other.prediction.seconds.total() > 1.02 * fastest) continue;
    EXPECT_GE(num_axes(other.strategy), num_axes(taken.strategy));
  }
  EXPECT_EQ(result.why.empty(), false);
}

TEST(Search, data_parallelism_is_taken_before_parts_of_a_model_that_are_as_fast) {
  SearchOptions options{.devices = 2, .batch = 8};
  set_precision(options.base, "no");
  const Cluster cpu = preset_cluster("cpu");

  const SearchResult all = search(*preset_model("gpt2"), cpu, options);
  options.data_parallel = {DataParallel::kZero1, DataParallel::kZero2};
  const SearchResult split = search(*preset_model("gpt2"), cpu, options);

  EXPECT_EQ(strategy_text(all.fitting[all.taken].strategy), "ddp 2");
  EXPECT_THAT(all.why, HasSubstr("within 2 % of the fastest, "));
  EXPECT_EQ(strategy_text(split.fitting[split.taken].strategy), "zero1 2");
}

TEST(Search, the_order_of_simplicity_is_axes_then_ddp_stages_tp_cp_pp) {
  const auto of = [](const LayoutSizes& sizes, DataParallel form) {
    Strategy strategy;
    strategy.sizes = sizes;
    strategy.data_parallel = form;
    return strategy;
  };
  const std::vector<Strategy> ascending = {of({.dp_replicate = 4}, DataParallel::kDdp),
                                           of({.dp_shard = 4}, DataParallel::kZero1),
                                           of({.dp_shard = 4}, DataParallel::kZero3),
                                           of({.tp = 4}, DataParallel::kDdp),
                                           of({.cp = 4}, DataParallel::kDdp),
                                           of({.pp = 4}, DataParallel::kDdp),
                                           of({.dp_replicate = 2, .tp = 2}, DataParallel::kDdp),
                                           of({.dp_shard = 2, .tp = 2}, DataParallel::kZero1),
                                           of({.pp = 2, .dp_replicate = 2}, DataParallel::kDdp),
                                           of({.pp = 2, .dp_replicate = 2, .tp = 2}, DataParallel::kDdp)};
  for (size_t i = 0; i < ascending.size(); ++i) {
    for (size_t k = 0; k < ascending.size(); ++k) EXPECT_EQ(is_simpler(ascending[i], ascending[k]), i < k) << i << k;
  }
}

TEST(Search, pure_strategies_that_do_not_fit_say_why) {
  const SearchResult result =
      search(*preset_model("llama3-70b"), preset_cluster("h100"), {.devices = 256, .batch = 1024});
  ASSERT_FALSE(result.pure.empty());
  EXPECT_EQ(strategy_text(result.pure.front().strategy), "ddp 256");
  EXPECT_THAT(result.pure.front().reason, HasSubstr("GiB of 79 with full recompute"));
  // 1,000 sequences are no multiple of 256 ranks.
  const SearchResult odd = search(*preset_model("gpt2"), preset_cluster("h100"), {.devices = 256, .batch = 1000});
  EXPECT_THAT(odd.pure.front().reason, HasSubstr("is not shared out evenly over 256 ranks"));
}

TEST(Search, fixed_parts_stay_and_the_others_are_searched) {
  const SearchResult result = search(*preset_model("llama3-8b"), preset_cluster("h100"),
                                     {.devices = 16,
                                      .batch = 64,
                                      .micro_batch = 2,
                                      .tp = 2,
                                      .pp = 2,
                                      .recompute = Recompute::kFull,
                                      .data_parallel = {DataParallel::kZero1}});
  ASSERT_FALSE(result.fitting.empty());
  for (const Candidate& candidate : result.fitting) {
    EXPECT_EQ(candidate.strategy.sizes.tp, 2);
    EXPECT_EQ(candidate.strategy.sizes.pp, 2);
    EXPECT_EQ(candidate.strategy.micro_batch, 2);
    EXPECT_EQ(candidate.strategy.recompute, Recompute::kFull);
    EXPECT_EQ(candidate.strategy.data_parallel, DataParallel::kZero1);
  }
}

TEST(Search, what_no_layout_divides_is_refused_with_the_nearest) {
  const ModelShape model = *preset_model("llama3-8b");
  EXPECT_THAT(refusal(model, {.devices = 64, .batch = 100, .tp = 1, .pp = 1, .cp = 1}),
              HasSubstr("divides a batch of 100; the nearest that one divides are 64 and 128."));
  EXPECT_THAT(refusal(model, {.devices = 64, .batch = 64, .tp = 3}), HasSubstr("tp 3 does not divide the world of 64"));
  EXPECT_THAT(refusal(model, {.devices = 96, .batch = 96, .tp = 3}), HasSubstr("tp may be 1, 2, 4, 8"));
  EXPECT_THAT(refusal(model, {.devices = 64, .batch = 64, .pp = 64}), HasSubstr("64 stages for 32 layers"));
  EXPECT_THAT(refusal(model, {.devices = 0, .batch = 64}), HasSubstr("devices is 0"));
  EXPECT_THAT(refusal(model, {.devices = 8, .batch = 0}), HasSubstr("batch is 0"));
}

TEST(Search, ten_thousand_devices_are_few_layouts) {
  const SearchResult result =
      search(*preset_model("llama3-405b"), preset_cluster("h100"), {.devices = 10000, .batch = 10000});
  EXPECT_LT(result.considered, 200000u);
}

}  // namespace
}  // namespace hasten::plan
