// Samples of indexed tokens. The expected orders are those of Megatron-Core's gpt_dataset.py, computed with numpy.
#include "hasten/data/dataset/indexed.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cstdint>
#include <vector>

#include "hasten/core/error.h"
#include "hasten/files/disk/disk.h"
#include "support/folder.h"

namespace hasten::data {
namespace {

using files::Dtype;
using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::ThrowsMessage;

class IndexedSamples : public hasten::testing::InFolder {
 protected:
  // Sequence i has the tokens 100 i, 100 i + 1, …
  template <class T = uint16_t>
  files::IndexedTokens written(Dtype dtype = Dtype::kUInt16,
                               const std::vector<int64_t>& lengths = {5, 1, 7, 3, 0, 9, 4, 6, 2, 8}) {
    files::IndexedTokensWriter writer(files::real_disk(), path("text"), dtype);
    for (size_t i = 0; i < lengths.size(); ++i) {
      std::vector<T> tokens;
      for (int64_t j = 0; j < lengths[i]; ++j) tokens.push_back(static_cast<T>(100 * static_cast<int64_t>(i) + j));
      writer.add(tokens.data(), lengths[i]);
      writer.end_document();
    }
    writer.finish();
    return files::IndexedTokens(path("text"));
  }
  static std::vector<int64_t> row(GptSamples& samples, size_t index) {
    const at::Tensor text = samples.get_batch({index}).at("text");
    return {text.const_data_ptr<int64_t>(), text.const_data_ptr<int64_t>() + text.numel()};
  }
  static std::vector<int64_t> firsts(GptSamples& samples) {
    std::vector<int64_t> all;
    for (size_t i = 0; i < *samples.size(); ++i) all.push_back(row(samples, i)[0]);
    return all;
  }
};

TEST_F(IndexedSamples, ComeInMegatronsOrder) {
  GptSamples one(written(), {1, 9}, {.seq_length = 3});
  GptSamples apart(written(), {1, 9}, {.seq_length = 3, .num_samples = 27});
  GptSamples together(written(), {1, 9}, {.seq_length = 3, .num_samples = 30});

  EXPECT_THAT(firsts(one), ElementsAre(507, 705, 501, 300, 702, 206, 203, 601, 504, 200));
  EXPECT_EQ(one.num_epochs(), 1);
  EXPECT_THAT(firsts(apart), ElementsAre(301, 602, 204, 603, 507, 508, 100, 205, 701, 600, 301, 504, 202, 704, 501, 701,
                                         201, 704, 502, 801, 505, 506, 801, 503, 602, 700, 703))
      << "little of the last epoch is needed, which is shuffled by itself";
  EXPECT_EQ(apart.num_epochs(), 3);
  EXPECT_THAT(firsts(together), ElementsAre(206, 508, 700, 205, 504, 700, 206, 200, 100, 503, 300, 300, 801, 702, 202,
                                            203, 505, 703, 507, 800, 602, 501, 203, 602, 200, 302, 601, 502, 500, 506));
}

TEST_F(IndexedSamples, RunOverTheEndsOfSequences) {
  GptSamples samples(written<int32_t>(Dtype::kInt32), {0, 10}, {.seq_length = 4, .seed = 7});

  EXPECT_EQ(samples.size(), 11u) << "(45 - 1) / 4";
  EXPECT_THAT(row(samples, 0), ElementsAre(502, 503, 504, 505, 506));
  EXPECT_THAT(row(samples, 1), ElementsAre(1, 2, 3, 4, 200));
  EXPECT_THAT(row(samples, 3), ElementsAre(204, 205, 206, 100, 900));
  EXPECT_THAT(row(samples, 10), ElementsAre(302, 600, 601, 602, 603));
  const at::Tensor both = samples.get_batch({10, 1}).at("text");
  EXPECT_THAT(std::vector<int64_t>(both.sizes().begin(), both.sizes().end()), ElementsAre(2, 5));
  EXPECT_EQ(both[1][4].item<int64_t>(), 200);
}

TEST_F(IndexedSamples, OfEveryKindOfIntegerAreTheSame) {
  const std::vector<int64_t> lengths = {6};
  const auto of = [&](const files::IndexedTokens& tokens) {
    GptSamples samples(tokens, {0, 1}, {.seq_length = 5});
    return row(samples, 0);
  };

  EXPECT_THAT(of(written<uint8_t>(Dtype::kUInt8, lengths)), ElementsAre(0, 1, 2, 3, 4, 5));
  EXPECT_THAT(of(written<int8_t>(Dtype::kInt8, lengths)), ElementsAre(0, 1, 2, 3, 4, 5));
  EXPECT_THAT(of(written<int16_t>(Dtype::kInt16, lengths)), ElementsAre(0, 1, 2, 3, 4, 5));
  EXPECT_THAT(of(written<int64_t>(Dtype::kInt64, lengths)), ElementsAre(0, 1, 2, 3, 4, 5));
  EXPECT_THAT([&] { of(written<float>(Dtype::kFloat32, lengths)); },
              ThrowsMessage<DataError>(HasSubstr("expected integers")));
}

TEST_F(IndexedSamples, ThatCannotBeAreRefused) {
  const auto tokens = written();
  const auto refused = [&](const SequenceRange& range, const GptSamplesOptions& options) {
    return [=] { GptSamples(tokens, range, options); };
  };

  EXPECT_THAT(refused({0, 10}, {.seq_length = 0}), ThrowsMessage<UsageError>(HasSubstr("seq_length = 0")));
  EXPECT_THAT(refused({0, 11}, {}), ThrowsMessage<UsageError>(HasSubstr("sequences 0 to 11 of 10")));
  EXPECT_THAT(refused({3, 5}, {.seq_length = 3}),
              ThrowsMessage<UsageError>(HasSubstr("have 3 tokens; expected at least seq_length + 1 = 4")));
  EXPECT_THAT(refused({4, 5}, {.seq_length = 3, .num_samples = 5}),
              ThrowsMessage<UsageError>(HasSubstr("have 0 tokens")));
  GptSamples few(tokens, {3, 5}, {.seq_length = 3, .num_samples = 2});
  EXPECT_EQ(few.num_epochs(), 3) << "a sample may be longer than an epoch";
  EXPECT_THAT([&] { few.get_batch({2}); }, ThrowsMessage<DataError>(HasSubstr("2")));
}

TEST(SplitSequences, AreTheirSharesInOrder) {
  EXPECT_THAT(split_sequences("969, 30, 1", 1000),
              ElementsAre(SequenceRange{0, 969}, SequenceRange{969, 999}, SequenceRange{999, 1000}));
  EXPECT_THAT(split_sequences("8/1/1", 20),
              ElementsAre(SequenceRange{0, 16}, SequenceRange{16, 18}, SequenceRange{18, 20}));
  EXPECT_THAT(split_sequences("3,1", 10), ElementsAre(SequenceRange{0, 8}, SequenceRange{8, 10}, SequenceRange{10, 10}))
      << "7.5 is rounded to 8";
  EXPECT_THAT(split_sequences("1", 3), ElementsAre(SequenceRange{0, 3}, SequenceRange{3, 3}, SequenceRange{3, 3}));
}

TEST(SplitSequences, OfOtherTextAreRefused) {
  for (const char* const splits : {"", "a,b", "0,0,0", "1,-1", "1,2,3,4", "inf"}) {
    EXPECT_THAT([&] { split_sequences(splits, 10); }, ThrowsMessage<UsageError>(HasSubstr("splits are '"))) << splits;
  }
}

}  // namespace
}  // namespace hasten::data
