// Loaders over streams and chunks: torch's own loader is the reference; then ranks, positions and failures.
#include "hasten/data/loader/detail/stream_loader.h"

#include <gtest/gtest.h>
#include <torch/data/dataloader.h>
#include <torch/data/datasets/chunk.h>
#include <torch/data/transforms/stack.h>
#include <torch/types.h>

#include "hasten/data/loader/loader.h"
#include "support/samples.h"

namespace hasten::data {
namespace {

using testing::Counting;
using torch::data::DataLoaderOptions;
using torch::data::samplers::StreamSampler;
using Batches = std::vector<Indices>;

process::Process stream_rank(int rank, int world_size) {
  process::RankInfo identity;
  identity.rank = identity.local_rank = rank;
  identity.world_size = identity.local_world_size = world_size;
  return {identity, comm::Group()};
}

template <class Loader>
Batches stream_epoch(const Loader& loader) {
  Batches batches;
  for (auto& batch : loader) batches.push_back(batch);
  return batches;
}

TEST(Stream, GivesTheStreamsBatchesAgainInEachEpochWithAnyNumberOfWorkers) {
  for (const size_t workers : {0, 1, 3}) {
    auto ours = loader(Counting(7), DataLoaderOptions(3).workers(workers));

    for (int epoch = 0; epoch < 2; ++epoch) EXPECT_EQ(stream_epoch(ours), (Batches{{0, 1, 2}, {3, 4, 5}, {6}}));
    EXPECT_EQ(ours.size(), 3u);
  }
}

TEST(Stream, DropLastLeavesOutTheShortLastBatch) {
  EXPECT_EQ(stream_epoch(loader(Counting(7), DataLoaderOptions(3).drop_last(true))), (Batches{{0, 1, 2}, {3, 4, 5}}));
}

TEST(Stream, KnowsItsEndWithoutKnowingItsLength) {
  const auto state = std::make_shared<training::GradientState>();
  auto ours = loader(Counting(6, false), 3).prepare(stream_rank(0, 1), state);
  std::vector<bool> ends;
  for ([[maybe_unused]] auto& batch : ours) {
    ends.push_back(state->end_of_dataloader());
    EXPECT_EQ(state->remainder(), -1);
  }

  EXPECT_EQ(ends, (std::vector<bool>{false, true}));
  EXPECT_THROW(ours.size(), UsageError);
}

/// Never ends; how long an epoch is says the sampler.
class Endless : public torch::data::datasets::StreamDataset<Endless, Indices> {
 public:
  Indices get_batch(size_t batch_size) override {
    Indices batch;
    for (size_t i = 0; i < batch_size; ++i) batch.push_back(next_++);
    return batch;
  }
  std::optional<size_t> size() const override { return std::nullopt; }

 private:
  size_t next_ = 0;
};

TEST(Stream, WithoutEndIsCutIntoEpochsByTorchsStreamSampler) {
  auto ours = loader(Endless(), StreamSampler(5), 2);

  EXPECT_EQ(stream_epoch(ours), (Batches{{0, 1}, {2, 3}, {4}}));
  EXPECT_EQ(stream_epoch(ours), (Batches{{5, 6}, {7, 8}, {9}}));
}

/// Chunk c is c * 5 … c * 5 + 4, the last one shorter.
class Chunks : public torch::data::datasets::ChunkDataReader<size_t> {
 public:
  using BatchType = Indices;
  Indices read_chunk(size_t chunk) override {
    Indices values;
    for (size_t i = 5 * chunk; i < std::min<size_t>(5 * chunk + 5, 17); ++i) values.push_back(i);
    return values;
  }
  size_t chunk_count() override { return 4; }
  void reset() override {}
};

TEST(Stream, ChunkDatasetsAreReadWhole) {
  using torch::data::samplers::SequentialSampler;
  using Dataset = torch::data::datasets::ChunkDataset<Chunks, SequentialSampler, SequentialSampler>;
  const auto dataset = torch::data::datasets::make_shared_dataset<Dataset>(
      Chunks(), SequentialSampler(0), SequentialSampler(0), torch::data::datasets::ChunkDatasetOptions(1, 4));
  for (const size_t workers : {0, 2}) {
    auto ours = loader(dataset, DataLoaderOptions(4).workers(workers));
    for (int epoch = 0; epoch < 2; ++epoch) {
      const Batches batches = stream_epoch(ours);
      Indices all;
      for (const auto& batch : batches) all.insert(all.end(), batch.begin(), batch.end());
      Indices expected(17);
      std::iota(expected.begin(), expected.end(), size_t{0});

      EXPECT_EQ(all, expected);
      EXPECT_EQ(batches.size(), 5u);
    }
  }
}

/// Examples of tensors, stacked by a transform, so that batches are structures of tensors.
class Examples : public torch::data::datasets::StatefulDataset<Examples> {
 public:
  void reset() override { next_ = 0; }
  std::optional<std::vector<torch::data::Example<>>> get_batch(size_t batch_size) override {
    std::vector<torch::data::Example<>> batch;
    for (; next_ < 5 && batch.size() < batch_size; ++next_) {
      const auto i = torch::tensor(static_cast<int64_t>(next_));
      batch.emplace_back(torch::stack({i, 10 * i}), i);
    }
    return batch.empty() ? std::nullopt : std::optional(batch);
  }
  std::optional<size_t> size() const override { return 5; }
  void save(torch::serialize::OutputArchive&) const override {}
  void load(torch::serialize::InputArchive&) override {}

