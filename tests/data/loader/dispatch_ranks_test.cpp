// Dispatching from rank 0: what travels, what is read where, and how failures and positions reach every rank.
#include "data/loader/detail/dispatch.h"

#include <gtest/gtest.h>
#include <torch/types.h>

#include <map>
#include <mutex>

#include "hasten/data/batch/detail/batch_serialization.h"
#include "hasten/data/loader/loader.h"
#include "support/ranks.h"
#include "support/samples.h"

namespace hasten::data {
namespace {

using process::Process;
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
  friend auto hasten_fields(Labelled& batch) { return std::tie(batch.x, batch.names, batch.none, batch.weight); }
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
      ours.prepare(process, std::make_shared<training::GradientState>(), {.dispatch_batches = true});

      EXPECT_EQ(epoch_of(ours).size(), 3u);
      EXPECT_EQ(ours.size(), 3u);
      EXPECT_EQ(*reads, process.rank() == 0 ? 10u : 0u);
    });
  }
}

TEST(Dispatch, AStreamIsDispatchedUnlessToldOtherwise) {
  run_ranks(2, [](Process& process) {
    auto ours = loader(Counting(5), 2).prepare(process, std::make_shared<training::GradientState>());

    EXPECT_EQ(epoch_of(ours), process.rank() == 0 ? (Batches{{0, 1}, {4}}) : (Batches{{2, 3}, {0}}));
  });
}

TEST(Dispatch, FailuresOfRank0ReachEveryRank) {
  std::mutex mutex;
  std::map<int, std::string> words;
  run_ranks(3, [&](Process& process) {
    auto ours = loader(testing::Broken(7, 12), SeedableSequentialSampler(12), 2);
    ours.prepare(process, std::make_shared<training::GradientState>(), {.dispatch_batches = true});
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
        ours.prepare(process, std::make_shared<training::GradientState>(),
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

      EXPECT_EQ(epoch_of(resumed), Batches(expected.begin() + static_cast<std::ptrdiff_t>(given), expected.end()));
      EXPECT_EQ(epoch_of(skip_first_batches(whole, stop)).size(), expected.size() - stop);
    });
  }
}

TEST(Dispatch, GoesOnInMidEpochAsIfItHadNotStopped) {
  for (const bool split_batches : {false, true}) {
    const size_t batch_size = split_batches ? 6 : 3;
    expect_resumed_anywhere([&] { return loader(Range(23), SeedableRandomSampler(23, {.seed = 1}), batch_size); },
                            split_batches);
    expect_resumed_anywhere([&] { return loader(Counting(23), batch_size); }, split_batches);
  }
}

TEST(Dispatch, SamplersThatDrawGiveOneOrderToAll) {
  std::mutex mutex;
  Indices all;
  run_ranks(2, [&](Process& process) {
    auto ours = loader<RandomSampler>(Range(12), 3);
    ours.prepare(process, std::make_shared<training::GradientState>(), {.dispatch_batches = true});
    for (auto& batch : ours) {
      const std::lock_guard lock(mutex);
      all.insert(all.end(), batch.begin(), batch.end());
    }
  });

  std::sort(all.begin(), all.end());
  EXPECT_EQ(all, (Indices{0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11}));
}

/// Sample i is i with the name "n<i>"; the batches may also hold what cannot be cut.
class Named : public torch::data::datasets::BatchDataset<Named, Labelled> {
 public:
  explicit Named(at::Tensor extra = {}) : extra_(std::move(extra)) {}
  Labelled get_batch(c10::ArrayRef<size_t> indices) override {
    Labelled batch{.x = torch::empty({static_cast<int64_t>(indices.size())}), .weight = 0.5};
    for (size_t i = 0; i < indices.size(); ++i) {
      batch.x[static_cast<int64_t>(i)] = static_cast<int64_t>(indices[i]);
      batch.names.push_back(text("n", indices[i]));
    }
    if (extra_.defined()) batch.none = extra_;
    return batch;
  }
  std::optional<size_t> size() const override { return 7; }

 private:
  at::Tensor extra_;
};

