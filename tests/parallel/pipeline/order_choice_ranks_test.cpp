// The order kAuto: what is chosen from given costs, and that pipelines which measure them train as one process.
#include "parallel/pipeline/order_choice.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <torch/torch.h>

#include <algorithm>
#include <cstdlib>
#include <limits>
#include <mutex>

#include "hasten/comm/mesh/device_mesh.h"
#include "hasten/core/error.h"
#include "hasten/core/log.h"
#include "hasten/core/log_sink.h"
#include "hasten/parallel/pipeline/pipeline.h"
#include "hasten/parallel/tensor/tensor_parallel.h"
#include "hasten/plan/order_check.h"
#include "support/parallel_models.h"
#include "support/ranks.h"

namespace hasten::parallel {
namespace {

using namespace hasten::testing;
using pipeline::best_in_place;
using pipeline::orders_in_place;
using plan::ActionKind;
using plan::OrderKind;
using ::testing::HasSubstr;
using XY = std::pair<at::Tensor, at::Tensor>;

constexpr double kNoLimit = std::numeric_limits<double>::infinity();

TEST(OrderChoice, SplitBackwardsAreHalvesOfTheSameOrder) {
  for (const int chunks : {1, 2}) {
    const auto order = plan::make_order(OrderKind::kDefault, {4, chunks, 8});

    const auto split = pipeline::with_split_backwards(order);

    plan::check_order(split);
    for (size_t rank = 0; rank < order.ranks.size(); ++rank) {
      auto joined = split.ranks[rank];
      std::erase_if(joined, [](const auto& action) { return action.kind == ActionKind::kBackwardWeight; });
      for (auto& action : joined) {
        if (action.kind == ActionKind::kBackwardInput) action.kind = ActionKind::kBackward;
      }
      EXPECT_EQ(joined, order.ranks[rank]);
      EXPECT_GT(split.ranks[rank].size(), joined.size());
    }
  }
}

TEST(OrderChoice, IsTheFastestThatKeepsStagesOnTheirRanks) {
  const std::vector<plan::StageCost> equal = {{.bytes = 10}};
  EXPECT_EQ(best_in_place({4, 1, 8}, equal, kNoLimit).kind, OrderKind::kInterleavedZeroBubble);
  EXPECT_EQ(best_in_place({4, 2, 8}, equal, kNoLimit).kind, OrderKind::kInterleavedZeroBubble);
  // Among orders that are equally fast the one that keeps less comes first: with one rank nothing waits.
  EXPECT_EQ(best_in_place({1, 1, 4}, equal, kNoLimit).kind, OrderKind::k1F1B);
  // ZBV would be the fastest here, and its stages lie on other ranks.
  const std::vector<plan::StageCost> slow_sends = {{.send_s = 0.1, .bytes = 10}};
  ASSERT_EQ(plan::best_order({2, 2, 4}, slow_sends), OrderKind::kZbvZeroBubble);
  const auto choices = orders_in_place({2, 2, 4}, slow_sends, kNoLimit);
  EXPECT_NE(choices.front().kind, OrderKind::kZbvZeroBubble);
  EXPECT_EQ(choices.front().reason, "");
  EXPECT_THAT(pipeline::describe(choices, slow_sends), HasSubstr("(has its stages on other ranks"));
}

TEST(OrderChoice, FitsIntoTheMemoryOrSaysWhatEachOrderKeeps) {
  const std::vector<plan::StageCost> costs = {{.bytes = 1e6}};
  const auto least = [&](double capacity) { return best_in_place({2, 2, 8}, costs, capacity); };
  const double all = least(kNoLimit).timeline.peak_bytes[0];
  for (const auto& choice : orders_in_place({2, 2, 8}, costs, all - 1)) {
    if (choice.reason.empty()) {
      EXPECT_LE(choice.timeline.peak_bytes[0], all - 1);
    }
  }
  try {
    least(1048576);
    ADD_FAILURE();
  } catch (const UsageError& error) {
    EXPECT_THAT(error.what(), HasSubstr("no order fits into 1 MiB of activations"));
    EXPECT_THAT(error.what(), HasSubstr("looped_bfs keeps 1.6e+07 bytes"));
    EXPECT_THAT(error.what(), HasSubstr("Raise activation_mib"));
  }
}

// ---- Pipelines that measure.

class LinesOfLog {
 public:
  LinesOfLog() {
    setenv("HASTEN_LOG_LEVEL", "info", 1);
    set_log_sink([this](LogLevel, std::string_view line) {
      const std::lock_guard lock(mutex_);
      lines_.emplace_back(line);
    });
  }
  ~LinesOfLog() {
    set_log_sink(nullptr);
    unsetenv("HASTEN_LOG_LEVEL");
  }
  LinesOfLog(const LinesOfLog&) = delete;
  LinesOfLog& operator=(const LinesOfLog&) = delete;

  int64_t count(const std::string& part) {
    const std::lock_guard lock(mutex_);
    return std::count_if(lines_.begin(), lines_.end(),
                         [&](const std::string& line) { return line.find(part) != std::string::npos; });
  }

