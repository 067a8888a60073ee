// skip_first_batches and gather_for_metrics against Accelerate's, on map datasets, through the front door
// with real ranks. Streams and dispatching have cases of their own in the same files; they wait for those
// loaders.
#include <gtest/gtest.h>

#include <map>
#include <mutex>
#include <nlohmann/json.hpp>
#include <set>

#include "hasten/accelerator.h"
#include "support/golden.h"
#include "support/ranks.h"
#include "support/samples.h"

namespace hasten {
namespace {

using nlohmann::json;
using testing::GoldenCase;
using testing::GoldenTopic;
using torch::data::DataLoaderOptions;
using torch::data::samplers::SequentialSampler;

DataLoaderOptions options_of(const json& input) {
  return DataLoaderOptions(input.at("batch_size")).drop_last(input.at("drop_last"));
}

auto prepared_loader(const Accelerator& accelerator, const json& input) {
  return accelerator.data_loader<SequentialSampler>(testing::Range(input.at("n")), options_of(input));
}

/// Runs all cases on as many ranks as each asks for; by case, what each rank gave.
std::map<std::string, std::vector<json>> on_ranks(
    const GoldenTopic& topic, const std::function<json(const Accelerator&, const GoldenCase&)>& run) {
  std::set<int> worlds;
  for (const auto& golden : topic.cases()) worlds.insert(golden.input.at("num_processes").get<int>());
  std::map<std::string, std::vector<json>> given;
  std::mutex mutex;
  for (const int world_size : worlds) {
    testing::run_ranks(world_size, [&](state::Process& process) {
      for (const auto& golden : topic.cases()) {
        if (golden.input.at("num_processes") != world_size) continue;
        const Accelerator accelerator(process, {.split_batches = golden.input.at("split_batches")});
        json result = run(accelerator, golden);
        const std::lock_guard lock(mutex);
        auto& ranks = given[golden.name];
        ranks.resize(static_cast<size_t>(world_size));
        ranks[static_cast<size_t>(process.rank())] = std::move(result);
      }
    });
  }
  return given;
}

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

/// remainder-lost: `fixed` gives the remainder at the last batch. A whole loader of Accelerate's says the
/// same at every batch, and so must ours.
GoldenCase with_whole_remainders(GoldenCase golden) {
  if (!golden.fixed.contains("last_remainder")) return golden;
  for (const auto& rank : golden.expected.at("ranks")) {
    golden.fixed["remainder"].push_back(std::vector<json>(rank.size(), golden.fixed.at("last_remainder")));
  }
  return golden;
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
    const auto whole =
        data::loader<SequentialSampler>(testing::Range(golden.input.at("n")), options_of(golden.input));
    json given = one_pass(data::skip_first_batches(whole, golden.input.at("num_batches")), nobody);
    given["type"] = "DataLoader";  // the Python class, which stays what it was, as our Loader does
    topic.judge(golden, given);
  }

  topic.finish();
}

TEST(SkipFirstBatchesGolden, ShardedLoadersGiveTheRestAsThePeersDo) {
  GoldenTopic topic("skip_first_batches", [](const GoldenCase& golden) {
    return golden.family == "shard" && !golden.input.at("iterable");
  });
  topic.on_quirk("len-differs", length_is_what_is_given);

  auto given = on_ranks(topic, [](const Accelerator& accelerator, const GoldenCase& golden) {
    const auto whole = prepared_loader(accelerator, golden.input);
    const auto rest = Accelerator::skip_first_batches(whole, golden.input.at("num_batches").get<size_t>());
    return one_pass(rest, accelerator.gradient_state());
  });

  for (const auto& golden : topic.cases()) {
    json all;
    for (const json& rank : given.at(golden.name)) {
      all["ranks"].push_back(rank.at("batches"));
      for (const char* key : {"end_of_dataloader", "remainder", "len"}) all[key].push_back(rank.at(key));
      if (!rank.at("remainder").empty()) all["last_remainder"] = rank.at("remainder").back();
    }
    topic.judge(with_whole_remainders(golden), all);
  }
  topic.finish();
}

/// A user's object that holds a tensor: what a list of one tensor is in Python.
struct Rows {
  at::Tensor values;
  friend auto hasten_fields(Rows& rows) { return std::tie(rows.values); }
  friend void to_json(json& to, const Rows& rows) {
    to = std::vector<int64_t>(rows.values.const_data_ptr<int64_t>(),
                              rows.values.const_data_ptr<int64_t>() + rows.values.numel());
  }
  friend void from_json(const json& from, Rows& rows) {
    rows.values = torch::tensor(from.get<std::vector<int64_t>>());
  }
};

json gather_one(const Accelerator& accelerator, const std::string& data, const std::vector<size_t>& batch) {
  const auto tensor = torch::tensor(std::vector<int64_t>(batch.begin(), batch.end()));
  if (data == "tensor") return Rows{accelerator.gather_for_metrics(tensor)};
  if (data == "nested") {
    const std::map<std::string, at::Tensor> nested{{"x", tensor}};
    return Rows{accelerator.gather_for_metrics(nested).at("x")};
  }
  if (data == "tensor_as_object") return accelerator.gather_for_metrics(std::vector<Rows>{Rows{tensor}});
  std::vector<std::string> objects;
  for (const size_t index : batch) objects.push_back(text("s", index));
  return accelerator.gather_for_metrics(objects);
}

template <class Loader>
json gather_all(const Accelerator& accelerator, const json& input, const Loader& loader) {
  json steps = json::array();
  for (auto& batch : loader) steps.push_back(gather_one(accelerator, input.value("data", "tensor"), batch));
  return steps;
}

/// docs/differences.md, duplicates-kept: over a pass the gathered values hold each sample once. The peer's
/// own, without what comes after the n-th sample.
json each_sample_once(const GoldenCase& golden) {
  json steps = json::array();
  size_t left = golden.input.at("n");
  for (const json& step : golden.expected.at("gathered")) {
    json kept = json::array();
    for (const json& object : step) {
      json rows = json::array();
      for (const json& row : object.is_array() ? object : json::array({object})) {
        if (left == 0) break;
        --left;
        rows.push_back(row);
      }
      if (!rows.empty()) kept.push_back(object.is_array() ? rows : rows[0]);
    }
    steps.push_back(kept);
  }
  return {{"gathered", steps}};
}

TEST(GatherForMetricsGolden, GivesEachSampleOnceAsThePeerOrBetter) {
  GoldenTopic topic("gather_for_metrics", [](const GoldenCase& golden) {
    return golden.family == "map" || golden.family == "map_skip";
  });
  topic.on_quirk("duplicates-kept", each_sample_once);

  auto given = on_ranks(topic, [](const Accelerator& accelerator, const GoldenCase& golden) -> json {
    const auto whole = prepared_loader(accelerator, golden.input);
    if (golden.family == "map") return {{"gathered", gather_all(accelerator, golden.input, whole)}};
    return {{"gathered", gather_all(accelerator, golden.input, Accelerator::skip_first_batches(whole, 1))},
            {"whole", gather_all(accelerator, golden.input, whole)}};
  });

  for (const auto& golden : topic.cases()) {
    const auto& ranks = given.at(golden.name);
    for (const json& rank : ranks) EXPECT_EQ(rank, ranks[0]) << golden.name << ": the ranks differ";
    topic.judge(golden, ranks[0]);
  }
  topic.finish();
}

}  // namespace
}  // namespace hasten
