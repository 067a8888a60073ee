// Loaders of Megatron's indexed data through the front door.
#include "hasten/plugins/megatron_data.h"

#include <c10/util/ScopeExit.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <torch/torch.h>

#include <functional>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "hasten/accelerator.h"
#include "hasten/core/error.h"
#include "hasten/files/disk/disk.h"
#include "hasten/models/bert.h"
#include "hasten/models/gpt2.h"
#include "hasten/models/t5.h"
#include "hasten/models/train_steps.h"
#include "hasten/settings/megatron_lm_plugin.h"
#include "support/folder.h"
#include "support/parallel_models.h"
#include "support/ranks.h"

namespace hasten {
namespace {

using parallel::MegatronDataKind;
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

// Documents of sentences, and their vocabulary.
class MegatronSentences : public hasten::testing::InFolder {
 protected:
  void SetUp() override {
    InFolder::SetUp();
    std::string vocabulary = "[PAD]\n[UNK]\n[CLS]\n[SEP]\n[MASK]\n";
    for (int i = 5; i < 40; ++i)
      vocabulary += (i % 4 == 0 ? "##" : "") + std::string("piece") + std::to_string(i) + "\n";
    write("vocab.txt", vocabulary);
    files::IndexedTokensWriter writer(files::real_disk(), path("text"), files::Dtype::kUInt16);
    for (int i = 0; i < 60; ++i) {
      const auto token = static_cast<uint16_t>(5 + i % 35);
      const std::vector<uint16_t> tokens(static_cast<size_t>(4 + i % 5), token);
      writer.add(tokens.data(), static_cast<int64_t>(tokens.size()));
      if (i % 3 == 2) writer.end_document();
    }
    writer.finish();
  }
  MegatronDataOptions data(MegatronDataKind kind) const {
    return {.kind = kind,
            .data_path = path("text"),
            .splits_string = "8,1,1",
            .micro_batch_size = 4,
            .seq_length = 24,
            .decoder_seq_length = kind == MegatronDataKind::kT5 ? 20 : 0,
            .vocab_file = path("vocab.txt"),
            .vocab_extra_ids = kind == MegatronDataKind::kT5 ? 8 : 0};
  }
  // The first and the last loss of some epochs.
  template <class Net>
  static std::pair<double, double> losses(const MegatronDataOptions& options, std::shared_ptr<Net> net,
                                          const std::function<models::TrainStep(std::shared_ptr<Net>)>& step_of) {
    // Threads of so small a model wait for each other, for a minute where other programs run.
    const int threads = at::get_num_threads();
    const auto restore = c10::make_scope_exit([threads] { at::set_num_threads(threads); });
    at::set_num_threads(1);
    const Accelerator accelerator(process::Process(), {.seed = 3, .tune_allocator = false});
    torch::optim::AdamW adamw(net->parameters(), torch::optim::AdamWOptions(2e-2));
    auto [model, optimizer, loaders] = accelerator.prepare(net, adamw, MegatronLmDummyDataLoader(options));
    const auto step = step_of(net);
    double first = 0, last = 0;
    for (int epoch = 0; epoch < 6; ++epoch) {
      last = 0;
      int batches = 0;
      for (auto& batch : *loaders.train) {
        optimizer.zero_grad();
        last += accelerator.forward_backward<models::TextBatch>(batch, step.loss, step.weight).template item<double>();
        optimizer.step();
        ++batches;
      }
      last /= batches;
      if (epoch == 0) first = last;
    }
    return {first, last};
  }
};

TEST_F(MegatronSentences, TrainBert) {
  const models::BertConfig config{.vocab_size = 42,
                                  .hidden_size = 16,
                                  .num_hidden_layers = 1,
                                  .num_attention_heads = 2,
                                  .intermediate_size = 32,
                                  .max_position_embeddings = 24,
                                  .hidden_dropout_prob = 0,
                                  .attention_probs_dropout_prob = 0};
  torch::manual_seed(5);
  const auto [first, last] = losses<models::BertForPreTrainingImpl>(
      data(MegatronDataKind::kBert), std::make_shared<models::BertForPreTrainingImpl>(config), [](const auto& net) {
        return models::bert_train_step([net](const models::BertBatch& part) {
          EXPECT_TRUE(part.sentence_order.defined());
          EXPECT_EQ(part.tokens.size(1), 24);
          return net->forward(part.tokens, part.padding_mask, part.types);
        });
      });

  EXPECT_LT(last, 0.8 * first);
}

TEST_F(MegatronSentences, TrainT5) {
  const models::T5Config config{
      .vocab_size = 50, .d_model = 16, .d_kv = 8, .d_ff = 32, .num_layers = 1, .num_heads = 2, .dropout_rate = 0};
  torch::manual_seed(5);
  const auto [first, last] = losses<models::T5Impl>(
      data(MegatronDataKind::kT5), std::make_shared<models::T5Impl>(config), [](const auto& net) {
        return models::t5_train_step([net](const models::T5Batch& part) {
          EXPECT_TRUE(part.tokens_dec.slice(1, 0, 1).eq(40).all().template item<bool>()) << "[BOS], behind 40 pieces";
          EXPECT_EQ(part.tokens_enc.size(1), 24);
          return net->forward(part.tokens_enc, part.attention_mask, part.tokens_dec);
        });
      });

  EXPECT_LT(last, 0.8 * first);
}

TEST_F(MegatronSentences, AreDealtOutAndSplitByDocuments) {
  auto bert = data(MegatronDataKind::kBert);
  const files::IndexedTokens tokens(path("text"));
  data::BertSamples expected(tokens, {0, 16}, {.seq_length = 24, .pieces = data::WordPieces::read(path("vocab.txt"))});
  run_ranks(2, [&](process::Process& process) {
    const Accelerator accelerator(process, {.tune_allocator = false});
    auto loaders = accelerator.prepare(MegatronLmDummyDataLoader(bert));
    auto samples = expected;
    EXPECT_EQ(loaders.train->total_dataset_length(), expected.size());
    size_t first = static_cast<size_t>(4 * process.rank());
    int checked = 0;
    for (auto& batch : *loaders.train) {
      if (first + 4 > *expected.size()) break;
      const auto wanted = samples.get_batch({first, first + 1, first + 2, first + 3});
      for (const auto& [name, tensor] : wanted) EXPECT_TRUE(batch.at(name).equal(tensor)) << name;
      first += 8;
      ++checked;
    }
    EXPECT_GT(checked, 1);
  });
}

TEST_F(MegatronSentences, TakeT5sLengthsFromThePlugin) {
  auto options = data(MegatronDataKind::kT5);
  options.seq_length = options.decoder_seq_length = 0;
  const auto made = [&](const MegatronLmPlugin& plugin) {
    return parallel::make_megatron_loaders(options, {.megatron_lm = plugin}, 1);
  };
  auto loaders = made({.encoder_seq_length = 22, .decoder_seq_length = 18});
  const auto batch = *loaders.train->begin();

  EXPECT_EQ(batch.at("input_ids").size(1), 22);
  EXPECT_EQ(batch.at("labels").size(1), 18);
  EXPECT_THAT([&] { made({.encoder_seq_length = 22}); },
              ThrowsMessage<UsageError>(HasSubstr("for T5 without a length of the decoder")));
}

TEST_F(MegatronSentences, WithoutAVocabularyOrExtraIdsAreRefused) {
  auto options = data(MegatronDataKind::kBert);
  options.vocab_file = "";
  EXPECT_THAT([&] { parallel::make_megatron_loaders(options, {}, 1); },
              ThrowsMessage<UsageError>(HasSubstr("for BERT without a vocabulary")));
  options = data(MegatronDataKind::kT5);
  options.vocab_extra_ids = 0;
  EXPECT_THAT([&] { parallel::make_megatron_loaders(options, {}, 1); },
              ThrowsMessage<UsageError>(HasSubstr("without extra ids")));
}

}  // namespace
}  // namespace hasten
