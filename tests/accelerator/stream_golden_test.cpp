// Streams of which each rank keeps its part, against Accelerate's IterableDatasetShard: the rules by
// themselves, and loaders through the front door with real ranks.
#include <gtest/gtest.h>

#include <numeric>

#include "accelerator/golden_loaders.h"
#include "hasten/data/sampler/batch_shard.h"
#include "hasten/data/sampler/permutation.h"

namespace hasten {
namespace {

using data::Indices;
using nlohmann::json;
using testing::GoldenCase;
using testing::GoldenTopic;

/// 0 … n-1, in the order of the epoch where a case has one.
class Stream : public torch::data::datasets::StatefulDataset<Stream, Indices> {
 public:
  explicit Stream(const json& input) : kind_(input.value("dataset", "")), items_(input.at("n").get<size_t>()) {
    std::iota(items_.begin(), items_.end(), size_t{0});
  }
  /// "generator": seeded with the epoch, as IterableDatasetShard does; "set_epoch": epoch * 100 + i.
  void set_epoch(uint64_t epoch) {
    if (kind_ == "generator") items_ = data::torch_permutation(items_.size(), epoch);
    if (kind_ == "set_epoch") std::iota(items_.begin(), items_.end(), 100 * epoch);
  }
  void reset() override { next_ = 0; }
  std::optional<Indices> get_batch(size_t batch_size) override {
    if (next_ == items_.size()) return std::nullopt;
    const size_t end = std::min(next_ + batch_size, items_.size());
    const auto begin = items_.begin();
    return Indices(begin + static_cast<std::ptrdiff_t>(std::exchange(next_, end)),
                   begin + static_cast<std::ptrdiff_t>(end));
  }
  std::optional<size_t> size() const override { return items_.size(); }
  void save(torch::serialize::OutputArchive&) const override {}
  void load(torch::serialize::InputArchive&) override {}

 private:
  std::string kind_;
  Indices items_;
  size_t next_ = 0;
};

/// The pure rules: places in the stream, by rank. Accelerate's class does not refuse to split a batch size of
/// 1; its parts hold no sample then, so with drop_last, or from an empty stream, nothing is given. Loaders
/// refuse it in all cases (prepared_error).
json places(const json& input) {
  json ranks = json::array(), lengths = json::array();
  const size_t n = input.at("n"), batch_size = input.at("batch_size");
  const bool parts_hold_nothing =
      batch_size == 1 && input.at("split_batches") && input.at("drop_last") && input.at("num_processes") > 1;
  for (int rank = 0; rank < input.at("num_processes").get<int>(); ++rank) {
    Indices given;
    if (n > 0 && !parts_hold_nothing) {
      const data::BatchShardOptions options{.rank = rank,
                                            .world_size = input.at("num_processes"),
                                            .batch_size = batch_size,
                                            .split_batches = input.at("split_batches"),
                                            .even_batches = true,
                                            .drop_last = input.at("drop_last")};
      size_t next = 0;
      data::BatchShard shard(options, [&]() -> std::optional<Indices> {
        Indices batch(std::min(batch_size, n - next));
        std::iota(batch.begin(), batch.end(), next);
        next += batch.size();
        if (batch.empty() || (options.drop_last && batch.size() < batch_size)) return std::nullopt;
        return batch;
      });
      while (auto batch = shard.next()) given.insert(given.end(), batch->indices.begin(), batch->indices.end());
    }
    lengths.push_back(given.size());
    ranks.push_back(std::move(given));
  }
  return {{"ranks", ranks}, {"len", lengths}};
}

AcceleratorOptions sharded(const json& input) {
  AcceleratorOptions options;
  options.loader.split_batches = input.at("split_batches");
  options.loader.dispatch_batches = false;
  return options;
}

json prepared(const Accelerator& accelerator, const GoldenCase& golden) {
  const auto loader = accelerator.data_loader(Stream(golden.input), testing::loader_options_of(golden.input));
  const json epoch = golden.input.value("epoch", json());
  if (!epoch.is_null()) loader.set_epoch(epoch.get<uint64_t>());
  json given = testing::one_pass(loader, accelerator.gradient_state());
  if (golden.family == "epoch") {
    json items = json::array();
    for (const json& batch : given.at("batches")) items.insert(items.end(), batch.begin(), batch.end());
    given["batches"] = items;
  }
  return given;
}

/// docs/differences.md, len-differs: the length is what is given.
json stream_length_is_what_is_given(const GoldenCase& golden) {
  json lengths = json::array();
  for (const auto& rank : golden.expected.at("ranks")) lengths.push_back(rank.size());
  return {{"len", lengths}};
}

/// docs/differences.md, loses-samples: what cannot be split without losing samples is refused.
json refused(const GoldenCase&) {
  return testing::golden_error("ValueError");
}

/// docs/differences.md, needs-set-epoch: without set_epoch the first epoch is 0.
json first_epoch_is_0(const GoldenCase& golden) {
  const json& input = golden.input;
  const Indices order = data::torch_permutation(input.at("n"), 0);
  json ranks = json::array();
  const json all = places(input);
  for (const json& rank : all.at("ranks")) {
    Indices items;
    for (const size_t place : rank) items.push_back(order[place]);
    ranks.push_back(items);
  }
  return {{"ranks", ranks}, {"order", order}};
}

TEST(IterableDatasetShardGolden, StreamsAreSpreadAsThePeersAre) {
  GoldenTopic topic("iterable_dataset_shard");
  topic.on_quirk("len-differs", stream_length_is_what_is_given);
  topic.on_quirk("loses-samples", refused);
  topic.on_quirk("needs-set-epoch", first_epoch_is_0);
  GoldenTopic with_ranks("iterable_dataset_shard",
                         [](const GoldenCase& golden) { return golden.family != "grid" && golden.family != "error"; });

  auto given = testing::on_ranks(with_ranks, sharded, prepared);

  topic.for_each([&](const GoldenCase& golden) {
    topic.judge(golden, [&]() -> json {
      try {
        json all =
            given.contains(golden.name) ? testing::by_rank(given.at(golden.name), "ranks") : places(golden.input);
        if (golden.input.value("dataset", "") == "generator" && all.contains("ranks")) {
          const json epoch = golden.input.at("epoch");
          all["order"] = data::torch_permutation(golden.input.at("n"), epoch.is_null() ? 0 : epoch.get<uint64_t>());
        }
        return all;
      } catch (const UsageError&) {
        return testing::golden_error("ValueError");
      }
    });
  });
  topic.finish();
}

}  // namespace
}  // namespace hasten
