// KvCache: keys and values of the tokens so far, for generating one token at a time.
#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <utility>
#include <vector>

namespace hasten::models {

class KvCache {
 public:
  /// Holds at most `max_tokens` tokens a row; memory doubles up to that as tokens come.
  explicit KvCache(int64_t num_layers, int64_t max_tokens = 1 << 20);

  /// Appends keys and values [batch, heads, tokens, head_dim] of a layer, and returns all of that layer so far.
  /// Throws: UsageError beyond max_tokens, or for another batch, dtype or number of heads.
  std::pair<at::Tensor, at::Tensor> append(int64_t layer, const at::Tensor& keys, const at::Tensor& values);

  /// Returns the tokens that every layer holds.
  int64_t num_tokens() const noexcept;
  int64_t num_bytes() const noexcept;
  /// Keeps the first `num_tokens` tokens. Throws: UsageError if there are fewer.
  void truncate(int64_t num_tokens);

 private:
  struct Layer {
    at::Tensor keys, values;
    int64_t used = 0;
  };
  void make_room(Layer& layer, const at::Tensor& like, int64_t tokens) const;
  std::vector<Layer> layers_;
  int64_t max_tokens_;
};

}  // namespace hasten::models
