// Dispatching from rank 0: what travels, what is read where, and how failures and positions reach every rank.
#include "hasten/data/dispatch.h"

#include <gtest/gtest.h>
#include <torch/types.h>

#include <map>
#include <mutex>

#include "hasten/data/loader.h"
#include "support/ranks.h"
#include "support/samples.h"

namespace hasten::data {
namespace {

using state::Process;
using testing::Counting;
using testing::Range;
using testing::run_ranks;
using torch::data::DataLoaderOptions;
using torch::data::samplers::RandomSampler;
using Batches = std::vector<Indices>;

template <class Loader>
Batches epoch_of(const Loader& loader) {
  Batches batches;
  for (auto& batch : loader) batches.push_back(batch);
  return batches;
}

struct Labelled {
  at::Tensor x = {};
  std::vector<std::string> names = {};
  std::optional<at::Tensor> none = {};
  double weight = 0;
  friend auto hasten_fields(Labelled& batch) {
    return std::tie(batch.x, batch.names, batch.none, batch.weight);
  }
};

TEST(BatchParcel, CarriesTensorsNumbersAndStringsInAnyStructure) {
  using Batch = std::map<std::string, std::pair<Labelled, std::vector<bool>>>;
  Labelled labelled{.x = torch::rand({2, 3}, torch::kHalf).t(), .names = {"a", ""}, .weight = 0.5};
  Batch batch{{"one", {labelled, {true, false, true}}}, {"two", {Labelled{}, {}}}};
  detail::ParcelWriter to;
  detail::write(to, batch);

  detail::ParcelReader from(to.finish());
  Batch read_back;
  detail::read(from, read_back);

  const auto& [given, flags] = read_back.at("one");
  EXPECT_TRUE(torch::equal(given.x, labelled.x));
  EXPECT_EQ(given.names, labelled.names);
  EXPECT_FALSE(given.none);
  EXPECT_EQ(given.weight, 0.5);
  EXPECT_EQ(flags, (std::vector<bool>{true, false, true}));
  EXPECT_FALSE(read_back.at("two").first.x.defined());
}

TEST(Dispatch, OnlyRank0Reads) {
  for (const size_t workers : {0, 2}) {
    run_ranks(2, [&](Process& process) {
      Range dataset(10);
      const auto reads = dataset.reads();
      auto ours = loader(dataset, SeedableRandomSampler(10), DataLoaderOptions(2).workers(workers));
      ours.prepare(process, std::make_shared<state::GradientState>(), {.dispatch_batches = true});

      EXPECT_EQ(epoch_of(ours).size(), 3u);
      EXPECT_EQ(ours.size(), 3u);
      EXPECT_EQ(*reads, process.rank() == 0 ? 10u : 0u);
    });
  }
}

TEST(Dispatch, AStreamIsDispatchedUnlessToldOtherwise) {
  run_ranks(2, [](Process& process) {
    auto ours = loader(Counting(5), 2).prepare(process, std::make_shared<state::GradientState>());

    EXPECT_EQ(epoch_of(ours), process.rank() == 0 ? (Batches{{0, 1}, {4}}) : (Batches{{2, 3}, {0}}));
  });
}

TEST(Dispatch, FailuresOfRank0ReachEveryRank) {
  std::mutex mutex;
  std::map<int, std::string> words;
  run_ranks(3, [&](Process& process) {
    auto ours = loader(testing::Broken(7, 12), SeedableSequentialSampler(12), 2);
    ours.prepare(process, std::make_shared<state::GradientState>(), {.dispatch_batches = true});
    try {
      epoch_of(ours);
    } catch (const DataError& error) {
      const std::lock_guard lock(mutex);
      words[process.rank()] = error.what();
    }
  });

  EXPECT_EQ(words[0], "[data] rank 0/3: the dataset failed on sample 7 of 12: a hole in the disk");
  for (const int rank : {1, 2}) {
    EXPECT_EQ(words[rank], text("[data] rank ", rank, "/3: rank 0, which reads for all, failed: ", words[0]));
  }
}

template <class MakeLoader>
void expect_resumed_anywhere(const MakeLoader& make, bool split_batches) {
  for (size_t stop = 1; stop <= 3; ++stop) {
    run_ranks(2, [&](Process& process) {
      const auto prepared = [&] {
        auto ours = make();
        ours.prepare(process, std::make_shared<state::GradientState>(),
                     {.split_batches = split_batches, .dispatch_batches = true});
        return ours;
      };
      auto whole = prepared();
      const Batches expected = epoch_of(whole);
      auto stopped = prepared();
      size_t given = 0;
      for ([[maybe_unused]] auto& batch : stopped) {
        if (++given == stop) break;
      }
      auto resumed = prepared();
      resumed.load_state(stopped.state());

      EXPECT_EQ(epoch_of(resumed),
                Batches(expected.begin() + static_cast<std::ptrdiff_t>(given), expected.end()));
      EXPECT_EQ(epoch_of(skip_first_batches(whole, stop)).size(), expected.size() - stop);
    });
  }
}

TEST(Dispatch, GoesOnInMidEpochAsIfItHadNotStopped) {
  for (const bool split_batches : {false, true}) {
    const size_t batch_size = split_batches ? 6 : 3;
    expect_resumed_anywhere(
        [&] { return loader(Range(23), SeedableRandomSampler(23, {.seed = 1}), batch_size); }, split_batches);
    expect_resumed_anywhere([&] { return loader(Counting(23), batch_size); }, split_batches);
  }
}

TEST(Dispatch, SamplersThatDrawGiveOneOrderToAll) {
  std::mutex mutex;
  Indices all;
  run_ranks(2, [&](Process& process) {
    auto ours = loader<RandomSampler>(Range(12), 3);
    ours.prepare(process, std::make_shared<state::GradientState>(), {.dispatch_batches = true});
    for (auto& batch : ours) {
      const std::lock_guard lock(mutex);
      all.insert(all.end(), batch.begin(), batch.end());
    }
  });

  std::sort(all.begin(), all.end());
  EXPECT_EQ(all, (Indices{0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11}));
}

}  // namespace
}  // namespace hasten::data
