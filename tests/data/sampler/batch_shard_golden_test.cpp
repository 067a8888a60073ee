// Sharding against Accelerate's BatchSamplerShard, every case that was taken from it.
#include <gtest/gtest.h>

#include "hasten/core/error.h"
#include "hasten/data/sampler/batch_shard.h"
#include "support/golden.h"

namespace hasten::data {
namespace {

using nlohmann::json;
using testing::GoldenCase;
using testing::GoldenTopic;
using Batches = std::vector<Indices>;

/// torch.utils.data.BatchSampler over 0 … n-1, or the case's own list of batches.
Batches global_batches(const json& input) {
  if (input.contains("batches")) return input.at("batches").get<Batches>();
  const size_t n = input.at("n"), batch_size = input.at("batch_size");
  if (batch_size == 0) return {};
  Batches batches;
  for (size_t i = 0; i < n; ++i) {
    if (i % batch_size == 0) batches.emplace_back();
    batches.back().push_back(i);
  }
  if (input.at("drop_last") && n % batch_size != 0) batches.pop_back();
  return batches;
}

BatchShardOptions options_of(const json& input, int rank) {
  BatchShardOptions options;
  options.rank = rank;
  options.world_size = input.at("num_processes");
  if (!input.at("batch_size").is_null()) options.batch_size = input.at("batch_size");
  options.split_batches = input.at("split_batches");
  options.even_batches = input.at("even_batches");
  options.drop_last = input.at("drop_last");
  return options;
}

Batches one_pass(const Batches& batches, const BatchShardOptions& options) {
  size_t at = 0;
  BatchShard shard(options, [&]() -> std::optional<Indices> {
    if (at == batches.size()) return std::nullopt;
    return batches[at++];
  });
  Batches given;
  while (auto batch = shard.next()) given.push_back(batch->indices);
  return given;
}

json run(const json& input) {
  json ranks = json::array(), lengths = json::array();
  const Batches batches = global_batches(input);
  const size_t last_size = batches.empty() ? 0 : batches.back().size();
  for (int rank = 0; rank < input.at("num_processes").get<int>(); ++rank) {
    const auto options = options_of(input, rank);
    json passes = json::array();
    const int num_epochs = input.value("epochs", 1);
    for (int epoch = 0; epoch < num_epochs; ++epoch) passes.push_back(one_pass(batches, options));
    ranks.push_back(input.contains("epochs") ? passes : passes[0]);
    lengths.push_back(shard_length(batches.size(), last_size, options));
  }
  return {{"ranks", ranks}, {"len", lengths}};
}

/// docs/differences.md, loses-samples: every batch goes to its rank as it is; only the end is evened out.
json nothing_is_lost(const GoldenCase& golden) {
  const json& input = golden.input;
  if (input.at("split_batches")) return json::object();
  const auto world_size = static_cast<size_t>(testing::positive(input.at("num_processes")));
  const auto batch_size = static_cast<size_t>(testing::positive(input.at("batch_size")));
  Batches batches = global_batches(input);
  Indices head;
  for (size_t i = 0; i < std::min(world_size, batches.size()); ++i) {
    head.insert(head.end(), batches[i].begin(), batches[i].end());
  }
  if (input.at("even_batches") && !input.at("drop_last") && !batches.empty()) {
    size_t next = 0;
    for (bool first = true; first || batches.size() % world_size != 0; first = false) {
      if (!first || batches.back().size() >= batch_size) {
        if (batches.size() % world_size == 0) break;
        batches.emplace_back();
      }
      while (batches.back().size() < batch_size) batches.back().push_back(head[next++ % head.size()]);
    }
  }
  std::vector<Batches> ranks(world_size);
  for (size_t i = 0; i < batches.size(); ++i) ranks[i % world_size].push_back(batches[i]);
  json lengths = json::array();
  for (const auto& rank : ranks) lengths.push_back(rank.size());
  return {{"ranks", ranks}, {"len", lengths}};
}

/// docs/differences.md, len-differs: the length is the number of batches that are given.
json length_is_what_is_given(const GoldenCase& golden) {
  json lengths = json::array();
  for (const auto& rank : golden.expected.at("ranks")) lengths.push_back(rank.size());
  return {{"len", lengths}};
}

TEST(BatchShardGolden, GivesWhatThePeerGives) {
  GoldenTopic topic("batch_sampler_shard");
  topic.on_quirk("len-differs", length_is_what_is_given);
  topic.on_quirk("loses-samples", nothing_is_lost);

  topic.for_each([&](const GoldenCase& golden) {
    topic.judge(golden, [&]() -> json {
      try {
        return run(golden.input);
      } catch (const UsageError&) {
        return testing::golden_error("ValueError");
      }
    });
  });

  topic.finish();
}

}  // namespace
}  // namespace hasten::data
