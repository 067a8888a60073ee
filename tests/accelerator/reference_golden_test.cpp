// Twenty steps as plain PyTorch, DistributedDataParallel and fully_shard take them, through the front door:
// the losses of each rank, learning rates, norms and the state at the end. The cases of fully_shard run on
// sharded parameters. The family sync_batch_norm is sync_batch_norm's.
#include <gtest/gtest.h>

#include <map>
#include <mutex>
#include <set>

#include "hasten/accelerator.h"
#include "optim/scheduler_spec.h"
#include "support/golden.h"
#include "support/ranks.h"
#include "support/recipes.h"

namespace hasten {
namespace {

using nlohmann::json;
using testing::GoldenCase;
using testing::GoldenTopic;

/// Rows (step * global_batch + i) mod N of the case's data, the rank's part of them.
std::pair<at::Tensor, at::Tensor> batch_of(const json& input, int64_t step, int rank) {
  const int64_t global = input.at("global_batch"), share = global / testing::positive(input.at("num_processes"));
  const at::Tensor x = testing::tensor_of(input.at("x"), testing::dtype_of(input.at("model")));
  const at::Tensor y = testing::targets_of(input);
  const at::Tensor rows = (torch::arange(share) + (step * global + rank * share)).remainder(x.size(0));
  return {x.index_select(0, rows), y.index_select(0, rows)};
}

json run_case(const process::Process& process, const json& input, bool sharded) {
  const bool broadcast_buffers = input.value("broadcast_buffers", true);
  // Member by member: where an initializer of an aggregate throws, g++ 12 destroys what it has made twice.
  AcceleratorOptions options;
  options.gradient_accumulation_steps = input.at("accumulate");
  options.ddp.broadcast_buffers = broadcast_buffers;
  options.ddp.static_graph = input.value("static_graph", false);
  options.shard.stage = sharded ? ShardStage::kParameters : ShardStage::kNone;
  const Accelerator accelerator(process, options);
  const auto net = testing::sequential_of(input.at("model"));
  const auto made = testing::optimizer_for(input.at("optimizer"), net->parameters());
  auto [model, optimizer] = accelerator.prepare(net, *made);
  std::unique_ptr<optim::Scheduler> schedule;
  if (!input.at("scheduler").is_null()) schedule = optim::testing::recipe_of(input.at("scheduler"))(*made);

  json given{{"losses", json::array()}, {"lrs", json::array()}, {"norms", json::array()}};
  std::map<std::string, at::Tensor> buffers;
  for (int64_t step = 0; step < input.at("steps").get<int64_t>(); ++step) {
    const auto [x, y] = batch_of(input, step, process.rank());
    const auto scope = accelerator.accumulate(model);
    const at::Tensor loss = testing::loss_of(input.at("loss"), model(x), y);
    // The peer's buffers follow rank 0 before the next forward, ours in this backward (decision 0006): so
    // those that the last forward left are compared.
    for (const auto& item : net->named_buffers()) buffers[item.key()] = item.value().clone();
    accelerator.backward(loss);
    given["losses"].push_back(loss.item<double>());
    if (!accelerator.sync_gradients()) continue;
    if (!input.at("clip_norm").is_null()) {
      given["norms"].push_back(accelerator.clip_grad_norm_(net->parameters(), input.at("clip_norm")));
    }
    given["lrs"].push_back(made->param_groups()[0].options().get_lr());
    optimizer.step();
    if (schedule) schedule->step();
    optimizer.zero_grad();
  }
  for (const auto& item : net->named_parameters()) {
    given["state"][item.key()] = testing::lists_of(item.value().detach());
  }
  for (const auto& [name, buffer] : buffers) given["state"][name] = testing::lists_of(buffer);
  return given;
}

/// All ranks' losses and their means, one state where all have the same.
json joined_reference(const GoldenCase& golden, const std::map<int, json>& ranks) {
  json all = ranks.at(0);
  all["losses"] = json::array();
  all["state_of_rank"] = json::array();
  for (const auto& [rank, given] : ranks) {
    all["losses"].push_back(given.at("losses"));
    all["state_of_rank"].push_back(given.at("state"));
    if (!golden.expected.contains("state")) continue;
    EXPECT_EQ(given.at("state"), all.at("state")) << golden.name;
  }
  for (size_t step = 0; step < all["losses"].at(0).size(); ++step) {
    double sum = 0.0;
    for (const auto& losses : all["losses"]) sum += losses.at(step).get<double>();
    all["mean_losses"].push_back(sum / static_cast<double>(ranks.size()));
  }
  return all;
}

/// docs/differences.md: what no computer fixes. A bias in front of a batch norm has the gradient zero, of
/// which rounding makes something else, and Adam divides that by its own size. What is asked of it, and of
/// the running mean that contains it: no more than a step's rate away for each step.
void settle_noise(const GoldenCase& golden, const json& expected, json& given) {
  const json& layers = golden.input.at("model").at("layers");
  const double reach =
      2.0 * golden.input.at("optimizer").at("lr").get<double>() * golden.input.at("steps").get<double>();
  for (size_t i = 1; i < layers.size(); ++i) {
    if (!layers[i].at("type").get<std::string>().starts_with("BatchNorm")) continue;
    for (const std::string& name : {text(i - 1, ".bias"), text(i, ".running_mean")}) {
      if (!expected.contains(name)) continue;
      if (expected.at(name).size() != given.at(name).size()) continue;  // judged as it is
      for (size_t j = 0; j < expected.at(name).size(); ++j) {
        EXPECT_NEAR(given.at(name).at(j).get<double>(), expected.at(name).at(j).get<double>(), reach) << name;
      }
      given[name] = expected.at(name);
    }
  }
}

TEST(ReferenceGolden, TrainingIsThePeers) {
  GoldenTopic topic("lr_and_ddp_reference",
                    [](const GoldenCase& golden) { return golden.family != "sync_batch_norm"; });

  std::map<std::string, std::map<int, json>> given;
  std::mutex mutex;
  std::set<int> worlds;
  for (const auto& golden : topic.cases()) worlds.insert(testing::num_ranks_of(golden));
  for (const int world_size : worlds) {
    testing::run_ranks(world_size, [&](process::Process& process) {
      for (const auto& golden : topic.cases()) {
        if (testing::num_ranks_of(golden) != world_size) continue;
        json result =
            testing::outcome_of([&] { return run_case(process, golden.input, golden.family == "fully_shard_w2"); });
        const std::lock_guard lock(mutex);
        given[golden.name][process.rank()] = std::move(result);
      }
    });
  }
  topic.for_each([&](const GoldenCase& golden) {
    topic.judge(golden, [&] {
      const bool is_adam = golden.input.at("optimizer").at("type").get<std::string>().starts_with("Adam");
      topic.tolerate({.absolute = is_adam ? 1e-5 : 1e-6});
      json all = joined_reference(golden, given.at(golden.name));
      for (size_t rank = 0; is_adam && rank < all.at("state_of_rank").size(); ++rank) {
        const bool one = golden.expected.contains("state");
        settle_noise(golden, one ? golden.expected.at("state") : golden.expected.at("state_of_rank").at(rank),
                     all["state_of_rank"][rank]);
      }
      all["state"] = all.at("state_of_rank").at(0);
      for (size_t i = 0; i < golden.expected.at("lrs").size(); ++i) {
        const double rate = golden.expected.at("lrs").at(i);
        EXPECT_NEAR(all.at("lrs").at(i).get<double>(), rate, 1e-9 * rate) << golden.name << ' ' << i;
      }
      return all;
    });
  });

  topic.finish();
}

}  // namespace
}  // namespace hasten
