// Megatron-LM's training steps of GPT, BERT and T5: what a batch becomes, and its loss.
//
// A batch has the keys of transformers' collators: input_ids, attention_mask, labels … . A step is the loss of a part
// of it and what that part counts, for Accelerator::forward_backward:
//
//   const auto step = models::gpt_train_step({.eos_token_id = 50256}, [&](const auto& part) {
//     return model(part.tokens, at::Tensor(), nullptr); });
//   accelerator.forward_backward<models::TextBatch>(batch, step.loss, step.weight);
#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <functional>
#include <map>
#include <string>
#include <utility>

namespace hasten::models {

/// Tensors [samples, …] by name.
using TextBatch = std::map<std::string, at::Tensor>;

/// The loss of a part of a batch, a scalar, and the number of tokens (or samples) that it is the mean of. An
/// Accelerator's forward_backward takes both.
struct TrainStep {
  std::function<at::Tensor(const TextBatch& part)> loss;
  std::function<double(const TextBatch& part)> weight;
};

/// Masks are [samples or 1, tokens, keys], and true where nothing is attended to. Loss masks are 1 where a token's loss
/// counts.
struct GptBatchOptions {
  /// Ends a document.
  int64_t eos_token_id = 0;
  /// Positions begin at 0 behind an end of document.
  bool reset_position_ids = false;
  /// Tokens do not attend to those of documents before theirs.
  bool reset_attention_mask = false;
  /// The loss at an end of document does not count.
  bool eod_mask_loss = false;
};
struct GptBatch {
  at::Tensor tokens, labels, loss_mask, attention_masked, position_ids;
};
/// Takes input_ids [samples, tokens], and labels of the same shape, which are shifted here (-100: no loss). Without
/// them each token's label is the next one, and the last one's the end of document. In their place it takes Megatron's
/// "text" [samples, tokens + 1], whose last token is a label alone (data/dataset/indexed.h).
/// Throws: UsageError for a batch without either, or with labels of another shape.
GptBatch gpt_batch(const TextBatch& batch, const GptBatchOptions& options);

struct BertBatch {
  at::Tensor tokens, padding_mask, types, loss_mask, lm_labels, sentence_order;
};
/// Takes input_ids and attention_mask, and where there are token_type_ids, labels (-100: no masked word) and
/// next_sentence_label. Fields of keys that lack stay undefined. Throws: UsageError for a batch without the first two.
BertBatch bert_batch(const TextBatch& batch);

struct T5Batch {
  at::Tensor tokens_enc, tokens_dec, loss_mask, labels, attention_mask;
  at::Tensor enc_masked, dec_masked, enc_dec_masked;
};
/// Takes input_ids, attention_mask and labels (-100: padding). The decoder's tokens are decoder_input_ids, or the
/// labels one place later behind a 0. Throws: UsageError for a batch without these.
T5Batch t5_batch(const TextBatch& batch);

/// The mean of the losses whose mask is 1; 0 if there are none.
at::Tensor masked_mean(const at::Tensor& losses, const at::Tensor& loss_mask);
/// As masked_mean. Throws: UsageError if the loss is not a number.
at::Tensor gpt_loss(const at::Tensor& losses, const at::Tensor& loss_mask);
/// Losses of masked words and of the order of two texts; `order` is undefined without scores [samples, 2] of it. An
/// order of -1 does not count.
struct BertLoss {
  at::Tensor loss, words, order;
};
BertLoss bert_loss(const at::Tensor& losses, const at::Tensor& loss_mask, const at::Tensor& order_logits = {},
                   const at::Tensor& sentence_order = {});
/// The loss of a classifier: mean squared error for one label, cross entropy for integers, else a binary one for each
/// label.
at::Tensor classification_loss(const at::Tensor& logits, const at::Tensor& labels, int64_t num_labels);

/// `forward` returns logits [samples, tokens, vocabulary].
TrainStep gpt_train_step(const GptBatchOptions& options, std::function<at::Tensor(const GptBatch& part)> forward);
/// `forward` returns scores of words, and of orders or an undefined tensor.
TrainStep bert_train_step(std::function<std::pair<at::Tensor, at::Tensor>(const BertBatch& part)> forward);
/// A classifier on BERT: `forward` returns logits [samples, num_labels], and the batch has labels [samples] or
/// [samples, num_labels].
TrainStep bert_classification_step(int64_t num_labels, std::function<at::Tensor(const BertBatch& part)> forward);
/// `forward` returns logits [samples, decoder tokens, vocabulary].
TrainStep t5_train_step(std::function<at::Tensor(const T5Batch& part)> forward);

}  // namespace hasten::models
