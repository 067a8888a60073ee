// CausalLmModule: base of decoder-only language models, and what their attention layers share.
#pragma once

#include <torch/nn/cloneable.h>
#include <torch/nn/module.h>
#include <torch/nn/modules/embedding.h>
#include <torch/nn/modules/linear.h>

#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "hasten/models/kv_cache.h"

namespace hasten::models {

class CausalLmModule : public torch::nn::Module {
 public:
  using torch::nn::Module::Module;

  /// Returns logits [batch, tokens, vocabulary] for token ids [batch, tokens]. `attention_mask` [batch, all tokens so
  /// far]: 0 for padding; undefined: none is padding. Padding may be at the left: positions count real tokens. With a
  /// cache, `ids` are the tokens that come after those in it.
  /// Throws: UsageError for ids of another shape, or more tokens than the model has
  /// positions.
  virtual at::Tensor forward(const at::Tensor& ids, const at::Tensor& attention_mask, KvCache* cache) = 0;
  at::Tensor operator()(const at::Tensor& ids, const at::Tensor& attention_mask = {}, KvCache* cache = nullptr) {
    return forward(ids, attention_mask, cache);
  }
  virtual int64_t num_layers() const = 0;
  virtual int64_t vocabulary() const = 0;
  /// Positions that the model was made for.
  virtual int64_t max_positions() const = 0;
  /// Class names of blocks that a device map keeps whole.
  virtual std::vector<std::string> no_split_module_classes() const = 0;
};

namespace detail {

/// State that all layers of a forward share.
struct AttentionContext {
  at::Tensor positions;  ///< [batch, tokens]
  at::Tensor mask;       ///< additive, [batch, 1, tokens, all tokens]; undefined: plain causal attention
  bool is_causal = false;
  KvCache* cache = nullptr;
};

/// Positions and mask of a forward. `sliding_window` 0: none.
/// Throws: UsageError for ids that are not [batch, tokens], or a mask of another size.
AttentionContext attention_context(const at::Tensor& ids, const at::Tensor& attention_mask, KvCache* cache,
                                   at::ScalarType type, int64_t sliding_window = 0);

/// Scaled dot-product attention over queries [batch, heads, tokens, head_dim] and keys of as many or fewer heads, with
/// the cache's tokens before them. Returns [batch, tokens, heads * head_dim].
at::Tensor attend(const at::Tensor& queries, const at::Tensor& keys, const at::Tensor& values,
                  const AttentionContext& context, int64_t layer);

/// Output projection of a language model: a weight of its own, or the embedding's.
struct LmHeadImpl : torch::nn::Module {
  LmHeadImpl(int64_t hidden, int64_t vocabulary, const at::Tensor& tied_weight);
  at::Tensor forward(const at::Tensor& x) const;
  at::Tensor weight;
};
TORCH_MODULE(LmHead);

/// Fills weights with N(0, range), biases with zeros; norms stay ones.
void initialize_normal(torch::nn::Module& module, double range);

}  // namespace detail
}  // namespace hasten::models
