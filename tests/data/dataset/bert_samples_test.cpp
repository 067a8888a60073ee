// BERT's samples: their parts and rates, and what is refused. masked_samples_golden_test.cpp has the peer's numbers.
#include "hasten/data/dataset/bert_samples.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <numeric>

#include "data/dataset/masked_corpus.h"
#include "hasten/core/error.h"

namespace hasten::data {
namespace {

using ::testing::HasSubstr;
using ::testing::ThrowsMessage;

using BertSamplesTest = MaskedCorpus;

TEST_F(BertSamplesTest, MaskAsManyWordsAsAskedForAndShowTheOthers) {
  const std::vector<std::vector<int64_t>> documents(20, {30, 20, 40, 25});
  BertSamples samples(written(documents), {0, 20}, {.seq_length = 128, .num_samples = 200, .pieces = pieces()});
  std::vector<size_t> indices(200);
  std::iota(indices.begin(), indices.end(), 0);
  const auto batch = samples.get_batch(indices);
  const at::Tensor &ids = batch.at("input_ids"), &labels = batch.at("labels"), &mask = batch.at("attention_mask");
  const at::Tensor is_masked = labels.ne(-100);
  const auto count = is_masked.sum().item<double>();
  const auto share = [&](const at::Tensor& of) { return of.logical_and(is_masked).sum().item<double>() / count; };

  EXPECT_EQ(samples.num_epochs(), 10) << "a document is a sample";
  EXPECT_NEAR(count / mask.sum().item<double>(), 0.15, 0.01);
  EXPECT_NEAR(share(ids.eq(4)), 0.8, 0.03);
  EXPECT_NEAR(share(ids.eq(labels)), 0.1, 0.03);
  EXPECT_NEAR(batch.at("next_sentence_label").to(at::kDouble).mean().item<double>(), 0.5, 0.12);
  EXPECT_FALSE(labels.eq(2).logical_or(labels.eq(3)).any().item<bool>()) << "[CLS] and [SEP] are not masked";
  EXPECT_TRUE(ids.select(1, 0).eq(2).all().item<bool>());
}

TEST_F(BertSamplesTest, HavePiecesOfAWordMaskedTogether) {
  const std::vector<std::vector<int64_t>> documents(10, {40, 40});
  BertSamples samples(written(documents), {0, 10},
                      {.seq_length = 96, .pieces = pieces(), .masking = {.short_sequence_probability = 0}});
  int words = 0;
  for (size_t sample = 0; sample < *samples.size(); ++sample) {
    const auto labels = row(samples.get_batch({sample}).at("labels"), 0);
    for (size_t i = 0; i + 1 < labels.size(); ++i) {
      // Words are an odd piece and the even one behind it. Sentences have an even number of them.
      if (labels[i] < 0 || labels[i] % 2 == 0) continue;
      ++words;
      EXPECT_EQ(labels[i + 1], labels[i] + 1);
    }
  }
  EXPECT_GT(words, 20);
}

TEST_F(BertSamplesTest, ThatCannotBeAreRefused) {
  const auto tokens = written({{4, 5}, {3}, {}, {600, 4}});
  const auto refused = [&](const SequenceRange& range, const BertSamplesOptions& options) {
    return [&tokens, range, options] { BertSamples(tokens, range, options); };
  };
  const auto with = [](auto change) {
    BertSamplesOptions options{.seq_length = 16, .pieces = pieces()};
    change(options);
    return options;
  };
  const auto plain = with([](auto&) {});

  EXPECT_THAT(refused({0, 4}, with([](auto& options) { options.seq_length = 4; })),
              ThrowsMessage<UsageError>(HasSubstr("seq_length = 4, num_samples = 0; expected at least 5")));
  EXPECT_THAT(refused({0, 5}, plain), ThrowsMessage<UsageError>(HasSubstr("documents 0 to 5 of 4")));
  EXPECT_THAT(refused({1, 4}, plain), ThrowsMessage<UsageError>(HasSubstr("--split-sentences")));
  EXPECT_THAT(refused({1, 4}, with([](auto& options) { options.num_samples = 3; })),
              ThrowsMessage<UsageError>(HasSubstr("documents 1 to 4 have no sample; expected one of at least 2")));
  EXPECT_THAT(refused({0, 4}, with([](auto& options) { options.masking.masking_probability = 1; })),
              ThrowsMessage<UsageError>(HasSubstr("masking_probability = 1")));
  EXPECT_THAT(refused({0, 4}, with([](auto& options) { options.masking.short_sequence_probability = -1; })),
              ThrowsMessage<UsageError>(HasSubstr("short_sequence_probability = -1")));
  EXPECT_THAT(refused({0, 4}, with([](auto& options) { options.masking.max_ngram = 0; })),
              ThrowsMessage<UsageError>(HasSubstr("max_ngram = 0")));
  EXPECT_THAT(refused({0, 4}, with([](auto& options) { options.pieces.mask_token_id = -1; })),
              ThrowsMessage<UsageError>(HasSubstr("mask_token_id is -1")));
  BertSamples one_text(tokens, {1, 2}, with([](auto& options) { options.sentence_order = false; }));
  EXPECT_EQ(one_text.size(), 1u);
  EXPECT_THAT([&] { one_text.get_batch({1}); }, ThrowsMessage<DataError>(HasSubstr("1")));
  BertSamples unknown(tokens, {0, 2}, with([](auto& options) { options.pieces.vocab_size = 6; }));
  EXPECT_THAT([&] { unknown.get_batch({0}); }, ThrowsMessage<DataError>(HasSubstr("of a vocabulary of 6")));
  const auto real = written<float>({{4, 5}}, files::Dtype::kFloat32);
  EXPECT_THAT([&] { BertSamples(real, {0, 1}, plain); }, ThrowsMessage<DataError>(HasSubstr("expected integers")));
}

}  // namespace
}  // namespace hasten::data
