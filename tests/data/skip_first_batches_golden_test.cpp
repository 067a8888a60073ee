// skip_first_batches against Accelerate's, on map datasets: plain loaders and sharded ones on real ranks.
#include <gtest/gtest.h>
#include <torch/data/dataloader_options.h>

#include <map>
#include <mutex>
#include <set>

#include "hasten/data/loader.h"
#include "support/golden.h"
#include "support/ranks.h"
#include "support/samples.h"

namespace hasten::data {
namespace {

using nlohmann::json;
using testing::GoldenCase;
using testing::GoldenTopic;
using torch::data::DataLoaderOptions;
using torch::data::samplers::SequentialSampler;

/// One pass: what was given, and what the gradient state said meanwhile.
template <class Loader>
json one_pass(const Loader& loader, const state::GradientState& state) {
  json batches = json::array(), ends = json::array(), remainders = json::array();
  for (auto& batch : loader) {
    batches.push_back(batch);
    ends.push_back(state.end_of_dataloader());
    remainders.push_back(state.remainder());
  }
  return {
      {"batches", batches}, {"end_of_dataloader", ends}, {"remainder", remainders}, {"len", loader.size()}};
}

auto loader_of(const json& input) {
  const DataLoaderOptions options =
      DataLoaderOptions(input.at("batch_size")).drop_last(input.at("drop_last"));
  return loader<SequentialSampler>(testing::Range(input.at("n")), options);
}

/// docs/differences.md, remainder-lost: a skipped loader says what the whole one says. The case states it for
/// the last batch; Accelerate's whole loaders say the same at every batch.
json remainder_of_the_whole_loader(const GoldenCase& golden) {
  json remainders = json::array();
  for (const auto& rank : golden.expected.at("ranks")) {
    remainders.push_back(std::vector<json>(rank.size(), golden.fixed.at("last_remainder")));
  }
  return {{"remainder", remainders}};
}

/// docs/differences.md, len-differs: the length is the number of batches that are given.
json length_is_what_is_given(const GoldenCase& golden) {
  if (golden.family == "plain") return {{"len", golden.expected.at("batches").size()}};
  json lengths = json::array();
  for (const auto& rank : golden.expected.at("ranks")) lengths.push_back(rank.size());
  return {{"len", lengths}};
}

TEST(SkipFirstBatchesGolden, PlainLoadersGiveTheRestAsThePeersDo) {
  GoldenTopic topic("skip_first_batches", [](const GoldenCase& golden) {
    return golden.family == "plain" && !golden.input.at("iterable");
  });
  topic.on_quirk("len-differs", length_is_what_is_given);

  for (const auto& golden : topic.cases()) {
    const state::GradientState nobody;
    json given =
        one_pass(skip_first_batches(loader_of(golden.input), golden.input.at("num_batches")), nobody);
    given["type"] = "DataLoader";  // a Python class, which the peer keeps for map datasets as we keep Loader
    topic.judge(golden, given);
  }

  topic.finish();
}

TEST(SkipFirstBatchesGolden, ShardedLoadersGiveTheRestAsThePeersDo) {
  GoldenTopic topic("skip_first_batches", [](const GoldenCase& golden) {
    return golden.family == "shard" && !golden.input.at("iterable");
  });
  topic.on_quirk("len-differs", length_is_what_is_given);
  topic.on_quirk("remainder-lost", remainder_of_the_whole_loader);
  std::map<std::string, json> given;
  std::mutex mutex;

  std::set<int> worlds;
  for (const auto& golden : topic.cases()) worlds.insert(golden.input.at("num_processes").get<int>());
  for (const int world_size : worlds) {
    testing::run_ranks(world_size, [&](state::Process& process) {
      for (const auto& golden : topic.cases()) {
        if (golden.input.at("num_processes") != world_size) continue;
        const auto state = std::make_shared<state::GradientState>();
        auto whole = loader_of(golden.input);
        whole.prepare(process, state, {.split_batches = golden.input.at("split_batches")});
        const json pass = one_pass(skip_first_batches(whole, golden.input.at("num_batches")), *state);
        const std::lock_guard lock(mutex);
        for (const char* key : {"end_of_dataloader", "remainder", "len"}) {
          given[golden.name][key][process.rank()] = pass.at(key);
        }
        given[golden.name]["ranks"][process.rank()] = pass.at("batches");
        if (!pass.at("remainder").empty()) given[golden.name]["last_remainder"] = pass.at("remainder").back();
      }
    });
  }

  for (const auto& golden : topic.cases()) topic.judge(golden, given[golden.name]);
  topic.finish();
}

}  // namespace
}  // namespace hasten::data