 private:
  size_t next_ = 0;
};

TEST(Stream, StackedBatchesAreCutAndFilledUpByRows) {
  for (int rank = 0; rank < 2; ++rank) {
    auto ours = loader(Examples().map(torch::data::transforms::Stack<>()), 2);
    const auto state = std::make_shared<training::GradientState>();
    ours.prepare(stream_rank(rank, 2), state, {.dispatch_batches = false});
    std::vector<at::Tensor> targets;
    for (auto& batch : ours) {
      EXPECT_EQ(batch.data.sizes(), (std::vector<int64_t>{2, 2}));
      targets.push_back(batch.target);
      EXPECT_EQ(state->remainder(), 0) << "as Accelerate's, which cuts nothing off streams";
    }

    ASSERT_EQ(targets.size(), 2u);
    EXPECT_TRUE(
        torch::equal(torch::cat(targets), rank == 0 ? torch::tensor({0, 1, 4, 0}) : torch::tensor({2, 3, 1, 2})));
  }
}

/// Can begin anywhere, and says which samples were read.
class Seekable : public Counting {
 public:
  explicit Seekable(size_t size) : Counting(size), size_(size) {}
  void reset() override { next_ = 0; }
  void seek(size_t position) { next_ = position; }
  std::optional<Indices> get_batch(size_t batch_size) override {
    Indices batch;
    for (; next_ < size_ && batch.size() < batch_size; ++next_) batch.push_back(next_);
    *reads_ += batch.size();
    return batch.empty() ? std::nullopt : std::optional(batch);
  }
  std::shared_ptr<std::atomic<size_t>> reads() const { return reads_; }

