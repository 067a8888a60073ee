// Stopping anywhere and going on: what is given afterwards is what an uninterrupted run gives, to every rank,
// with any number of workers, and no skipped sample is read. Seeded samplers send nothing, so ranks can be
// run one after the other here.
#include "hasten/data/loader/loader_state.h"

#include <gtest/gtest.h>
#include <torch/utils.h>

#include <iostream>
#include <nlohmann/json.hpp>
#include <random>

#include "hasten/core/env.h"
#include "hasten/core/error.h"
#include "hasten/data/dataset/concat.h"
#include "hasten/data/dataset/map.h"
#include "hasten/data/dataset/subset.h"
#include "hasten/data/loader/detail/epoch_counter.h"
#include "hasten/data/loader/detail/map_loader.h"
#include "hasten/data/loader/loader.h"
#include "hasten/data/sampler/batch_sampler.h"
#include "hasten/data/sampler/detail/index_source.h"
#include "support/samples.h"

namespace hasten::data {
namespace {

using testing::Range;
using torch::data::DataLoaderOptions;
using Batches = std::vector<Indices>;

process::Process rank_of(int rank, int world_size) {
  process::RankInfo identity;
  identity.rank = identity.local_rank = rank;
  identity.world_size = identity.local_world_size = world_size;
  return {identity, comm::Group()};
}

struct Setting {
  size_t length = 20, batch_size = 4, workers = 0;
  int world_size = 1;
  bool drop_last = false, split_batches = false, even_batches = true;
  Order order = Order::kTorch;
  uint64_t seed = 3;
};

auto make_loader(const Setting& s, int rank) {
  auto ours = loader(Range(s.length), SeedableRandomSampler(s.length, {.seed = s.seed, .order = s.order}),
                     DataLoaderOptions(s.batch_size).workers(s.workers).drop_last(s.drop_last));
  ours.prepare(rank_of(rank, s.world_size), std::make_shared<training::GradientState>(),
               {.split_batches = s.split_batches, .even_batches = s.even_batches});
  return ours;
}

template <class Loader>
Batches epoch_of(const Loader& loader) {
  Batches batches;
  for (auto& batch : loader) batches.push_back(batch);
  return batches;
}

std::ostream& operator<<(std::ostream& out, const Setting& s) {
  return out << "length " << s.length << ", batch_size " << s.batch_size << ", workers " << s.workers << ", world_size "
             << s.world_size << ", drop_last " << s.drop_last << ", split_batches " << s.split_batches
             << ", even_batches " << s.even_batches << ", keyed " << (s.order == Order::kKeyed);
}

class Random {
 public:
  Random()
      : seed_(static_cast<unsigned>(Environment::current().integer("HASTEN_TEST_SEED").value_or(17))), engine_(seed_) {
    std::cout << "seed " << seed_ << std::endl;
  }
  size_t below(size_t limit) { return std::uniform_int_distribution<size_t>(0, limit - 1)(engine_); }
  bool coin() { return below(2) == 1; }
  Setting setting() {
    Setting s;
    s.world_size = 1 + static_cast<int>(below(5));
    s.length = below(60);
    s.split_batches = coin();
    s.batch_size = (1 + below(5)) * (s.split_batches ? static_cast<size_t>(s.world_size) : 1);
    s.workers = below(3);
    s.drop_last = coin();
    s.even_batches = coin();
    s.order = coin() ? Order::kKeyed : Order::kTorch;
    s.seed = below(1000);
    return s;
  }

