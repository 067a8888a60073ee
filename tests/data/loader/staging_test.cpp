// Batches on their way to a device: what is sent when, and that on the CPU nothing is done at all.
#include "data/loader/detail/staging.h"

#include <gtest/gtest.h>
#include <torch/types.h>

#include <string>
#include <thread>
#include <vector>

#include "data/loader/detail/worker_pool.h"
#include "hasten/data/dataset/tensor_dataset.h"
#include "hasten/data/loader/loader.h"
#include "support/samples.h"

namespace hasten::data {
namespace {

using torch::data::DataLoaderOptions;
using torch::data::samplers::SequentialSampler;

using detail::AnyBatch;
using detail::EpochPipeline;
using detail::PipelineStages;
using detail::PlannedBatch;

int number_of(const AnyBatch& batch) {
  return detail::batch_in<int>(batch);
}

/// A pass over the batches 0, 1, 2, 3 that notes what is done to each.
class Noted {
 public:
  PipelineStages stages() {
    PipelineStages stages;
    stages.plan = [this]() -> std::optional<PlannedBatch> {
      if (planned_ == 4) return std::nullopt;
      return PlannedBatch{{.indices = {static_cast<size_t>(planned_++)}}};
    };
    stages.fetch.fetch = [](size_t, const Indices& indices) { return detail::any_batch(static_cast<int>(indices[0])); };
    stages.transfer.send = [this](const AnyBatch& batch) {
      log.push_back("send " + std::to_string(number_of(batch)));
      return batch;
    };
    stages.transfer.receive = [this](const AnyBatch& batch) {
      log.push_back("receive " + std::to_string(number_of(batch)));
    };
    return stages;
  }
  void run(EpochPipeline& pass) {
    for (pass.advance(); !pass.at_end(); pass.advance())
      log.push_back("loop " + std::to_string(number_of(pass.batch())));
  }

  std::vector<std::string> log;

 private:
  int planned_ = 0;
};

TEST(TransferStage, ABatchThatIsThereIsSentWhileTheLoopHasTheOneBefore) {
  Noted noted;
  auto stages = noted.stages();
  stages.plan = [plan = stages.plan] {  // as streams and rank 0's slices are: read when they are planned
    auto planned = plan();
    if (planned) planned->ready = detail::any_batch(static_cast<int>(planned->shard.indices[0]));
    return planned;
  };
  EpochPipeline pass(std::move(stages));

  noted.run(pass);

  EXPECT_EQ(noted.log, (std::vector<std::string>{"send 0", "receive 0", "send 1", "loop 0", "receive 1", "send 2",
                                                 "loop 1", "receive 2", "send 3", "loop 2", "receive 3", "loop 3"}));
}

TEST(TransferStage, WithoutWorkersNothingIsFetchedAhead) {
  Noted noted;
  EpochPipeline pass(noted.stages());

  noted.run(pass);

  EXPECT_EQ(noted.log, (std::vector<std::string>{"send 0", "receive 0", "loop 0", "send 1", "receive 1", "loop 1",
                                                 "send 2", "receive 2", "loop 2", "send 3", "receive 3", "loop 3"}));
}

TEST(TransferStage, WorkersPinAndTheLoopsThreadSendsAtMostOneAhead) {
  WorkerPool workers(2);
  Noted noted;
  auto stages = noted.stages();
  stages.fetch.workers = &workers;
  stages.fetch.max_jobs = 4;
  const auto loop = std::this_thread::get_id();
  stages.transfer.pin = [&](const AnyBatch& batch) {
    EXPECT_NE(std::this_thread::get_id(), loop);
    return detail::any_batch(number_of(batch) + 100);
  };
  EpochPipeline pass(std::move(stages));

  noted.run(pass);

  int sent = 0, received = 0, given = 0;
  for (const std::string& line : noted.log) {
    int& next = line.starts_with("send") ? sent : line.starts_with("receive") ? received : given;
    EXPECT_EQ(line.substr(line.find(' ')), " " + std::to_string(100 + next++)) << line;
    EXPECT_LE(received, sent);
    EXPECT_LE(sent, given + 2) << "one in the loop's hands, one ahead";
  }
  EXPECT_EQ(given, 4);
}

process::Process on(c10::DeviceType device) {
  return {process::RankInfo{}, comm::Group(), c10::Device(device)};
}

/// Gives one and the same tensor.
class Same : public torch::data::datasets::BatchDataset<Same, std::vector<at::Tensor>> {
 public:
  std::vector<at::Tensor> get_batch(c10::ArrayRef<size_t>) override { return {tensor}; }
  std::optional<size_t> size() const override { return 6; }
  at::Tensor tensor = torch::ones({3});
};

TEST(Staging, OnTheCpuTheLoopGetsTheDatasetsOwnTensors) {
  EXPECT_FALSE(detail::Staging::serves(c10::kCPU));
  for (const bool pin_memory : {false, true}) {
    for (const size_t workers : {0, 2}) {
      const Same dataset;
      auto ours = loader<SequentialSampler>(dataset, DataLoaderOptions(2).workers(workers));
      ours.prepare(on(c10::kCPU), std::make_shared<training::GradientState>(), {.pin_memory = pin_memory});

      for (auto& batch : ours) {
        EXPECT_TRUE(batch[0].is_same(dataset.tensor));
        EXPECT_FALSE(batch[0].is_pinned());
      }
    }
  }
}

// The meta device is none that staging serves, but a device all the same.
TEST(Staging, PutOnDeviceMovesBatchesToTheProcesssDeviceOrLeavesThem) {
  EXPECT_FALSE(detail::Staging::serves(c10::kMeta));
  for (const bool put_on_device : {true, false}) {
    for (const size_t workers : {0, 2}) {
      auto ours = loader<SequentialSampler>(TensorDataset(torch::arange(5), torch::arange(5)),
                                            DataLoaderOptions(2).workers(workers));
      ours.prepare(on(c10::kMeta), std::make_shared<training::GradientState>(), {.put_on_device = put_on_device});
      size_t num_batches = 0;

      for (auto& batch : ours) {
        EXPECT_EQ(batch.data.is_meta(), put_on_device);
        EXPECT_EQ(batch.target.is_meta(), put_on_device);
        ++num_batches;
      }
      EXPECT_EQ(num_batches, 3u);
    }
  }
}

/// A batch whose tensors nobody has named.
struct Opaque {
  at::Tensor tensor;
};
class Opaques : public torch::data::datasets::BatchDataset<Opaques, Opaque> {
 public:
  Opaque get_batch(c10::ArrayRef<size_t>) override { return {torch::ones({1})}; }
  std::optional<size_t> size() const override { return 2; }
};

TEST(Staging, ABatchWhoseTensorsAreNotKnownIsRefusedUnlessItMayStay) {
  const auto state = std::make_shared<training::GradientState>();

  EXPECT_THROW(loader<SequentialSampler>(Opaques(), 1).prepare(on(c10::kMeta), state), UsageError);
  EXPECT_NO_THROW(loader<SequentialSampler>(Opaques(), 1).prepare(on(c10::kMeta), state, {.put_on_device = false}));
}

}  // namespace
}  // namespace hasten::data
