// Samples of BERT and T5 over Megatron's indexed data, beside those of Megatron-Core (tests/golden/masked_samples.json,
// recorded by scripts/record_masked_samples.py).
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cstdint>
#include <fstream>
#include <string>
#include <vector>

#include "hasten/data/dataset/bert_samples.h"
#include "hasten/data/dataset/t5_samples.h"
#include "hasten/data/dataset/word_pieces.h"
#include "hasten/files/disk/disk.h"
#include "support/folder.h"
#include "support/golden.h"

namespace hasten::data {
namespace {

using nlohmann::json;

class MaskedSamplesGolden : public hasten::testing::InFolder {
 protected:
  files::IndexedTokens written(const json& documents) const {
    files::IndexedTokensWriter writer(files::real_disk(), path("text"), files::Dtype::kInt32);
    for (const auto& document : documents) {
      for (const auto& sentence : document) {
        const auto tokens = sentence.get<std::vector<int32_t>>();
        writer.add(tokens.data(), static_cast<int64_t>(tokens.size()));
      }
      writer.end_document();
    }
    writer.finish();
    return files::IndexedTokens(path("text"));
  }
  WordPieces pieces(const json& input) const {
    std::ofstream file(path("vocab.txt"));
    for (const auto& piece : input.at("pieces")) file << piece.get<std::string>() << '\n';
    file.close();
    return WordPieces::read(path("vocab.txt"), input.value("num_extra_ids", int64_t{0}));
  }
  static MaskingOptions masking(const json& input) {
    return {.masking_probability = input.at("masking_probability"),
            .short_sequence_probability = input.at("short_sequence_probability"),
            .max_ngram = input.at("max_ngram"),
            .whole_words = input.at("whole_words"),
            .longer_ngrams = input.at("longer_ngrams"),
            .geometric_ngrams = input.at("geometric")};
  }
  static SequenceRange range(const json& input) {
    return {input.at("documents_range")[0], input.at("documents_range")[1]};
  }
  template <class Samples>
  static json all_of(Samples samples) {
    std::vector<size_t> indices(*samples.size());
    for (size_t i = 0; i < indices.size(); ++i) indices[i] = i;
    json out;
    for (const auto& [name, tensor] : samples.get_batch(indices)) {
      json rows = json::array();
      for (int64_t i = 0; i < tensor.size(0); ++i) {
        const at::Tensor row = tensor[i];
        const auto* const first = row.template const_data_ptr<int64_t>();
        if (row.dim() == 0) {
          rows.push_back(*first);
        } else {
          rows.push_back(std::vector<int64_t>(first, first + row.numel()));
        }
      }
      out[name] = rows;
    }
    return out;
  }
  json samples(const json& input) const {
    const auto tokens = written(input.at("documents"));
    if (input.contains("decoder_seq_length")) {
      return all_of(T5Samples(tokens, range(input),
                              {.seq_length = input.at("seq_length"),
                               .decoder_seq_length = input.at("decoder_seq_length"),
                               .num_samples = input.at("num_samples"),
                               .seed = input.at("seed"),
                               .pieces = pieces(input),
                               .masking = masking(input)}));
    }
    return all_of(BertSamples(tokens, range(input),
                              {.seq_length = input.at("seq_length"),
                               .num_samples = input.at("num_samples"),
                               .seed = input.at("seed"),
                               .sentence_order = input.at("sentence_order"),
                               .pieces = pieces(input),
                               .masking = masking(input)}));
  }
};

TEST_F(MaskedSamplesGolden, AreMegatronCores) {
  hasten::testing::GoldenTopic topic("masked_samples");
  for (const auto& golden : topic.cases()) {
    topic.judge(golden, [&] { return samples(golden.input); });
  }
  topic.finish();
}

}  // namespace
}  // namespace hasten::data
