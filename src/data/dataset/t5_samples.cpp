// See t5_samples.h. Source: Megatron-Core's t5_dataset.py.
#include "hasten/data/dataset/t5_samples.h"

#include <ATen/ops/empty.h>
#include <ATen/ops/full.h>

#include <algorithm>
#include <vector>

#include "data/dataset/masked_words.h"
#include "data/dataset/numpy_random.h"
#include "data/dataset/sentence_samples.h"
#include "hasten/core/count_text.h"
#include "hasten/core/error.h"
#include "hasten/data/dataset/rows.h"

namespace hasten::data {
namespace {

const Origin kT5{"data"};

}  // namespace

struct T5Samples::Impl {
  struct Row {
    int64_t *ids, *mask, *decoder_ids, *labels;
  };
  files::IndexedTokens tokens;
  T5SamplesOptions options;
  SentenceSamples arranged = {};

  MaskedText masked(size_t index) const;
  void check_spans(size_t index, const MaskedText& text) const;
  void fill(size_t index, const Row& row) const;
};

MaskedText T5Samples::Impl::masked(size_t index) const {
  const SentenceSample& sample = arranged.samples[index];
  NumpyRandom random(static_cast<uint32_t>(options.seed + index));
  std::vector<int64_t> all;
  for (int64_t sentence = sample.begin; sentence < sample.end; ++sentence) {
    const auto one = sentence_tokens(tokens, sentence, options.pieces);
    all.insert(all.end(), one.begin(), one.end());
  }
  all.resize(std::min(all.size(), static_cast<size_t>(sample.length)));
  return mask_words(all, sample.length, options.pieces, options.masking, random, [](int64_t token) { return token; });
}

void T5Samples::Impl::check_spans(size_t index, const MaskedText& text) const {
  const size_t extra = options.pieces.extra_ids.size();
  size_t length = 1;
  for (const auto& span : text.spans) length += 1 + span.labels.size();
  if (text.spans.size() > extra) {
    throw UsageError(kT5, "sample ", index, " has ", count_text(text.spans.size(), "masked span"), ", the vocabulary ",
                     count_text(extra, "extra id"),
                     ". Give it more extra ids (vocab_extra_ids), or set a smaller masking_probability.");
  }
  if (static_cast<int64_t>(length) > options.decoder_seq_length) {
    throw UsageError(kT5, "sample ", index, " has ", count_text(length, "token"),
                     " of the decoder, and "
                     "decoder_seq_length is ",
                     options.decoder_seq_length, ". Set a greater one, or a smaller masking_probability.");
  }
}

void T5Samples::Impl::fill(size_t index, const Row& row) const {
  const MaskedText text = masked(index);
  check_spans(index, text);
  int64_t *ids = row.ids, *decoder_ids = row.decoder_ids, *labels = row.labels;
  *decoder_ids++ = options.pieces.bos_token_id;
  auto next = text.tokens.begin();
  for (size_t i = 0; i < text.spans.size(); ++i) {
    const auto& [places, words] = text.spans[i];
    const int64_t extra = options.pieces.extra_ids[i];
    // Marks of texts between the words of a span are lost, as with the peer.
    ids = std::copy(next, text.tokens.begin() + places.front(), ids);
    next = text.tokens.begin() + places.back() + 1;
    *ids++ = *decoder_ids++ = *labels++ = extra;
    decoder_ids = std::copy(words.begin(), words.end(), decoder_ids);
    labels = std::copy(words.begin(), words.end(), labels);
  }
  std::copy(next, text.tokens.end(), ids);
  *labels = options.pieces.eos_token_id;
  for (int64_t i = 0; i < options.seq_length; ++i) row.mask[i] = row.ids[i] == options.pieces.pad_token_id ? 0 : 1;
}

T5Samples::T5Samples(const files::IndexedTokens& tokens, const SequenceRange& range, const T5SamplesOptions& options) {
  check_masked(tokens, range, options.masking,
               {.seq_length = options.seq_length, .least_length = 4, .num_samples = options.num_samples});
  if (options.decoder_seq_length < 1) {
    throw UsageError(kT5, "decoder_seq_length = ", options.decoder_seq_length, "; expected at least 1.");
  }
  check_token("bos_token_id", options.pieces.bos_token_id, options.pieces);
  check_token("eos_token_id", options.pieces.eos_token_id, options.pieces);
  check_token("pad_token_id", options.pieces.pad_token_id, options.pieces);
  if (options.pieces.extra_ids.empty()) {
    throw UsageError(kT5,
                     "T5's samples with a vocabulary without extra ids; expected one for each masked span of a "
                     "sample, such as 100. Set extra_ids, or vocab_extra_ids of a MegatronLmDummyDataLoader.");
  }
  for (const int64_t id : options.pieces.extra_ids) check_token("one of extra_ids", id, options.pieces);
  const auto impl = std::make_shared<Impl>(Impl{tokens, options});
  impl->arranged = sentence_samples(tokens, range,
                                    {.max_length = options.seq_length - 2,
                                     .num_samples = options.num_samples,
                                     .seed = options.seed,
                                     .short_sequence_probability = options.masking.short_sequence_probability});
  impl_ = impl;
}

std::map<std::string, at::Tensor> T5Samples::get_batch(c10::ArrayRef<size_t> indices) {
  const auto count = static_cast<int64_t>(indices.size());
  const int64_t length = impl_->options.seq_length, decoder_length = impl_->options.decoder_seq_length;
  const int64_t padding = impl_->options.pieces.pad_token_id;
  const at::TensorOptions kind(at::kLong);
  const at::Tensor ids = at::full({count, length}, padding, kind), mask = at::empty({count, length}, kind),
                   decoder_ids = at::full({count, decoder_length}, padding, kind),
                   labels = at::full({count, decoder_length}, -100, kind);
  for (int64_t i = 0; i < count; ++i) {
    const size_t index = indices[static_cast<size_t>(i)];
    check_index(index, *size(), "an indexed dataset");
    const auto at_row = [&](const at::Tensor& rows) { return rows.mutable_data_ptr<int64_t>() + i * rows.size(1); };
    impl_->fill(index, {at_row(ids), at_row(mask), at_row(decoder_ids), at_row(labels)});
  }
  return {{"input_ids", ids}, {"attention_mask", mask}, {"decoder_input_ids", decoder_ids}, {"labels", labels}};
}

std::optional<size_t> T5Samples::size() const {
  return impl_->arranged.samples.size();
}

int64_t T5Samples::num_epochs() const noexcept {
  return impl_->arranged.num_epochs;
}

}  // namespace hasten::data
