// Predictions: identities of the formulas, and that more of a resource never makes a step slower or a device fuller.
#include "hasten/plan/predict.h"

#include <gmock/gmock.h>

#include <cmath>
#include <functional>
#include <random>

#include "hasten/core/env.h"
#include "hasten/plan/model_presets.h"
#include "hasten/plan/shard_memory.h"
#include "hasten/plan/simulate.h"
#include "hasten/plan/step_terms.h"

namespace hasten::plan {
namespace {

using ::testing::Contains;
using ::testing::HasSubstr;

Strategy of(const LayoutSizes& sizes, double batch, double micro_batch = 1, DataParallel form = DataParallel::kDdp) {
  Strategy strategy;
  strategy.sizes = sizes;
  strategy.batch = batch;
  strategy.micro_batch = micro_batch;
  strategy.data_parallel = form;
  return strategy;
}

const ModelShape kModel = *preset_model("llama3-8b");
const Cluster kCluster = preset_cluster("h100_80gb");

TEST(Predict, kinds_add_up_to_the_step) {
  const Prediction p = predict(kModel, kCluster, of({.pp = 4, .dp_shard = 2, .tp = 2}, 64, 1, DataParallel::kZero1));
  const StepSeconds& s = p.seconds;
  EXPECT_DOUBLE_EQ(s.total(),
                   s.products + s.attention + s.passes + s.tensor + s.context + s.pipeline + s.data + s.update);
  for (const double part : {s.products, s.attention, s.passes, s.tensor, s.pipeline, s.data, s.update})
    EXPECT_GT(part, 0);
  EXPECT_EQ(s.context, 0);
  EXPECT_EQ(p.microbatches, 32);
  EXPECT_NEAR(p.tokens_per_second, 64 * 8192 / s.total() / 16, 1e-6);
}

TEST(Predict, one_device_exchanges_nothing) {
  const Prediction p = predict(kModel, kCluster, of({}, 4));
  EXPECT_EQ(p.seconds.tensor + p.seconds.pipeline + p.seconds.data + p.seconds.context, 0);
  for (const Wire& wire : p.wires) EXPECT_EQ(wire.bytes, 0) << wire.kind;
  EXPECT_EQ(p.bubble, 0);
}

TEST(Predict, the_bubble_of_a_pipeline_is_the_simulated_one) {
  for (const auto& [pp, chunks, microbatches] : {std::tuple{4, 1, 1}, {4, 1, 8}, {8, 2, 16}, {2, 4, 6}}) {
    Strategy strategy = of({.pp = pp}, microbatches);
    strategy.chunks = chunks;
    const StepTerms terms = step_terms(kModel, kCluster, strategy);
    const LayerSeconds forward = layer_forward(kModel, kCluster, strategy, terms);
    const LayerSeconds backward = layer_backward(kModel, strategy, forward);
    const double layers = terms.stage_layers / chunks;
    const auto order = make_order(OrderKind::kDefault, {pp, chunks, microbatches});
    const Timeline timeline = simulate(order, {{layers * forward.total(), layers * backward.total(), 0, 0, 0}});
    const double ideal = microbatches * chunks * layers * (forward.total() + backward.total());
    const Prediction p = predict(kModel, kCluster, strategy);
    EXPECT_NEAR(p.seconds.pipeline - p.wires[2].seconds(), timeline.seconds - ideal, 1e-9 * timeline.seconds);
  }
}

TEST(Predict, weights_of_zero_bubble_orders_fill_the_bubble) {
  Strategy strategy = of({.pp = 4}, 16);
  const double plain = predict(kModel, kCluster, strategy).seconds.pipeline;
  strategy.order = OrderKind::kInterleavedZeroBubble;
  EXPECT_LT(predict(kModel, kCluster, strategy).seconds.pipeline, plain);
}

TEST(Predict, an_interleaved_pipeline_of_one_chunk_is_1f1b) {
  Strategy strategy = of({.pp = 4}, 8);
  const Prediction plain = predict(kModel, kCluster, strategy);
  strategy.order = OrderKind::kInterleaved1F1B;
  const Prediction interleaved = predict(kModel, kCluster, strategy);
  EXPECT_EQ(plain.seconds.total(), interleaved.seconds.total());
  EXPECT_EQ(plain.memory.total(), interleaved.memory.total());
}

TEST(Predict, the_largest_stage_and_what_it_has_in_flight_count) {
  // 32 layers over 3 ranks: one of them has 11.
  EXPECT_EQ(step_terms(kModel, kCluster, of({.pp = 3}, 6)).stage_layers, 11);
  Strategy strategy = of({.pp = 4}, 8);
  EXPECT_EQ(microbatches_in_flight(strategy), 4);
  EXPECT_EQ(microbatches_in_flight(of({.pp = 4}, 2)), 2);
  strategy.chunks = 2;
  EXPECT_EQ(microbatches_in_flight(strategy), 5.5);
  EXPECT_EQ(microbatches_in_flight(of({}, 8)), 1);
  EXPECT_NEAR(predict(kModel, kCluster, of({.pp = 4}, 8)).memory.activations,
              4 * predict(kModel, kCluster, of({.pp = 4}, 1)).memory.activations, 1);
}

TEST(Predict, stages_split_more_and_more_of_the_state) {
  double before = 1e30;
  for (const DataParallel form : {DataParallel::kZero1, DataParallel::kZero2, DataParallel::kZero3}) {
    const StepMemory memory = predict(kModel, kCluster, of({.dp_shard = 64}, 64, 1, form)).memory;
    EXPECT_LT(memory.weights + memory.gradients + memory.optimizer + memory.units, before);
    before = memory.weights + memory.gradients + memory.optimizer + memory.units;
  }
  EXPECT_NEAR(predict(kModel, kCluster, of({.dp_replicate = 8}, 8)).memory.optimizer, 12 * kModel.parameters(), 1);
}

TEST(Predict, recompute_trades_time_for_memory) {
  Strategy none = of({.dp_shard = 8}, 8, 1, DataParallel::kZero3), full = none;
  full.recompute = Recompute::kFull;
  const Prediction a = predict(kModel, kCluster, none), b = predict(kModel, kCluster, full);
  EXPECT_LT(a.seconds.total(), b.seconds.total());
  EXPECT_GT(a.memory.activations, b.memory.activations);
}

TEST(Predict, all_network_cards_of_a_host_serve_its_ranks) {
  const Prediction two_hosts = predict(kModel, kCluster, of({.dp_replicate = 16}, 16));
  EXPECT_EQ(two_hosts.wires[3].bandwidth, std::min(450e9 * 0.55, 8 * 50e9));
  // With tensor parallelism over the host one rank of the data group is there, with one card.
  EXPECT_EQ(predict(kModel, kCluster, of({.dp_replicate = 2, .tp = 8}, 16)).wires[3].bandwidth, 50e9);
  EXPECT_TRUE(predict(kModel, kCluster, of({.dp_replicate = 8}, 16)).wires[3].within_host);
}

TEST(Predict, a_hybrid_sends_less_between_hosts_than_one_group) {
  const Strategy hybrid = of({.dp_replicate = 8, .dp_shard = 8}, 64, 1, DataParallel::kZero3);
  const Prediction p = predict(kModel, kCluster, hybrid);
  EXPECT_TRUE(p.wires[3].within_host);
  EXPECT_FALSE(p.wires[4].within_host);
  EXPECT_NEAR(p.wires[4].bytes, 2 * 4 * kModel.parameters() / 8 * 7 / 8, 1);
}

TEST(Predict, state_in_float32_is_that_of_the_table_of_devices) {
  const double unit = std::max(kModel.layer_parameters(), kModel.vocabulary * kModel.hidden);
  for (const int ranks : {2, 64}) {
    const auto rows = shard_memory(
        {.parameters = std::llround(kModel.parameters()), .largest_unit = std::llround(unit), .ranks_per_host = ranks});
    size_t row = 0;
    for (const DataParallel form :
         {DataParallel::kDdp, DataParallel::kZero1, DataParallel::kZero2, DataParallel::kZero3}) {
      Strategy strategy =
          of(form == DataParallel::kDdp ? LayoutSizes{.dp_replicate = ranks} : LayoutSizes{.dp_shard = ranks}, ranks, 1,
             form);
      strategy.element_bytes = 4;
      const StepMemory memory = predict(kModel, kCluster, strategy).memory;
      const double state = memory.weights + memory.gradients + memory.optimizer + memory.units;
      EXPECT_NEAR(state / static_cast<double>(rows[row].on_device), 1, 1e-6) << rows[row].strategy << " of " << ranks;
      ++row;
    }
  }
}

TEST(Predict, the_edges_give_numbers) {
  ModelShape model = kModel;
  for (const auto& change :
       std::vector<std::function<void()>>{[&] { model.layers = 0; }, [&] { model.sequence = 1; },
                                          [&] { model.hidden = 5e5, model.ffn = 2e6, model.layers = 3; }}) {
    change();
    const Prediction p = predict(model, kCluster, of({.dp_shard = 2}, 2, 1, DataParallel::kZero2));
    EXPECT_TRUE(std::isfinite(p.seconds.total()) && p.seconds.total() > 0);
    EXPECT_TRUE(std::isfinite(p.memory.total()) && std::isfinite(p.mfu));
  }
}

struct Random {
  ModelShape model;
  Cluster cluster;
  Strategy strategy;
};

Random random_case(std::mt19937& random) {
  const auto among = [&](std::initializer_list<int> values) { return *(values.begin() + random() % values.size()); };
  Random made{kModel, kCluster, {}};
  made.model.layers = among({1, 4, 12, 33, 96});
  made.model.heads = among({8, 16, 64});
  made.model.kv_heads = 8;
  made.model.head_dim = among({32, 64, 128});
  made.model.hidden = made.model.heads * made.model.head_dim;
  made.model.ffn = made.model.hidden * among({2, 4});
  made.model.flash = random() % 2 == 0;
  made.model.gated = random() % 2 == 0;
  made.model.sequence = among({64, 2048, 8192});
  Machine& machine = made.cluster.machine;
  machine.peak_flops = 1e12 * among({1, 100, 1000});
  machine.memory_bandwidth = 1e11 * among({1, 10, 40});
  machine.link_bandwidth = 1e10 * among({1, 10, 50});
  machine.network_bandwidth = 1e9 * among({1, 10, 50});
  machine.devices_per_host = among({1, 4, 8});
  machine.shares_memory = random() % 8 == 0;
  made.strategy.sizes = {.pp = made.model.layers >= 4 ? among({1, 2, 4}) : 1,
                         .dp_replicate = among({1, 2}),
                         .dp_shard = among({1, 2, 8, 64}),
                         .cp = among({1, 2}),
                         .tp = among({1, 2, 8})};
  made.strategy.data_parallel = static_cast<DataParallel>(random() % 4);
  if (made.strategy.data_parallel == DataParallel::kDdp) made.strategy.sizes.dp_shard = 1;
  made.strategy.sequence_parallel = made.strategy.sizes.tp > 1 && random() % 2 == 0;
  made.strategy.recompute = static_cast<Recompute>(random() % 4);
  made.strategy.micro_batch = among({1, 2, 4});
  made.strategy.batch = made.strategy.data_ranks() * made.strategy.micro_batch * among({1, 4, 16});
  return made;
}

TEST(Predict, more_of_a_resource_is_never_slower_and_more_of_a_model_never_smaller) {
  const auto seed = std::random_device{}();
  SCOPED_TRACE(seed);
  std::mt19937 random(seed);
  const auto rounds = 1000 * Environment::current().integer("HASTEN_TEST_SCALE").value_or(1);
  for (int64_t round = 0; round < rounds; ++round) {
    const Random made = random_case(random);
    const Prediction before = predict(made.model, made.cluster, made.strategy);
    ASSERT_TRUE(std::isfinite(before.seconds.total()) && before.seconds.total() > 0);
    for (double Machine::*resource :
         {&Machine::peak_flops, &Machine::memory_bandwidth, &Machine::link_bandwidth, &Machine::network_bandwidth}) {
      Cluster better = made.cluster;
      better.machine.*resource *= 1.7;
      better.machine.peak_flops_float32 = 0;
      Cluster same = made.cluster;
      same.machine.peak_flops_float32 = 0;
      ASSERT_LE(predict(made.model, better, made.strategy).seconds.total(),
                predict(made.model, same, made.strategy).seconds.total() * (1 + 1e-12));
    }
    for (double ModelShape::*size :
         {&ModelShape::layers, &ModelShape::ffn, &ModelShape::vocabulary, &ModelShape::hidden}) {
      ModelShape larger = made.model;
      larger.*size *= 2;
      const Prediction after = predict(larger, made.cluster, made.strategy);
      ASSERT_GE(after.memory.total(), before.memory.total() * (1 - 1e-12));
      ASSERT_GE(larger.parameters(), made.model.parameters());
    }
  }
}

TEST(Predict, numbers_say_where_they_come_from) {
  EXPECT_EQ(kind_of_numbers(kCluster), "predicted");
  EXPECT_EQ(kind_of_numbers(preset_cluster("cpu")), "predicted from rated figures");
  EXPECT_THAT(caveats(kModel, preset_cluster("cpu"), 8), Contains(HasSubstr("not to 'CPU core'")));
  EXPECT_THAT(caveats(kModel, kCluster, 12), Contains(HasSubstr("12 devices are no multiple of the 8")));
  EXPECT_TRUE(caveats(kModel, kCluster, 16).empty());
}

TEST(Predict, an_explanation_ends_each_line_with_its_number) {
  const auto lines =
      explain_prediction(kModel, kCluster, of({.pp = 2, .dp_shard = 8, .tp = 2}, 64, 1, DataParallel::kZero1));
  EXPECT_THAT(lines, Contains("  m = batch / (d b) = 64 / (8 x 1) = 8 microbatches"));
  EXPECT_THAT(lines, Contains("  layers of the slowest stage = ceil(l / (p v)) v = 16"));
  EXPECT_THAT(lines, Contains(HasSubstr("tensor = 2 x 2 e T h (t - 1) / t / link")));
  EXPECT_THAT(lines, Contains(HasSubstr("memory of a device, zero1 over n = 8")));
}

}  // namespace
}  // namespace hasten::plan
