// Loaders of Megatron's indexed data through the front door.
#include "hasten/plugins/megatron_data.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <torch/torch.h>

#include "hasten/accelerator.h"
#include "hasten/core/error.h"
#include "hasten/files/disk/disk.h"
#include "hasten/models/gpt2.h"
#include "hasten/models/train_steps.h"
#include "hasten/settings/megatron_lm_plugin.h"
#include "support/folder.h"
#include "support/parallel_models.h"
#include "support/ranks.h"

namespace hasten {
namespace {

using parallel::MegatronDataOptions;
using parallel::MegatronLmDummyDataLoader;
using ::testing::HasSubstr;
using testing::run_ranks;
using ::testing::ThrowsMessage;

class MegatronData : public hasten::testing::InFolder {
 protected:
  void SetUp() override {
    InFolder::SetUp();
    files::IndexedTokensWriter writer(files::real_disk(), path("text"), files::Dtype::kUInt16);
    for (int i = 0; i < 40; ++i) {
      std::vector<uint16_t> tokens;
      for (int j = 0; j < 5 + i % 7; ++j) tokens.push_back(static_cast<uint16_t>((7 * i + 3 * j) % 90));
      writer.add(tokens.data(), static_cast<int64_t>(tokens.size()));
      writer.end_document();
    }
    writer.finish();
  }
  MegatronDataOptions data() const { return {.data_path = path("text"), .splits_string = "8,1,1"}; }
  data::GptSamples samples(const data::GptSamplesOptions& options, size_t part = 0) const {
    const files::IndexedTokens tokens(path("text"));
    return data::GptSamples(tokens, data::split_sequences("8,1,1", tokens.size())[part], options);
  }
};

TEST_F(MegatronData, IsDealtOutInMegatronsOrder) {
  auto expected = samples({.seq_length = 6});
  auto expected_valid = samples({.seq_length = 6}, 1);
  run_ranks(2, [&](process::Process& process) {
    auto options = data();
    options.micro_batch_size = 2;
    const Accelerator accelerator(
        process, {.tune_allocator = false, .megatron_lm = MegatronLmPlugin{.num_micro_batches = 2, .seq_length = 6}});
    auto loaders = accelerator.prepare(MegatronLmDummyDataLoader(options));
    ASSERT_TRUE(loaders.train && loaders.valid && loaders.test);
    EXPECT_EQ(loaders.train->total_dataset_length(), expected.size());
    EXPECT_EQ(loaders.valid->total_dataset_length(), expected_valid.size());
    size_t first = static_cast<size_t>(4 * process.rank());
    int checked = 0;
    for (auto& batch : *loaders.train) {
      if (first + 4 > *expected.size()) break;
      EXPECT_TRUE(batch.at("text").equal(expected.get_batch({first, first + 1, first + 2, first + 3}).at("text")));
      first += 8;
      ++checked;
    }
    EXPECT_GT(checked, 3);
  });
}

TEST_F(MegatronData, IsOneBatchForTheRanksOfAModel) {
  run_ranks(2, [&](process::Process& process) {
    const Accelerator accelerator(
        process, {.tune_allocator = false, .megatron_lm = MegatronLmPlugin{.tp_degree = 2, .seq_length = 6}});
    auto loaders = accelerator.prepare(MegatronLmDummyDataLoader(data()));
    auto expected = samples({.seq_length = 6});
    size_t next = 0;
    for (auto& batch : *loaders.train) EXPECT_TRUE(batch.at("text").equal(expected.get_batch({next++}).at("text")));
    EXPECT_EQ(next, *expected.size());
  });
}

TEST_F(MegatronData, HasAsManySamplesAsThePluginsStepsTake) {
  const auto sizes = [&](const MegatronLmPlugin& plugin, MegatronDataOptions options) {
    const auto loaders =
        parallel::make_megatron_loaders(options, {.parallel = {.microbatches = 2}, .megatron_lm = plugin}, 3);
    return std::vector{loaders.train->num_indices(), loaders.valid->num_indices(), loaders.test->num_indices()};
  };
  auto own = data();
  own.valid_samples = 7;
  own.seq_length = 3;

  EXPECT_EQ(sizes({.train_iters = 10, .eval_iters = 2, .eval_interval = 4, .seq_length = 6}, data()),
            (std::vector<size_t>{10 * 6, (10 / 4 + 1) * 2 * 6, 2 * 6}));
  EXPECT_EQ(sizes({.train_iters = 10, .eval_iters = 2, .eval_interval = 4, .seq_length = 6}, own),
            (std::vector<size_t>{10 * 6, 7, 2 * 6}));
}

TEST_F(MegatronData, LeavesOutEmptyPartsAndRefusesASampleWithoutLength) {
  auto options = data();
  options.splits_string = "1,0,0";
  options.seq_length = 4;
  const auto loaders = parallel::make_megatron_loaders(options, {}, 1);

  EXPECT_TRUE(loaders.train);
  EXPECT_FALSE(loaders.valid || loaders.test);
  EXPECT_THAT([&] { parallel::make_megatron_loaders(data(), {}, 1); },
              ThrowsMessage<UsageError>(HasSubstr("without a length of its samples")));
  options.micro_batch_size = 0;
  EXPECT_THAT([&] { parallel::make_megatron_loaders(options, {}, 1); },
              ThrowsMessage<UsageError>(HasSubstr("micro_batch_size of a MegatronLmDummyDataLoader is 0")));
}

TEST_F(MegatronData, TrainsAModelWithTheLabelOfItsLastToken) {
  const Accelerator accelerator(process::Process(), {.seed = 3, .tune_allocator = false});
  auto options = data();
  options.seq_length = 8;
  options.micro_batch_size = 4;
  auto net = std::make_shared<models::Gpt2Impl>(testing::small_gpt2_config());
  torch::optim::AdamW adamw(net->parameters(), torch::optim::AdamWOptions(1e-2));
  auto [model, optimizer, loaders] = accelerator.prepare(net, adamw, MegatronLmDummyDataLoader(options));
  const auto step = models::gpt_train_step({}, [&model = model](const models::GptBatch& part) {
    EXPECT_EQ(part.tokens.size(1), 8);
    return model(part.tokens, at::Tensor(), nullptr);
  });
  double first = 0, last = 0;
  for (int epoch = 0; epoch < 20; ++epoch) {
    for (auto& batch : *loaders.train) {
      const auto made = models::gpt_batch(batch, {});
      EXPECT_TRUE(made.labels.equal(batch.at("text").slice(1, 1)));
      optimizer.zero_grad();
      last = accelerator.forward_backward<models::TextBatch>(batch, step.loss, step.weight).item<double>();
      if (first == 0) first = last;
      optimizer.step();
    }
  }
  EXPECT_LT(last, 0.7 * first);
}

}  // namespace
}  // namespace hasten