 private:
  std::mutex mutex_;
  std::vector<std::string> lines_;
};

struct ChoiceCase {
  int pp = 2, tp = 1, dp = 1;
  PipelineOptions options = {};
};

std::vector<double> numbers_of(const std::vector<plan::StageCost>& costs) {
  std::vector<double> all;
  for (const auto& cost : costs) {
    all.insert(all.end(), {cost.forward_s, cost.input_s, cost.weight_s, cost.send_s, cost.bytes});
  }
  return all;
}

void expect_chosen(const Pipeline& pipeline, const PipelineOptions& options, const comm::Group& everyone) {
  const auto& costs = pipeline.costs();
  ASSERT_EQ(costs.size(), static_cast<size_t>(pipeline.group().world_size() * options.chunks));
  for (const auto& cost : costs) {
    EXPECT_GT(cost.forward_s, 0);
    EXPECT_GT(cost.input_s + cost.weight_s, 0);
    EXPECT_GT(cost.send_s, 0);
    EXPECT_GT(cost.bytes, 0);
  }
  const plan::OrderSizes sizes{pipeline.group().world_size(), options.chunks, options.microbatches};
  EXPECT_EQ(pipeline.order(options.microbatches), plan::make_order(best_in_place(sizes, costs, kNoLimit).kind, sizes));
  const auto by_rank = everyone.all_gather(torch::tensor(numbers_of(costs), at::kDouble));
  for (const at::Tensor& of_rank : by_rank) EXPECT_TRUE(of_rank.equal(by_rank[0]));
}

void expect_training_in_a_chosen_order(const ChoiceCase& is) {
  constexpr int kSteps = 3;
  const auto model = gpt2_model();
  const auto expected = one_process(model, kSteps);
  const auto batch = parallel_batch();
  const int world = is.pp * is.tp * is.dp;
  std::vector<std::shared_ptr<torch::nn::Module>> nets;
  for (int rank = 0; rank < world; ++rank) {
    torch::manual_seed(0);
    nets.push_back(model.make());
  }
  LinesOfLog lines;
  run_ranks(world, [&](process::Process& process) {
    auto& net = *nets[static_cast<size_t>(process.rank())];
    const comm::DeviceMesh mesh(process.group(), {{"pp", is.pp}, {"dp", is.dp}, {"tp", is.tp}});
    for (const char* axis : {"pp", "dp", "tp"}) mesh.group(axis).connect_backends();
    auto options = is.options;
    options.order = OrderKind::kAuto;
    options.order_groups = {mesh.group("dp")};
    const TensorParallel cut(net, mesh.group("tp"));
    const Pipeline pipeline(net, mesh.group("pp"), options);
    torch::optim::AdamW optimizer(net.parameters(), torch::optim::AdamWOptions(1e-3));
    EXPECT_TRUE(pipeline.costs().empty());
    for (int step = 0; step < kSteps; ++step) {
      optimizer.zero_grad();
      const at::Tensor loss = pipeline.forward_backward(
          XY(batch.x, batch.y), [&](const XY& part) { return model.loss(net, part.first, part.second); });
      optimizer.step();
      EXPECT_NEAR(loss.item<double>(), expected.losses[static_cast<size_t>(step)], 3e-6) << step;
      expect_chosen(pipeline, options, process.group());
    }
    for (const auto& [name, value] : pipeline.state_dict()) {
      EXPECT_LT((value - expected.weights.at(name)).abs().max().item<double>(), 1e-3) << name;
    }
  });
  EXPECT_EQ(lines.count("[pipeline]"), 1);
  EXPECT_EQ(lines.count("the order is "), 1);
}

TEST(OrderChoice, OfAPipelineTrainsAsOneProcess) {
  expect_training_in_a_chosen_order({.pp = 2, .options = {.microbatches = 4}});
  expect_training_in_a_chosen_order({.pp = 4, .options = {.microbatches = 8}});
}
TEST(OrderChoice, OfSeveralStagesARankTrainsAsOneProcess) {
  expect_training_in_a_chosen_order({.pp = 2, .options = {.chunks = 2, .microbatches = 4}});
}
TEST(OrderChoice, IsOneForRanksThatExchangeBesideThePipeline) {
  expect_training_in_a_chosen_order({.pp = 2, .tp = 2, .options = {.microbatches = 4}});
  expect_training_in_a_chosen_order({.pp = 2, .dp = 2, .options = {.microbatches = 4}});
}

TEST(OrderChoice, WithoutAnOrderThatFitsIsRefusedOnAllRanks) {
  const auto words = run_ranks_collecting(2, [](process::Process& process) {
    torch::nn::Sequential net(torch::nn::Linear(4, 1024), torch::nn::Linear(1024, 4));
    const Pipeline pipeline(*net, process.group(), {.order = OrderKind::kAuto, .activation_mib = 1});
    pipeline.forward_backward(at::ones({1024, 4}), [&](const at::Tensor& x) { return net->forward(x).sum(); });
  });
  EXPECT_THAT(words, ::testing::Each(HasSubstr("no order fits into 1 MiB of activations")));
}

// A shorter batch has an order of its own, by the same costs.
TEST(OrderChoice, IsMadeForEachNumberOfMicrobatches) {
  run_ranks(2, [](process::Process& process) {
    torch::nn::Sequential net(torch::nn::Linear(4, 4), torch::nn::Linear(4, 4));
    const Pipeline pipeline(*net, process.group(), {.microbatches = 4, .order = OrderKind::kAuto});
    const auto loss = [&](const at::Tensor& x) { return net->forward(x).sum(); };
    pipeline.forward_backward(at::ones({4, 4}), loss);
    const auto costs = numbers_of(pipeline.costs());
    pipeline.forward_backward(at::ones({3, 4}), loss);
    EXPECT_EQ(numbers_of(pipeline.costs()), costs);
    EXPECT_EQ(pipeline.order(3).num_microbatches, 3);
    const at::NoGradGuard no_grad;
    const at::Tensor outputs = pipeline.forward(at::ones({4, 4}), [&](const at::Tensor& x) { return net->forward(x); });
    EXPECT_EQ(outputs.size(0), 4);
  });
}

}  // namespace
}  // namespace hasten::parallel
