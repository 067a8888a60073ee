// See train_steps.h.
#include "hasten/models/train_steps.h"

#include <ATen/Functions.h>
#include <ATen/core/Reduction.h>
#include <c10/core/ScalarType.h>

#include <utility>
#include <vector>

#include "hasten/core/error.h"
#include "hasten/core/sentence.h"

namespace hasten::models {
namespace {

constexpr int64_t kNoLabel = -100;

at::Tensor find_in(const TextBatch& batch, const std::string& key) {
  const auto found = batch.find(key);
  return found == batch.end() ? at::Tensor() : found->second;
}

const at::Tensor& field_of(const TextBatch& batch, const char* key, const char* model) {
  const auto found = batch.find(key);
  if (found != batch.end() && found->second.defined()) return found->second;
  std::vector<std::string> names;
  for (const auto& [name, tensor] : batch) names.push_back(name);
  throw UsageError(Origin{"models"}, "a batch for ", model, " without '", key, "'", guess_end(key, names), " It has ",
                   names.empty() ? "nothing" : join(names), ". Name the loader's tensors so.");
}

at::Tensor counted(const at::Tensor& labels) {
  return labels.ne(kNoLabel).to(at::kFloat);
}

at::Tensor later_keys(int64_t tokens, c10::Device device) {
  return at::ones({1, tokens, tokens}, at::TensorOptions(device).dtype(at::kBool)).triu(1);
}

// The loss of each token. Where labels lack, it is 0.
at::Tensor token_losses(const at::Tensor& logits, const at::Tensor& labels) {
  return at::cross_entropy_loss(logits.flatten(0, 1), labels.flatten(), {}, at::Reduction::None, kNoLabel)
      .view_as(labels);
}

}  // namespace

GptBatch gpt_batch(const TextBatch& batch, const GptBatchOptions& options) {
  GptBatch out;
  const at::Tensor text = find_in(batch, "text");
  const bool is_text = text.defined() && !find_in(batch, "input_ids").defined();
  out.tokens =
      is_text ? text.slice(1, 0, text.size(1) - 1).to(at::kLong) : field_of(batch, "input_ids", "GPT").to(at::kLong);
  const at::Tensor given = is_text ? at::Tensor() : find_in(batch, "labels");
  if (given.defined() && given.sizes() != out.tokens.sizes()) {
    throw UsageError(Origin{"models"}, "labels of GPT have shape [", join(given.sizes()), "], input_ids [",
                     join(out.tokens.sizes()), "]; expected the same. They are shifted by the step.");
  }
  const int64_t samples = out.tokens.size(0), tokens = out.tokens.size(1);
  const at::Tensor last =
      is_text ? text.slice(1, tokens).to(at::kLong)
              : at::full({samples, 1}, given.defined() ? kNoLabel : options.eos_token_id, out.tokens.options());
  const at::Tensor all = given.defined() ? given.to(at::kLong) : out.tokens;
  out.labels = at::cat({all.slice(1, 1), last}, 1);
  out.loss_mask = counted(out.labels);
  const at::Tensor ends = out.tokens.eq(options.eos_token_id);
  if (options.eod_mask_loss) out.loss_mask = out.loss_mask.masked_fill(ends, 0.0);
  // The number of each token's document.
  const at::Tensor document = ends.to(at::kLong).cumsum(1) - ends.to(at::kLong);
  const at::Tensor places = at::arange(tokens, out.tokens.options()).unsqueeze(0).expand({samples, tokens});
  out.position_ids = places;
  if (options.reset_position_ids) {
    const at::Tensor begins = at::cat({at::ones_like(ends.slice(1, 0, 1)), ends.slice(1, 0, tokens - 1)}, 1);
    out.position_ids = places - std::get<0>(places.masked_fill(begins.logical_not(), 0).cummax(1));
  }
  out.attention_masked = later_keys(tokens, out.tokens.device());
  if (options.reset_attention_mask) {
    out.attention_masked = out.attention_masked.logical_or(document.unsqueeze(2).ne(document.unsqueeze(1)));
  }
  return out;
}

BertBatch bert_batch(const TextBatch& batch) {
  BertBatch out;
  out.tokens = field_of(batch, "input_ids", "BERT").to(at::kLong);
  out.padding_mask = field_of(batch, "attention_mask", "BERT").to(at::kLong);
  const at::Tensor types = find_in(batch, "token_type_ids"), labels = find_in(batch, "labels"),
                   order = find_in(batch, "next_sentence_label");
  if (types.defined()) out.types = types.to(at::kLong);
  if (labels.defined()) {
    out.lm_labels = labels.to(at::kLong);
    out.loss_mask = counted(out.lm_labels);
  }
  if (order.defined()) out.sentence_order = order.to(at::kLong);
  return out;
}

T5Batch t5_batch(const TextBatch& batch) {
  T5Batch out;
  out.tokens_enc = field_of(batch, "input_ids", "T5").to(at::kLong);
  out.attention_mask = field_of(batch, "attention_mask", "T5").to(at::kLong);
  out.labels = field_of(batch, "labels", "T5").to(at::kLong);
  out.loss_mask = counted(out.labels);
  const at::Tensor given = find_in(batch, "decoder_input_ids");
  if (given.defined()) {
    out.tokens_dec = given.to(at::kLong);
  } else {
    const at::Tensor first = at::zeros({out.labels.size(0), 1}, out.labels.options());
    out.tokens_dec = at::cat({first, out.labels.slice(1, 0, out.labels.size(1) - 1)}, 1);
    out.tokens_dec = out.tokens_dec.masked_fill(out.tokens_dec.eq(kNoLabel), 0);
  }
  const at::Tensor padded = out.attention_mask.eq(0);
  const int64_t samples = padded.size(0), keys = padded.size(1), tokens = out.tokens_dec.size(1);
  out.enc_masked = padded.unsqueeze(1).logical_or(padded.unsqueeze(2));
  out.dec_masked = later_keys(tokens, padded.device());
  out.enc_dec_masked = padded.unsqueeze(1).expand({samples, tokens, keys});
  return out;
}

at::Tensor masked_mean(const at::Tensor& losses, const at::Tensor& loss_mask) {
  // As the peer's: a loss that is not a number shows, wherever it stands.
  const at::Tensor sum = (losses.to(at::kFloat) * loss_mask).sum();
  return sum / loss_mask.sum().clamp_min(1.0);
}

at::Tensor gpt_loss(const at::Tensor& losses, const at::Tensor& loss_mask) {
  const at::Tensor loss = masked_mean(losses, loss_mask);
  if (!loss.isnan().item<bool>()) return loss;
  throw UsageError(Origin{"models"}, "the loss of GPT is not a number: ", losses.isnan().sum().item<int64_t>(), " of ",
                   losses.numel(), " tokens' losses. Look at the batch and the learning rate.");
}

BertLoss bert_loss(const at::Tensor& losses, const at::Tensor& loss_mask, const at::Tensor& order_logits,
                   const at::Tensor& sentence_order) {
  BertLoss out;
  out.loss = out.words = masked_mean(losses, loss_mask);
  if (!order_logits.defined() || !sentence_order.defined()) return out;
  const at::Tensor each = at::cross_entropy_loss(order_logits.view({-1, 2}).to(at::kFloat), sentence_order.view(-1), {},
                                                 at::Reduction::None, /*ignore_index=*/-1);
  out.order = masked_mean(each, sentence_order.view(-1).ne(-1).to(at::kFloat));
  out.loss = out.words + out.order;
  return out;
}

at::Tensor classification_loss(const at::Tensor& logits, const at::Tensor& labels, int64_t num_labels) {
  if (num_labels == 1) return at::mse_loss(logits.view(-1), labels.view(-1).to(logits.scalar_type()));
  if (c10::isIntegralType(labels.scalar_type(), /*includeBool=*/false))
    return at::cross_entropy_loss(logits.view({-1, num_labels}), labels.view(-1));
  return at::binary_cross_entropy_with_logits(logits, labels.to(logits.scalar_type()));
}

TrainStep gpt_train_step(const GptBatchOptions& options, std::function<at::Tensor(const GptBatch& part)> forward) {
  return {[options, forward = std::move(forward)](const TextBatch& part) {
            const auto batch = gpt_batch(part, options);
            return masked_mean(token_losses(forward(batch), batch.labels), batch.loss_mask);
          },
          [options](const TextBatch& part) { return gpt_batch(part, options).loss_mask.sum().item<double>(); }};
}

TrainStep bert_train_step(std::function<std::pair<at::Tensor, at::Tensor>(const BertBatch& part)> forward) {
  return {[forward = std::move(forward)](const TextBatch& part) {
            const auto batch = bert_batch(part);
            field_of(part, "labels", "BERT");
            const auto [words, order] = forward(batch);
            return bert_loss(token_losses(words, batch.lm_labels), batch.loss_mask, order, batch.sentence_order).loss;
          },
          [](const TextBatch& part) { return counted(field_of(part, "labels", "BERT")).sum().item<double>(); }};
}

TrainStep bert_classification_step(int64_t num_labels, std::function<at::Tensor(const BertBatch& part)> forward) {
  return {[num_labels, forward = std::move(forward)](const TextBatch& part) {
            const at::Tensor& labels = field_of(part, "labels", "BERT");
            TextBatch texts = part;
            texts.erase("labels");
            return classification_loss(forward(bert_batch(texts)), labels, num_labels);
          },
          [](const TextBatch& part) { return static_cast<double>(field_of(part, "labels", "BERT").size(0)); }};
}

TrainStep t5_train_step(std::function<at::Tensor(const T5Batch& part)> forward) {
  return {[forward = std::move(forward)](const TextBatch& part) {
            const auto batch = t5_batch(part);
            return masked_mean(token_losses(forward(batch), batch.labels), batch.loss_mask);
          },
          [](const TextBatch& part) { return t5_batch(part).loss_mask.sum().item<double>(); }};
}

}  // namespace hasten::models
