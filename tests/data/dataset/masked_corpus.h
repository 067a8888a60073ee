// Documents of sentences of an indexed dataset, and a vocabulary for them.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "hasten/data/dataset/word_pieces.h"
#include "hasten/files/disk/disk.h"
#include "hasten/files/folders/indexed_tokens.h"
#include "support/folder.h"

namespace hasten::data {

class MaskedCorpus : public hasten::testing::InFolder {
 protected:
  // Document i has sentences of the given lengths, whose tokens count up from 5 over all documents.
  template <class T = int32_t>
  files::IndexedTokens written(const std::vector<std::vector<int64_t>>& documents,
                               files::Dtype dtype = files::Dtype::kInt32) const {
    files::IndexedTokensWriter writer(files::real_disk(), path("text"), dtype);
    int64_t next = 0;
    for (const auto& lengths : documents) {
      for (const int64_t length : lengths) {
        std::vector<T> tokens;
        for (int64_t i = 0; i < length; ++i) tokens.push_back(static_cast<T>(5 + next++ % 1000));
        writer.add(tokens.data(), length);
      }
      writer.end_document();
    }
    writer.finish();
    return files::IndexedTokens(path("text"));
  }
  // Pieces of which every other one from 6 on goes on with a word.
  static WordPieces pieces() {
    WordPieces out{
        .cls_token_id = 2, .sep_token_id = 3, .mask_token_id = 4, .bos_token_id = 1005, .eos_token_id = 1006};
    for (int64_t i = 0; i < 1005; ++i) out.continues.push_back(i > 5 && i % 2 == 0);
    for (int64_t i = 0; i < 60; ++i) out.extra_ids.push_back(1007 + i);
    out.vocab_size = 1067;
    return out;
  }
  static std::vector<int64_t> row(const at::Tensor& rows, int64_t i) {
    const at::Tensor one = rows[i].contiguous();
    return {one.const_data_ptr<int64_t>(), one.const_data_ptr<int64_t>() + one.numel()};
  }
};

}  // namespace hasten::data