 private:
  size_t size_, next_ = 0;
  std::shared_ptr<std::atomic<size_t>> reads_ = std::make_shared<std::atomic<size_t>>(0);
};

template <class Dataset>
void expect_resumed_anywhere(size_t world_size, size_t workers) {
  for (size_t stop = 1; stop <= 4; ++stop) {
    for (size_t rank = 0; rank < world_size; ++rank) {
      const auto prepared = [&] {
        auto ours = loader(Dataset(23), DataLoaderOptions(3).workers(workers));
        ours.prepare(stream_rank(static_cast<int>(rank), static_cast<int>(world_size)),
                     std::make_shared<training::GradientState>(), {.dispatch_batches = false});
        return ours;
      };
      auto whole = prepared();
      const Batches expected = stream_epoch(whole);
      auto stopped = prepared();
      size_t given = 0;
      for ([[maybe_unused]] auto& batch : stopped) {
        if (++given == std::min(stop, expected.size())) break;
      }
      auto resumed = prepared();
      resumed.load_state(stopped.state());

      EXPECT_EQ(stream_epoch(resumed), Batches(expected.begin() + static_cast<std::ptrdiff_t>(given), expected.end()))
          << "world_size " << world_size << ", rank " << rank << ", stop " << stop;
      EXPECT_EQ(stream_epoch(resumed), expected);
    }
  }
}

TEST(Stream, GoesOnInMidEpochAsIfItHadNotStopped) {
  for (const size_t world_size : {1, 2, 3}) {
    for (const size_t workers : {0, 1}) {
      expect_resumed_anywhere<Counting>(world_size, workers);
      expect_resumed_anywhere<Seekable>(world_size, workers);
    }
  }
}

TEST(Stream, ThatCanSeekIsNotReadPast) {
  Seekable dataset(1000);
  const auto reads = dataset.reads();
  auto ours = loader(dataset, 10);
  ours.load_state({.position = 900, .num_samples = 1000});

  EXPECT_EQ(stream_epoch(ours).size(), 10u);
  EXPECT_EQ(*reads, 100u);
}

TEST(Stream, SkippingLeavesOutItsFirstBatches) {
  auto ours = loader(Counting(7), 2);

  EXPECT_EQ(stream_epoch(skip_first_batches(ours, 2)), (Batches{{4, 5}, {6}}));
  EXPECT_EQ(stream_epoch(ours).size(), 4u);
}

/// Fails after some samples.
class Failing : public Counting {
 public:
  Failing() : Counting(9) {}
  std::optional<Indices> get_batch(size_t batch_size) override {
    auto batch = Counting::get_batch(batch_size);
    if (batch->front() == 4) throw std::runtime_error("the line is dead");
    return batch;
  }
};

TEST(Stream, ItsFailureReachesTheLoopWithThePlace) {
  for (const size_t workers : {0, 1}) {
    auto ours = loader(Failing(), DataLoaderOptions(2).workers(workers));
    try {
      stream_epoch(ours);
      ADD_FAILURE() << "no error";
    } catch (const DataError& error) {
      EXPECT_STREQ(error.what(), "[data] the stream failed after 4 samples: the line is dead");
      EXPECT_THROW(std::rethrow_if_nested(error), std::runtime_error);
    }
  }
}

TEST(Stream, IsDestroyedInMidEpoch) {
  for (int round = 0; round < 200; ++round) {
    auto ours = loader(Counting(1000), DataLoaderOptions(2).workers(1));
    auto it = ours.begin();
    ++it;
  }
}

TEST(Stream, TheBatchesBeforeAFailureAreGivenFirst) {
  for (const size_t workers : {0, 1}) {
    auto ours = loader(Failing(), DataLoaderOptions(2).workers(workers));
    Batches given;
    const auto run = [&] {
      for (auto& batch : ours) given.push_back(batch);
    };

    EXPECT_THROW(run(), DataError);
    EXPECT_EQ(given, (Batches{{0, 1}, {2, 3}}));
  }
}

/// Fails with an error of hasten's own.
class FailingFile : public Counting {
 public:
  FailingFile() : Counting(9) {}
  std::optional<Indices> get_batch(size_t batch_size) override {
    auto batch = Counting::get_batch(batch_size);
    if (batch->front() == 4) throw DataError(Origin{"data"}, "a.txt", "'a.txt' is truncated");
    return batch;
  }
};

TEST(Stream, ADataErrorOfItsOwnHasThePlaceAndItsPathToo) {
  try {
    stream_epoch(loader(FailingFile(), 2));
    ADD_FAILURE() << "no error";
  } catch (const DataError& error) {
    EXPECT_STREQ(error.what(), "[data] the stream failed after 4 samples: [data] 'a.txt' is truncated");
    EXPECT_EQ(error.path(), "a.txt");
  }
}

/// Leaves some of its numbers out, so that a batch may be empty.
class Filtered : public Counting {
 public:
  Filtered() : Counting(9) {}
  std::optional<Indices> get_batch(size_t batch_size) override {
    auto batch = Counting::get_batch(batch_size);
    if (batch) std::erase_if(*batch, [](size_t number) { return number >= 2 && number <= 5; });
    return batch;
  }
};

TEST(Stream, EmptyBatchesInItsMidstArePassedOver) {
  for (const size_t workers : {0, 1}) {
    auto ours = loader(Filtered(), DataLoaderOptions(2).workers(workers));

    EXPECT_EQ(stream_epoch(ours), (Batches{{0, 1}, {6, 7}, {8}}));
  }
}

/// Numbers with their names, in batches of at most three.
struct NamedNumbers {
  at::Tensor numbers = {};
  std::vector<std::string> names = {};
  friend auto hasten_fields(NamedNumbers& batch) { return std::tie(batch.numbers, batch.names); }
};

NamedNumbers named(const Indices& numbers) {
  NamedNumbers batch{.numbers = torch::empty({static_cast<int64_t>(numbers.size())}, torch::kLong)};
  for (size_t i = 0; i < numbers.size(); ++i) {
    batch.numbers[static_cast<int64_t>(i)] = static_cast<int64_t>(numbers[i]);
    batch.names.push_back(text("n", numbers[i]));
  }
  return batch;
}

class NamedStream : public torch::data::datasets::StatefulDataset<NamedStream, NamedNumbers> {
 public:
  void reset() override { numbers_.reset(); }
  std::optional<NamedNumbers> get_batch(size_t batch_size) override {
    const auto numbers = numbers_.get_batch(batch_size);
    return numbers ? std::optional(named(*numbers)) : std::nullopt;
  }
  std::optional<size_t> size() const override { return 5; }
  void save(torch::serialize::OutputArchive&) const override {}
  void load(torch::serialize::InputArchive&) override {}

 private:
  Counting numbers_{5};
};

TEST(Stream, TextsAreCutAndFilledUpWithTheirSamples) {
  auto ours = loader(NamedStream(), 4);
  ours.prepare(stream_rank(1, 2), std::make_shared<training::GradientState>(),
               {.split_batches = true, .dispatch_batches = false});
  std::vector<std::vector<std::string>> names;
  for (auto& batch : ours) {
    names.push_back(batch.names);
    EXPECT_EQ(batch.numbers.numel(), 2);
  }

  EXPECT_EQ(names, (std::vector<std::vector<std::string>>{{"n2", "n3"}, {"n1", "n2"}}));
}

}  // namespace
}  // namespace hasten::data