 private:
  unsigned seed_;
  std::mt19937 engine_;
};

int64_t scale() {
  return Environment::current().integer("HASTEN_TEST_SCALE").value_or(1);
}

TEST(LoaderState, StoppedAnywhereEveryRankGoesOnAsIfItHadNotStopped) {
  Random random;
  for (int64_t round = 0; round < 300 * scale(); ++round) {
    Setting s = random.setting();
    std::vector<Batches> first, second;  // by rank
    for (int rank = 0; rank < s.world_size; ++rank) {
      auto whole = make_loader(s, rank);
      first.push_back(epoch_of(whole));
      second.push_back(epoch_of(whole));
    }
    const size_t stop = random.below(first[0].size() + 1);
    LoaderState state;
    {
      auto stopped = make_loader(s, 0);
      size_t given = 0;
      if (stop > 0) {
        for ([[maybe_unused]] auto& batch : stopped) {
          state = stopped.state();
          if (++given == stop) break;
        }
        EXPECT_EQ(stopped.state(), state) << "after the break it is where the loop was left";
      } else {
        state = stopped.state();
      }
    }
    s.workers = random.below(3);
    for (int rank = 0; rank < s.world_size; ++rank) {
      auto resumed = make_loader(s, rank);
      resumed.load_state(nlohmann::json::parse(nlohmann::json(state).dump()).get<LoaderState>());
      const auto& all = first[static_cast<size_t>(rank)];
      const auto begin = all.begin() + static_cast<std::ptrdiff_t>(std::min(stop, all.size()));

      ASSERT_EQ(epoch_of(resumed), Batches(begin, all.end())) << s << ", stop " << stop << ", rank " << rank;
      ASSERT_EQ(epoch_of(resumed), second[static_cast<size_t>(rank)]) << s << ", the epoch after it";
    }
  }
}

/// One step after the other, rank after rank, without what was given once more.
template <class Loaders>
Indices in_order(const Loaders& loaders, size_t num_new) {
  std::vector<Batches> ranks;
  for (const auto& one : loaders) ranks.push_back(epoch_of(one));
  Indices all;
  for (size_t step = 0; step < ranks[0].size(); ++step) {
    for (const auto& rank : ranks) {
      if (step < rank.size()) all.insert(all.end(), rank[step].begin(), rank[step].end());
    }
  }
  all.resize(std::min(all.size(), num_new));
  return all;
}

TEST(LoaderState, AnotherWorldGoesOnWithExactlyTheSamplesNotYetSeen) {
  Random random;
  for (int64_t round = 0; round < 200 * scale(); ++round) {
    Setting s = random.setting();
    s.drop_last = false;
    s.split_batches = random.coin();
    s.batch_size = s.split_batches ? 12 : 1 + random.below(4);
    const int worlds[] = {1, 2, 3, 4, 6};
    s.world_size = worlds[random.below(5)];
    s.length = 1 + random.below(80);
    SeedableRandomSampler reference(s.length, {.seed = s.seed, .order = s.order});
    const Indices order = *reference.next(s.length);
    auto stopped = make_loader(s, 0);
    const size_t stop = 1 + random.below(stopped.size());
    size_t given = 0;
    for ([[maybe_unused]] auto& batch : stopped) {
      if (++given == stop) break;
    }
    const LoaderState state = stopped.state();
    s.world_size = worlds[random.below(5)];
    std::vector<decltype(make_loader(s, 0))> others;
    for (int rank = 0; rank < s.world_size; ++rank) {
      others.push_back(make_loader(s, rank));
      others.back().load_state(state);
    }

    const Indices rest(order.begin() + static_cast<std::ptrdiff_t>(state.position), order.end());
    ASSERT_EQ(in_order(others, rest.size()), rest) << s << ", position " << state.position;
  }
}

TEST(LoaderState, CountsWhatTheLoopHasReceivedNotWhatWorkersHaveFetched) {
  Range dataset(40);
  const auto reads = dataset.reads();
  auto ours = loader(dataset, SeedableRandomSampler(40), DataLoaderOptions(4).workers(2).max_jobs(8));
  auto it = ours.begin();
  ++it;

  EXPECT_EQ(ours.state().position, 8u);
  EXPECT_EQ(ours.state().epoch, 0u);
  EXPECT_EQ(ours.state().num_samples, 40u);
}

TEST(LoaderState, BatchesOfAnotherProgramsStateAreCountedAsSamples) {
  auto ours = loader(Range(10), SeedableRandomSampler(10, {.seed = 5}), 4);
  ours.load_state({.seed = 5, .num_samples = 10, .batches = 2});
  EXPECT_EQ(ours.state(), (LoaderState{.seed = 5, .position = 8, .num_samples = 10}));
  ours.load_state({.seed = 5, .num_samples = 10, .batches = 3});
  EXPECT_EQ(ours.state().position, 10u);
}

TEST(LoaderState, AfterTheEndItIsTheNextEpochsStart) {
  auto ours = loader(Range(6), SeedableRandomSampler(6, {.seed = 5}), 4);
  epoch_of(ours);

  EXPECT_EQ(ours.state(), (LoaderState{.seed = 5, .epoch = 1, .position = 0, .num_samples = 6}));
}

TEST(LoaderState, ReadsNoSampleThatIsSkipped) {
  for (const size_t workers : {0, 2}) {
    Range dataset(40);
    const auto reads = dataset.reads();
    auto ours = loader(dataset, SeedableRandomSampler(40), DataLoaderOptions(4).workers(workers));
    ours.load_state({.epoch = 2, .position = 32, .num_samples = 40});

    EXPECT_EQ(epoch_of(ours).size(), 2u);
    EXPECT_EQ(*reads, 8u);
  }
}

/// Counts the positions it is asked for.
class CountingSampler : public SeedableSampler {
 public:
  explicit CountingSampler(size_t size) : SeedableSampler(1), order_(size, 1, 0) {}
  size_t size() const noexcept override { return order_.size(); }
  size_t asked() const { return asked_; }