TEST(Dispatch, TextsGoWithTheirSamples) {
  for (const bool split_batches : {false, true}) {
    run_ranks(2, [&](Process& process) {
      auto ours = loader(Named(), SeedableSequentialSampler(7), split_batches ? 4 : 2);
      ours.prepare(process, std::make_shared<training::GradientState>(),
                   {.split_batches = split_batches, .dispatch_batches = true});
      std::vector<std::string> names;
      for (auto& batch : ours) {
        ASSERT_EQ(static_cast<size_t>(batch.x.numel()), batch.names.size());
        for (size_t i = 0; i < batch.names.size(); ++i) {
          EXPECT_EQ(batch.names[i], text("n", batch.x[static_cast<int64_t>(i)].item<int64_t>()));
        }
        EXPECT_EQ(batch.weight, 0.5);
        names.insert(names.end(), batch.names.begin(), batch.names.end());
      }

      EXPECT_EQ(names, process.rank() == 0 ? (std::vector<std::string>{"n0", "n1", "n4", "n5"})
                                           : (std::vector<std::string>{"n2", "n3", "n6", "n0"}));
    });
  }
}

/// The words of the error that ends the loop of each of two ranks.
std::map<int, std::string> words_of_all(const Named& dataset, const LoaderOptions& options) {
  std::mutex mutex;
  std::map<int, std::string> words;
  run_ranks(2, [&](Process& process) {
    auto ours = loader(dataset, SeedableSequentialSampler(7), DataLoaderOptions(4).drop_last(true));
    ours.prepare(process, std::make_shared<training::GradientState>(), options);
    try {
      for ([[maybe_unused]] auto& batch : ours) ADD_FAILURE() << "a batch";
    } catch (const Error& error) {
      const std::lock_guard lock(mutex);
      words[process.rank()] = error.what();
    }
  });
  return words;
}

TEST(Dispatch, ABatchThatCannotBeCutEndsTheLoopOfEveryRank) {
  const LoaderOptions options{.split_batches = true, .dispatch_batches = true};
  for (const auto& extra : {torch::scalar_tensor(1), torch::ones({3}), torch::ones({4}).to_sparse()}) {
    const auto words = words_of_all(Named(extra), options);

    ASSERT_EQ(words.size(), 2u);
    EXPECT_NE(words.at(1).find("rank 0, which reads for all, failed: " + words.at(0)), std::string::npos)
        << words.at(1);
  }
  EXPECT_NE(words_of_all(Named(torch::ones({3})), options)
                .at(0)
                .find("a batch of 4 samples holds a tensor of "
                      "shape [3]"),
            std::string::npos);
}

TEST(Dispatch, AfterSkippedBatchesThePositionCountsThem) {
  run_ranks(2, [](Process& process) {
    auto ours = loader<torch::data::samplers::SequentialSampler>(Range(20), 2);
    ours.prepare(process, std::make_shared<training::GradientState>(), {.dispatch_batches = true});
    for (auto& batch : skip_first_batches(ours, 3)) {
      EXPECT_EQ(batch, process.rank() == 0 ? (Indices{12, 13}) : (Indices{14, 15}));
      EXPECT_EQ(ours.state().position, 16u);
      break;
    }
  });
}

TEST(Dispatch, AnOldPassThatGoesLeavesTheJobsOfTheNewOne) {
  run_ranks(2, [](Process& process) {
    auto ours = loader(Range(32), SeedableSequentialSampler(32),
                       DataLoaderOptions(2).workers(1).max_jobs(8).timeout(std::chrono::milliseconds(20000)));
    ours.prepare(process, std::make_shared<training::GradientState>(), {.dispatch_batches = true});
    auto it = ours.begin();
    for (size_t step = 0; step < 24; ++step) {
      if (it == ours.end()) it = ours.begin();
      EXPECT_EQ((*it)[0], 4 * (step % 8) + (process.rank() == 0 ? 0 : 2));
      ++it;
    }
  });
}

TEST(Dispatch, TheStepsBeforeAFailureAreGivenFirst) {
  run_ranks(2, [](Process& process) {
    auto ours = loader(testing::Broken(9, 12), SeedableSequentialSampler(12), 2);
    ours.prepare(process, std::make_shared<training::GradientState>(), {.dispatch_batches = true});
    Batches given;
    const auto run = [&] {
      for (auto& batch : ours) given.push_back(batch);
    };

    EXPECT_THROW(run(), DataError);
    EXPECT_EQ(given, process.rank() == 0 ? (Batches{{0, 1}, {4, 5}}) : (Batches{{2, 3}, {6, 7}}));
  });
}

}  // namespace
}  // namespace hasten::data
