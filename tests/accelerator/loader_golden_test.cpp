// skip_first_batches and gather_for_metrics against Accelerate's, on datasets with positions and on streams,
// each rank reading its part or rank 0 for all, through the front door with real ranks.
#include <gtest/gtest.h>

#include <map>

#include "accelerator/golden_loaders.h"

namespace hasten {
namespace {

using nlohmann::json;
using testing::GoldenCase;
using testing::GoldenTopic;
using testing::one_pass;
using torch::data::samplers::RandomSampler;
using torch::data::samplers::SequentialSampler;

bool is_stream(const GoldenCase& golden) {
  return golden.input.value("iterable", golden.input.value("kind", "").starts_with("iterable"));
}

AcceleratorOptions options_of(const json& input) {
  AcceleratorOptions options;
  options.loader.split_batches = input.value("split_batches", false);
  options.loader.dispatch_batches = input.value("kind", "").find("_dispatch") != std::string::npos;
  if (input.contains("data_seed")) {
    options.loader.use_seedable_sampler = true;
    options.loader.data_seed = input.at("data_seed");
  }
  return options;
}

/// Calls `use` with the case's loader, which is of one type for streams and of another for positions.
template <class Use>
json with_loader(const Accelerator& accelerator, const GoldenCase& golden, Use&& use) {
  const size_t n = golden.input.at("n");
  const auto options = testing::loader_options_of(golden.input);
  if (is_stream(golden)) return use(accelerator.data_loader(testing::Counting(n), options));
  return use(accelerator.data_loader<SequentialSampler>(testing::Range(n), options));
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
json loader_length_is_what_is_given(const GoldenCase& golden) {
  if (golden.family == "plain") return {{"len", golden.expected.at("batches").size()}};
  json lengths = json::array();
  for (const auto& rank : golden.expected.at("ranks")) lengths.push_back(rank.size());
  return {{"len", lengths}};
}

json plain(const GoldenCase& golden) {
  const training::GradientState nobody;
  const size_t n = golden.input.at("n"), skipped = golden.input.at("num_batches");
  const auto options = testing::loader_options_of(golden.input);
  const auto rest = [&](const auto& whole) { return one_pass(data::skip_first_batches(whole, skipped), nobody); };
  json given = is_stream(golden) ? rest(data::loader(testing::Counting(n), options))
                                 : rest(data::loader<SequentialSampler>(testing::Range(n), options));
  // The Python class of the result; our Loader stays what it was.
  given["type"] = is_stream(golden) ? "SkipDataLoader" : "DataLoader";
  return given;
}

json shard(const Accelerator& accelerator, const GoldenCase& golden) {
  return with_loader(accelerator, golden, [&](const auto& whole) {
    const auto rest = Accelerator::skip_first_batches(whole, golden.input.at("num_batches").template get<size_t>());
    return one_pass(rest, accelerator.gradient_state());
  });
}

json resume(const Accelerator& accelerator, const GoldenCase& golden) {
  const auto whole = accelerator.data_loader<RandomSampler>(testing::Range(golden.input.at("n")),
                                                            golden.input.at("batch_size").get<size_t>());
  const auto batches = [&](const auto& loader) { return one_pass(loader, accelerator.gradient_state()).at("batches"); };
  json epochs = json::array();
  for (int epoch = 0; epoch < 4; ++epoch) epochs.push_back(batches(whole));
  whole.set_epoch(golden.input.at("resume_epoch").get<uint64_t>());
  const json resumed = batches(Accelerator::skip_first_batches(whole, golden.input.at("num_batches").get<size_t>()));
  return {{"epochs", epochs}, {"resumed", resumed}, {"next_epoch_of_original_loader", batches(whole)}};
}

/// epoch-repeated-after-skip: `fixed` gives the next epoch by rank, `expected` has a record for each rank.
GoldenCase with_next_epochs(GoldenCase golden) {
  json ranks = golden.expected.at("ranks");
  for (size_t rank = 0; rank < ranks.size(); ++rank) {
    ranks[rank]["next_epoch_of_original_loader"] = golden.fixed.at("next_epoch_of_original_loader").at(rank);
  }
  golden.fixed = {{"ranks", ranks}};
  return golden;
}

TEST(SkipFirstBatchesGolden, LoadersGiveTheRestAsThePeersDo) {
  GoldenTopic topic("skip_first_batches");
  topic.on_quirk("len-differs", loader_length_is_what_is_given);
  GoldenTopic on_ranks("skip_first_batches", [](const GoldenCase& golden) { return golden.family != "plain"; });

  auto given = testing::on_ranks(on_ranks, options_of, [](const Accelerator& accelerator, const GoldenCase& golden) {
    return golden.family == "shard" ? shard(accelerator, golden) : resume(accelerator, golden);
  });

  topic.for_each([&](const GoldenCase& golden) {
    if (golden.family == "plain") {
      topic.judge(golden, [&] { return plain(golden); });
    } else if (golden.family == "shard") {
      topic.judge(with_whole_remainders(golden), [&] { return testing::by_rank(given.at(golden.name), "ranks"); });
    } else {
      topic.judge(with_next_epochs(golden), {{"ranks", given.at(golden.name)}});
    }
  });
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
  friend void from_json(const json& from, Rows& rows) { rows.values = torch::tensor(from.get<std::vector<int64_t>>()); }
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
  GoldenTopic topic("gather_for_metrics");
  topic.on_quirk("duplicates-kept", each_sample_once);

  auto given = testing::on_ranks(topic, options_of, [](const Accelerator& accelerator, const GoldenCase& golden) {
    return with_loader(accelerator, golden, [&](const auto& whole) -> json {
      const json& input = golden.input;
      if (!golden.family.ends_with("_skip")) return {{"gathered", gather_all(accelerator, input, whole)}};
      return {{"gathered", gather_all(accelerator, input, Accelerator::skip_first_batches(whole, 1))},
              {"whole", gather_all(accelerator, input, whole)}};
    });
  });

  topic.for_each([&](const GoldenCase& golden) {
    const auto& ranks = given.at(golden.name);
    for (const json& rank : ranks) EXPECT_EQ(rank, ranks[0]) << golden.name << ": the ranks differ";
    topic.judge(golden, [&] { return ranks.at(0); });
  });
  topic.finish();
}

}  // namespace
}  // namespace hasten