 protected:
  size_t at(size_t position) const override {
    ++asked_;
    return order_[position];
  }

 private:
  KeyedPermutation order_;
  mutable size_t asked_ = 0;
};

TEST(LoaderState, AHundredMillionSamplesAreResumedByTouchingAFewIndices) {
  constexpr size_t kSamples = 100'000'000, kBatch = 64;
  for (const int world_size : {1, 4}) {
    Range dataset(kSamples);
    const auto reads = dataset.reads();
    auto ours = loader(dataset, CountingSampler(kSamples), kBatch);
    ours.prepare(rank_of(world_size - 1, world_size), std::make_shared<training::GradientState>());
    ours.load_state({.seed = 1, .epoch = 7, .position = kSamples / 2, .num_samples = kSamples});
    auto it = ours.begin();

    // Two steps are planned (this one, and whether it is the last), and the first step's samples are looked
    // up.
    EXPECT_LE(ours.sampler().asked(), 3 * kBatch * static_cast<size_t>(world_size));
    EXPECT_EQ(*reads, kBatch);
    EXPECT_EQ(ours.state().position, kSamples / 2 + kBatch * static_cast<size_t>(world_size));
  }
}

TEST(LoaderState, SkippingFirstBatchesOfKeyedOrderTouchesAFewIndicesToo) {
  auto ours = loader(Range(100'000'000), CountingSampler(100'000'000), 64);
  auto rest = skip_first_batches(ours, 1'000'000);
  auto it = rest.begin();

  EXPECT_LE(ours.sampler().asked(), 3u * 64u);
  EXPECT_EQ(ours.state().position, 64u * 1'000'001u);
}

template <class Sampler>
void expect_resumed_by_drawing_again() {
  for (const size_t position : {4, 12, 20}) {
    torch::manual_seed(11);
    auto whole = loader(Range(23), Sampler(23), 4);
    epoch_of(whole);
    LoaderState state;
    Batches rest, next;
    for (auto& batch : whole) {
      if (whole.state().position == position) state = whole.state();
      if (whole.state().position > position) rest.push_back(batch);
    }
    EXPECT_EQ(state.generator.size(), draws_random_numbers<Sampler>::value ? 5056u : 0u);

    torch::manual_seed(99);
    for (const size_t workers : {0, 2}) {
      auto resumed = loader(Range(23), Sampler(23), DataLoaderOptions(4).workers(workers));
      resumed.load_state(state);
      EXPECT_EQ(epoch_of(resumed), rest);
      EXPECT_EQ(resumed.state().epoch, 2u);
    }
  }
}

TEST(LoaderState, TorchsSamplersGoOnByDrawingTheirIndicesAgain) {
  expect_resumed_by_drawing_again<torch::data::samplers::RandomSampler>();
  expect_resumed_by_drawing_again<torch::data::samplers::SequentialSampler>();
}

TEST(LoaderState, OwnBatchesGoOnWhole) {
  const Batches batches{{0, 1, 2}, {3}, {4, 5}, {6, 7, 8, 9}};
  BatchSampler sampler(batches, {.seed = 2, .shuffle = true});
  auto whole = loader(Range(10), sampler, 1);
  const Batches expected = epoch_of(whole);
  for (size_t stop = 1; stop <= batches.size(); ++stop) {
    auto stopped = loader(Range(10), sampler, 1);
    size_t given = 0;
    for ([[maybe_unused]] auto& batch : stopped) {
      if (++given == stop) break;
    }
    auto resumed = loader(Range(10), sampler, 1);
    resumed.load_state(stopped.state());

    EXPECT_EQ(epoch_of(resumed), Batches(expected.begin() + static_cast<std::ptrdiff_t>(stop), expected.end()));
  }
}

TEST(IndexSource, DrawingAgainIntoTheMiddleOfABatchCutsTheRestAnew) {
  using Sampler = torch::data::samplers::SequentialSampler;
  detail::IndexSource source(std::make_unique<detail::SamplerOf<Sampler>>(Sampler(11)), 4, false, 11);
  const auto head = source.begin({.epoch = 0, .position = 5}, 2);
  Batches rest;
  while (auto batch = source.next()) rest.push_back(*batch);

  EXPECT_EQ(head, (Batches{{0, 1, 2, 3}, {4, 5, 6, 7}}));
  EXPECT_EQ(rest, (Batches{{5, 6, 7, 8}, {9, 10}}));
  EXPECT_THROW(source.begin({.epoch = 0, .position = 12}, 0), UsageError);
}

TEST(EpochCounter, FollowsTheNewestPassOnly) {
  detail::EpochCounter epochs;
  epochs.begin();
  const auto first = epochs.follow();
  first(4);
  EXPECT_EQ(epochs.state().position, 4u);
  epochs.begin();
  const auto second = epochs.follow();
  first(8);
  EXPECT_EQ(epochs.state().position, 0u);
  second(2);
  second(std::nullopt);

  EXPECT_EQ(epochs.state(), (LoaderState{.epoch = 2}));
  EXPECT_EQ(epochs.begun(), 2u);
}

TEST(LoaderState, SetEpochRepeatsAnEpoch) {
  auto ours = loader(Range(20), SeedableRandomSampler(20), 4);
  const Batches first = epoch_of(ours);
  const Batches second = epoch_of(ours);
  ours.set_epoch(0);

  EXPECT_EQ(epoch_of(ours), first);
  EXPECT_EQ(epoch_of(ours), second);
  EXPECT_NE(first, second);
}

/// Sample i is 100 * epoch + i.
class EpochDependent : public torch::data::datasets::Dataset<EpochDependent, size_t> {
 public:
  void set_epoch(uint64_t epoch) { epoch_ = epoch; }
  size_t get(size_t index) override { return 100 * epoch_ + index; }
  std::optional<size_t> size() const override { return 9; }

