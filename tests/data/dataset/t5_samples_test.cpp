// T5's samples: encoder and decoder together are the text; what is refused. masked_samples_golden_test.cpp has the
// peer's numbers.
#include "hasten/data/dataset/t5_samples.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <map>

#include "data/dataset/masked_corpus.h"
#include "hasten/core/error.h"

namespace hasten::data {
namespace {

using ::testing::HasSubstr;
using ::testing::ThrowsMessage;

class T5SamplesTest : public MaskedCorpus {
 protected:
  // The text whose spans the labels have, up to the end of the text.
  static std::vector<int64_t> put_together(const std::vector<int64_t>& ids, const std::vector<int64_t>& labels) {
    std::map<int64_t, std::vector<int64_t>> spans;
    int64_t span = 0;
    for (const int64_t label : labels) {
      if (label == 1006) break;
      if (label >= 1007) {
        span = label;
      } else {
        spans[span].push_back(label);
      }
    }
    std::vector<int64_t> text;
    for (const int64_t id : ids) {
      if (id == 0) break;
      if (id < 1007) {
        text.push_back(id);
      } else {
        text.insert(text.end(), spans[id].begin(), spans[id].end());
      }
    }
    return text;
  }
};

TEST_F(T5SamplesTest, AreTheTextWithItsSpans) {
  const std::vector<std::vector<int64_t>> documents(10, {30, 20, 40});
  T5Samples samples(written(documents), {0, 10}, {.seq_length = 100, .decoder_seq_length = 60, .pieces = pieces()});
  double masked = 0, all = 0;
  for (size_t sample = 0; sample < *samples.size(); ++sample) {
    const auto batch = samples.get_batch({sample});
    const auto ids = row(batch.at("input_ids"), 0), labels = row(batch.at("labels"), 0);
    const auto decoder_ids = row(batch.at("decoder_input_ids"), 0);
    const auto text = put_together(ids, labels);
    for (size_t i = 1; i < text.size(); ++i) EXPECT_EQ(text[i], text[i - 1] + 1 == 1005 ? 5 : text[i - 1] + 1);
    EXPECT_EQ(decoder_ids[0], 1005);
    for (size_t i = 1; i < labels.size(); ++i) {
      if (labels[i] == -100) continue;
      EXPECT_EQ(decoder_ids[i], labels[i - 1]) << "a decoder's tokens are the labels before";
    }
    for (const int64_t label : labels) masked += label >= 5 && label < 1005 ? 1 : 0;
    all += static_cast<double>(text.size());
    EXPECT_EQ(batch.at("attention_mask").sum().item<int64_t>(), batch.at("input_ids").ne(0).sum().item<int64_t>());
  }
  EXPECT_EQ(samples.size(), 10u);
  EXPECT_NEAR(masked / all, 0.15, 0.02);
}

TEST_F(T5SamplesTest, ThatCannotBeAreRefused) {
  const auto tokens = written({{40, 50}, {600, 4}});
  const auto with = [](auto change) {
    T5SamplesOptions options{.seq_length = 100, .decoder_seq_length = 60, .pieces = pieces()};
    change(options);
    return options;
  };
  const auto refused = [&](const T5SamplesOptions& options) {
    return [&tokens, options] { T5Samples(tokens, {0, 1}, options).get_batch({0}); };
  };

  EXPECT_THAT(refused(with([](auto& options) { options.seq_length = 3; })),
              ThrowsMessage<UsageError>(HasSubstr("expected at least 4")));
  EXPECT_THAT(refused(with([](auto& options) { options.decoder_seq_length = 0; })),
              ThrowsMessage<UsageError>(HasSubstr("decoder_seq_length = 0")));
  EXPECT_THAT(refused(with([](auto& options) { options.decoder_seq_length = 9; })),
              ThrowsMessage<UsageError>(HasSubstr("and decoder_seq_length is 9")));
  EXPECT_THAT(refused(with([](auto& options) { options.pieces.extra_ids.clear(); })),
              ThrowsMessage<UsageError>(HasSubstr("without extra ids")));
  EXPECT_THAT(refused(with([](auto& options) {
                options.pieces.extra_ids.resize(1);
                options.masking.max_ngram = 1;
              })),
              ThrowsMessage<UsageError>(HasSubstr("masked spans, the vocabulary 1 extra id")));
  EXPECT_THAT(refused(with([](auto& options) { options.pieces.eos_token_id = 2000; })),
              ThrowsMessage<UsageError>(HasSubstr("eos_token_id is 2000")));
  EXPECT_THAT(
      [&] {
        T5Samples(tokens, {1, 2}, with([](auto&) {}));
      },
      ThrowsMessage<UsageError>(HasSubstr("documents 1 to 2 have no sample")));
}

}  // namespace
}  // namespace hasten::data
