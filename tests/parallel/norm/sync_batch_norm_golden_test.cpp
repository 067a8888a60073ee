// Twenty steps of PyTorch's on one process over the joined batch (the peer has no SyncBatchNorm on the CPU),
// taken by two and four ranks with SyncBatchNorm.
#include <gtest/gtest.h>

#include <map>
#include <mutex>

#include "hasten/parallel/ddp/ddp.h"
#include "hasten/parallel/norm/sync_batch_norm.h"
#include "support/golden.h"
#include "support/ranks.h"
#include "support/recipes.h"

namespace hasten::parallel {
namespace {

using nlohmann::json;
using testing::GoldenCase;
using testing::GoldenTopic;

// Rows (step * global_batch + i) mod N of the case's data, the rank's part of them.
std::pair<at::Tensor, at::Tensor> golden_batch(const json& input, int64_t step, int rank) {
  const int64_t global = input.at("global_batch"), share = global / input.at("num_processes").get<int64_t>();
  const at::Tensor x = testing::tensor_of(input.at("x"), testing::dtype_of(input.at("model")));
  const at::Tensor rows = (torch::arange(share) + (step * global + rank * share)).remainder(x.size(0));
  return {x.index_select(0, rows), testing::targets_of(input).index_select(0, rows)};
}

json train_golden(const process::Process& process, const json& input) {
  auto net = testing::sequential_of(input.at("model"));
  convert_sync_batchnorm(net, process.group());
  const Ddp ddp(*net, process.group());
  const auto optimizer = testing::optimizer_for(input.at("optimizer"), net->parameters());
  json given{{"losses", json::array()}, {"lrs", json::array()}, {"norms", json::array()}};
  for (int64_t step = 0; step < input.at("steps").get<int64_t>(); ++step) {
    const auto [x, y] = golden_batch(input, step, process.rank());
    const at::Tensor loss = testing::loss_of(input.at("loss"), net->forward(x), y);
    loss.backward();
    given["losses"].push_back(loss.item<double>());
    given["lrs"].push_back(optimizer->param_groups()[0].options().get_lr());
    optimizer->step();
    optimizer->zero_grad();
  }
  for (const auto& item : net->named_parameters())
    given["state"][item.key()] = testing::lists_of(item.value().detach());
  for (const auto& item : net->named_buffers()) given["state"][item.key()] = testing::lists_of(item.value());
  return given;
}

// A bias in front of a batch norm has the gradient zero, of which rounding makes something else, and Adam
// divides that by its own size (docs/differences.md). It, and the running mean that contains it, may be as
// far away as the steps together reach.
void allow_noise(const GoldenCase& golden, json& state) {
  const json &layers = golden.input.at("model").at("layers"), &optimizer = golden.input.at("optimizer");
  const double reach = 2 * optimizer.at("lr").get<double>() * golden.input.at("steps").get<double>();
  for (size_t i = 1; optimizer.at("type") == "Adam" && i < layers.size(); ++i) {
    if (!layers[i].at("type").get<std::string>().starts_with("BatchNorm")) continue;
    for (const std::string& name : {text(i - 1, ".bias"), text(i, ".running_mean")}) {
      const json& expected = golden.expected.at("state").at(name);
      if (expected.size() != state.at(name).size()) continue;  // judged as it is
      for (size_t j = 0; j < expected.size(); ++j)
        EXPECT_NEAR(state.at(name).at(j).get<double>(), expected.at(j).get<double>(), reach) << name;
      state[name] = expected;
    }
  }
}

TEST(SyncBatchNormGolden, TrainingIsThatOfOneProcessOfThePeers) {
  GoldenTopic topic("lr_and_ddp_reference",
                    [](const GoldenCase& golden) { return golden.family == "sync_batch_norm"; });

  topic.for_each([&](const GoldenCase& golden) {
    topic.judge(golden, [&] {
      std::map<int, json> given;
      std::mutex mutex;
      testing::run_ranks(testing::num_ranks_of(golden), [&](process::Process& process) {
        json mine = train_golden(process, golden.input);
        const std::lock_guard lock(mutex);
        given[process.rank()] = std::move(mine);
      });
      json all = given.at(0);
      all["losses"] = json::array();
      for (const auto& [rank, mine] : given) {
        all["losses"].push_back(mine.at("losses"));
        EXPECT_EQ(mine.at("state"), all.at("state")) << golden.name << ", rank " << rank;
      }
      for (int64_t step = 0; step < golden.input.at("steps").get<int64_t>(); ++step) {
        double sum = 0;
        for (const auto& losses : all["losses"]) sum += losses.at(static_cast<size_t>(step)).get<double>();
        all["mean_losses"].push_back(sum / static_cast<double>(given.size()));
      }
      topic.tolerate({.absolute = golden.input.at("optimizer").at("type") == "Adam" ? 1e-5 : 1e-6});
      allow_noise(golden, all["state"]);
      return all;
    });
  });

  topic.finish();
}

}  // namespace
}  // namespace hasten::parallel
