// See bert_samples.h. Source: Megatron-Core's bert_dataset.py.
#include "hasten/data/dataset/bert_samples.h"

#include <ATen/ops/empty.h>
#include <ATen/ops/full.h>
#include <ATen/ops/zeros.h>

#include <algorithm>
#include <deque>
#include <utility>
#include <vector>

#include "data/dataset/masked_words.h"
#include "data/dataset/numpy_random.h"
#include "data/dataset/sentence_samples.h"
#include "hasten/core/error.h"
#include "hasten/data/dataset/rows.h"

namespace hasten::data {

struct BertSamples::Impl {
  // The two texts of a sample.
  struct Texts {
    std::deque<int64_t> first = {}, second = {};
    bool is_reversed = false;
  };
  // The rows of a batch.
  struct Row {
    int64_t *ids, *mask, *types, *labels, *order;
  };
  files::IndexedTokens tokens;
  BertSamplesOptions options;
  SentenceSamples arranged = {};

  Texts texts(const SentenceSample& sample, NumpyRandom& random) const;
  void fill(size_t index, const Row& row) const;
};

BertSamples::Impl::Texts BertSamples::Impl::texts(const SentenceSample& sample, NumpyRandom& random) const {
  Texts out;
  const int64_t count = sample.end - sample.begin;
  int64_t pivot = count;
  if (options.sentence_order) {
    pivot = count >= 3 ? random.integer(1, count) : 1;
    out.is_reversed = random.uniform() < 0.5;
  }
  for (int64_t i = 0; i < count; ++i) {
    auto& text = i < pivot ? out.first : out.second;
    const auto sentence = sentence_tokens(tokens, sample.begin + i, options.pieces);
    text.insert(text.end(), sentence.begin(), sentence.end());
  }
  if (out.is_reversed) std::swap(out.first, out.second);
  while (static_cast<int64_t>(out.first.size() + out.second.size()) > sample.length) {
    auto& longer = out.first.size() > out.second.size() ? out.first : out.second;
    if (random.uniform() < 0.5) {
      longer.pop_front();
    } else {
      longer.pop_back();
    }
  }
  return out;
}

void BertSamples::Impl::fill(size_t index, const Row& row) const {
  const SentenceSample& sample = arranged.samples[index];
  NumpyRandom random(static_cast<uint32_t>(options.seed + index));
  const Texts both = texts(sample, random);
  const WordPieces& pieces = options.pieces;
  std::vector<int64_t> all = {pieces.cls_token_id};
  all.insert(all.end(), both.first.begin(), both.first.end());
  all.push_back(pieces.sep_token_id);
  const size_t begin_of_second = all.size();
  if (!both.second.empty()) {
    all.insert(all.end(), both.second.begin(), both.second.end());
    all.push_back(pieces.sep_token_id);
  }
  // 80 % become the mask, 10 % another token, 10 % stay.
  const auto masked = mask_words(all, sample.length, pieces, options.masking, random, [&](int64_t token) {
    if (random.uniform() < 0.8) return pieces.mask_token_id;
    return random.uniform() >= 0.5 ? random.integer(0, pieces.vocab_size) : token;
  });
  std::copy(masked.tokens.begin(), masked.tokens.end(), row.ids);
  for (int64_t i = 0; i < options.seq_length; ++i) row.mask[i] = row.ids[i] == pieces.pad_token_id ? 0 : 1;
  std::fill(row.types + begin_of_second, row.types + all.size(), 1);
  for (const auto& span : masked.spans) {
    for (size_t i = 0; i < span.places.size(); ++i) row.labels[span.places[i]] = span.labels[i];
  }
  *row.order = both.is_reversed ? 1 : 0;
}

BertSamples::BertSamples(const files::IndexedTokens& tokens, const SequenceRange& range,
                         const BertSamplesOptions& options) {
  // [CLS], two [SEP], and two tokens.
  check_masked(tokens, range, options.masking,
               {.seq_length = options.seq_length, .least_length = 5, .num_samples = options.num_samples});
  check_token("cls_token_id", options.pieces.cls_token_id, options.pieces);
  check_token("sep_token_id", options.pieces.sep_token_id, options.pieces);
  check_token("mask_token_id", options.pieces.mask_token_id, options.pieces);
  check_token("pad_token_id", options.pieces.pad_token_id, options.pieces);
  const auto impl = std::make_shared<Impl>(Impl{tokens, options});
  impl->arranged = sentence_samples(tokens, range,
                                    {.max_length = options.seq_length - 3,
                                     .num_samples = options.num_samples,
                                     .seed = options.seed,
                                     .short_sequence_probability = options.masking.short_sequence_probability,
                                     .min_sentences = options.sentence_order ? 2 : 1});
  impl_ = impl;
}

std::map<std::string, at::Tensor> BertSamples::get_batch(c10::ArrayRef<size_t> indices) {
  const auto count = static_cast<int64_t>(indices.size());
  const int64_t length = impl_->options.seq_length;
  const at::TensorOptions kind(at::kLong);
  const at::Tensor ids = at::full({count, length}, impl_->options.pieces.pad_token_id, kind),
                   mask = at::empty({count, length}, kind), types = at::zeros({count, length}, kind),
                   labels = at::full({count, length}, -100, kind), order = at::zeros({count}, kind);
  for (int64_t i = 0; i < count; ++i) {
    const size_t index = indices[static_cast<size_t>(i)];
    check_index(index, *size(), "an indexed dataset");
    const auto at_row = [&](const at::Tensor& rows) { return rows.mutable_data_ptr<int64_t>() + i * length; };
    impl_->fill(index,
                {at_row(ids), at_row(mask), at_row(types), at_row(labels), order.mutable_data_ptr<int64_t>() + i});
  }
  std::map<std::string, at::Tensor> batch = {
      {"input_ids", ids}, {"attention_mask", mask}, {"token_type_ids", types}, {"labels", labels}};
  if (impl_->options.sentence_order) batch["next_sentence_label"] = order;
  return batch;
}

std::optional<size_t> BertSamples::size() const {
  return impl_->arranged.samples.size();
}

int64_t BertSamples::num_epochs() const noexcept {
  return impl_->arranged.num_epochs;
}

}  // namespace hasten::data
