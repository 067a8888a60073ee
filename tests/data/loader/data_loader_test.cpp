#include "hasten/data/loader/data_loader.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "hasten/core/error.h"
#include "hasten/data/loader/loader.h"
#include "support/samples.h"

namespace hasten::data {
namespace {

using ::testing::HasSubstr;
using ::testing::ThrowsMessage;
using torch::data::samplers::SequentialSampler;

using Batch = Loader<testing::Range, SequentialSampler>::Batch;

/// No template: takes loaders of any dataset.
size_t count_batches(const DataLoader<Batch>& loader) {
  size_t count = 0;
  for (auto& batch : loader) {
    (void)batch;
    ++count;
  }
  return count;
}

TEST(DataLoader, GivesTheBatchesOfItsLoader) {
  const auto own = loader<SequentialSampler>(testing::Range(10), 4);
  const DataLoader<Batch> any = own;

  EXPECT_EQ(count_batches(any), 3u);
  EXPECT_EQ(count_batches(own), 3u) << "a loader converts where one is taken";
  EXPECT_EQ(any.size(), own.size());
  EXPECT_EQ(any.total_batch_size(), 4u);
}

TEST(DataLoader, ALoopThatGoesOnBehindTheLastBatchIsRefused) {
  const auto own = loader<SequentialSampler>(testing::Range(10), 4);
  auto batch = own.begin();
  for (int i = 0; i < 3; ++i) ++batch;
  const auto refused =
      ThrowsMessage<UsageError>(HasSubstr("the loop goes on behind the loader's last batch. End it at"));

  EXPECT_EQ(batch, own.end());
  EXPECT_THAT([&] { *batch; }, refused);
  EXPECT_THAT([&] { ++batch; }, refused);
  EXPECT_THAT([&] { *own.end(); }, refused);
}

TEST(DataLoader, SharesTheLoadersEpochsAndPosition) {
  const auto own = loader<SequentialSampler>(testing::Range(10), 4);
  const DataLoader<Batch> any = own;
  for (auto& batch : any) {
    (void)batch;
    break;
  }
  const auto state = own.state();
  any.load_state(state);

  EXPECT_EQ(own.epochs_begun(), 1u);
  EXPECT_EQ(count_batches(any), 2u) << "goes on behind the first batch";
}

}  // namespace
}  // namespace hasten::data