 private:
  uint64_t epoch_ = 0;
};

template <class Dataset>
void expect_told_on_every_worker(const Dataset& dataset) {
  for (const size_t workers : {0, 3}) {
    auto ours = loader(dataset, SeedableSequentialSampler(9), DataLoaderOptions(2).workers(workers));
    ours.begin();  // a pass that is left while workers fetch
    ours.set_epoch(5);

    EXPECT_EQ(epoch_of(ours), (Batches{{500, 501}, {502, 503}, {504, 505}, {506, 507}, {508}}));
    EXPECT_EQ(epoch_of(ours)[0], (Indices{600, 601}));
  }
}

TEST(LoaderState, DatasetsWithSetEpochAreToldOnEveryWorkerBehindEveryWrapper) {
  const EpochDependent dataset;
  const Indices all{0, 1, 2, 3, 4, 5, 6, 7, 8};
  expect_told_on_every_worker(dataset);
  expect_told_on_every_worker(Subset(dataset, all));
  expect_told_on_every_worker(concat(Subset(dataset, {0, 1, 2}), Subset(dataset, {3, 4, 5, 6, 7, 8})));
  expect_told_on_every_worker(
      concat(std::vector<Subset<EpochDependent>>{{dataset, {0, 1, 2, 3}}, {dataset, {4, 5, 6, 7, 8}}}));
  expect_told_on_every_worker(data::map(dataset, [](Indices batch) { return batch; }));
  expect_told_on_every_worker(Subset(concat(Subset(Range(4), {0}), dataset), {1, 2, 3, 4, 5, 6, 7, 8, 9}));
  static_assert(!takes_epoch<Subset<Range>>::value && !takes_epoch<decltype(concat(Range(1), Range(2)))>::value);
}

template <class Fn>
std::string words_of(Fn&& fn) {
  try {
    fn();
  } catch (const UsageError& error) {
    return error.what();
  }
  return "";
}

TEST(LoaderState, OfAnotherDatasetIsRefusedWithTheValues) {
  auto ours = loader(Range(10), SeedableRandomSampler(10, {.seed = 3}), 4);

  EXPECT_EQ(words_of([&] { ours.load_state({.seed = 3, .position = 4, .num_samples = 12}); }),
            "[data] the state is of a loader with num_samples = 12 and seed 3, this one has num_samples = 10 "
            "and seed 3. "
            "Load it into a loader over the same dataset with the same sampler.");
  EXPECT_NE(words_of([&] { ours.load_state({.seed = 4, .num_samples = 10}); }), "");
  EXPECT_NE(words_of([&] { ours.load_state({.seed = 3, .position = 11, .num_samples = 10}); }), "");
  EXPECT_EQ(ours.state(), (LoaderState{.seed = 3, .num_samples = 10})) << "nothing has changed";
  auto drawing = loader(Range(10), 4);
  EXPECT_NE(words_of([&] { drawing.load_state({.position = 4, .num_samples = 10}); }), "");
  EXPECT_NE(words_of([&] {
              drawing.load_state({.position = 4, .num_samples = 10, .generator = {1, 2, 3}});
              drawing.begin();
            }),
            "");
}

TEST(LoaderState, WithoutOrderingThereIsNone) {
  auto ours = loader(Range(10), SeedableRandomSampler(10), DataLoaderOptions(4).workers(2).enforce_ordering(false));

  EXPECT_THROW(ours.state(), UsageError);
}

/// Gives an index that the dataset does not have.
class Beyond : public SeedableSequentialSampler {
 public:
  Beyond() : SeedableSequentialSampler(6) {}

