// Generating tokens: greedy, or sampled by temperature, top-k and top-p.
#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <functional>
#include <optional>
#include <vector>

#include "hasten/models/causal_lm.h"

namespace hasten::models {

struct GenerateOptions {
  int64_t max_new_tokens = 20;
  /// Tokens that end a row; what follows in it is `pad`.
  std::vector<int64_t> eos = {};
  int64_t pad = 0;
  /// 0: the most probable token. Otherwise logits are divided by it before sampling.
  double temperature = 0.0;
  int64_t top_k = 0;                  ///< 0: all
  double top_p = 1.0;                 ///< the smallest set of tokens whose probabilities reach this
  std::optional<uint64_t> seed = {};  ///< empty: the default generator
  /// [batch, tokens], 0 for padding at the left; undefined: none.
  at::Tensor attention_mask = {};
  /// Is given the tokens [batch] of each step, and ends generation by returning false.
  std::function<bool(const at::Tensor&)> on_token = {};
};

/// Returns ids [batch, tokens + new tokens]: the prompt, and what the model adds. It computes each token once
/// (KvCache). Where a model is cut over ranks (tp), all of them call it with the same prompt and options. Collective:
/// then. Throws: UsageError for options out of range, an empty prompt, more tokens than positions, or a model on stages
/// (pp).
at::Tensor generate(const CausalLm& model, const at::Tensor& ids, const GenerateOptions& options = {});
at::Tensor generate(CausalLmModule& model, const at::Tensor& ids, const GenerateOptions& options = {});

/// Returns probabilities [batch, vocabulary] after temperature, top-k and top-p. Pure; for tests and own loops.
at::Tensor sampling_probabilities(const at::Tensor& logits, const GenerateOptions& options);

}  // namespace hasten::models