 protected:
  size_t at(size_t position) const override { return position == 4 ? 10 : position; }
};

TEST(LoaderState, AnIndexOutOfRangeIsRefusedBeforeItIsRead) {
  auto ours = loader(Range(6), Beyond(), 3);

  EXPECT_EQ(words_of([&] { epoch_of(ours); }),
            "[data] the sampler gave index 10, but the dataset has 6 samples. Make the sampler for this dataset.");
}

process::Process lone_process() {
  return {process::RankInfo{}, comm::Group(), c10::Device(c10::kCPU)};
}

TEST(LoaderState, TakenBeforeASeedIsDrawnItGoesWithAnySeed) {
  const auto prepared = [] {
    auto ours = loader<torch::data::samplers::RandomSampler>(Range(10), 4);
    ours.prepare(lone_process(), std::make_shared<training::GradientState>(), {.use_seedable_sampler = true});
    return ours;
  };
  const LoaderState before = prepared().state();
  torch::manual_seed(11);
  const Batches plain = epoch_of(prepared());

  auto resumed = prepared();
  resumed.load_state(nlohmann::json::parse(nlohmann::json(before).dump()).get<LoaderState>());
  torch::manual_seed(11);

  EXPECT_EQ(before.seed, std::nullopt);
  EXPECT_EQ(epoch_of(resumed), plain);
  EXPECT_NE(resumed.state().seed, std::nullopt);
  EXPECT_NO_THROW(resumed.load_state(before));
}

TEST(LoaderState, SettingTheEpochThatWasLoadedKeepsItsPosition) {
  const auto make = [] { return loader(Range(8), SeedableSequentialSampler(8), 2); };
  auto same = make(), other = make();
  same.load_state({.epoch = 2, .position = 4, .num_samples = 8});
  other.load_state({.epoch = 2, .position = 4, .num_samples = 8});
  same.set_epoch(2);
  other.set_epoch(3);

  EXPECT_EQ(epoch_of(same), (Batches{{4, 5}, {6, 7}}));
  EXPECT_EQ(same.state().epoch, 3u);
  EXPECT_EQ(epoch_of(other).size(), 4u);
}

}  // namespace
}  // namespace hasten::data
