// See kv_cache.h.
#include "hasten/models/kv_cache.h"

#include <torch/types.h>

#include <algorithm>

#include "hasten/core/error.h"

namespace hasten::models {
namespace {

constexpr int64_t kTokens = 2;  // the dimension of tokens
constexpr int64_t kFirstTokens = 64;

bool differs(const at::Tensor& held, const at::Tensor& given) {
  return held.size(0) != given.size(0) || held.size(1) != given.size(1) || held.size(3) != given.size(3) ||
         held.scalar_type() != given.scalar_type();
}

}  // namespace

KvCache::KvCache(int64_t num_layers, int64_t max_tokens)
    : layers_(static_cast<size_t>(num_layers)), max_tokens_(max_tokens) {}

void KvCache::make_room(Layer& layer, const at::Tensor& like, int64_t tokens) const {
  const int64_t capacity = layer.keys.defined() ? layer.keys.size(kTokens) : 0;
  if (tokens <= capacity) return;
  if (tokens > max_tokens_) {
    throw UsageError(Origin{"models"}, "the cache would hold ", tokens, " tokens, more than max_tokens = ", max_tokens_,
                     ". Give it a larger max_tokens, or generate fewer tokens.");
  }
  auto shape = like.sizes().vec();
  shape[kTokens] = std::min(max_tokens_, std::max({kFirstTokens, 2 * capacity, tokens}));
  for (at::Tensor* held : {&layer.keys, &layer.values}) {
    // new_empty: where heads are cut over ranks, so is the cache.
    at::Tensor larger = like.new_empty(shape);
    if (layer.used > 0) larger.narrow(kTokens, 0, layer.used).copy_(held->narrow(kTokens, 0, layer.used));
    *held = larger;
  }
}

std::pair<at::Tensor, at::Tensor> KvCache::append(int64_t layer, const at::Tensor& keys, const at::Tensor& values) {
  Layer& held = layers_.at(static_cast<size_t>(layer));
  if (held.keys.defined() && differs(held.keys, keys)) {
    throw UsageError(Origin{"models"}, "the cache holds keys of shape [", join(held.keys.sizes()), "], and gets [",
                     join(keys.sizes()), "]. One cache serves one batch; make a new one.");
  }
  const int64_t tokens = held.used + keys.size(kTokens);
  make_room(held, keys, tokens);
  held.keys.narrow(kTokens, held.used, keys.size(kTokens)).copy_(keys);
  held.values.narrow(kTokens, held.used, keys.size(kTokens)).copy_(values);
  held.used = tokens;
  return {held.keys.narrow(kTokens, 0, tokens), held.values.narrow(kTokens, 0, tokens)};
}

int64_t KvCache::num_tokens() const noexcept {
  int64_t least = layers_.empty() ? 0 : layers_.front().used;
  for (const Layer& layer : layers_) least = std::min(least, layer.used);
  return least;
}

int64_t KvCache::num_bytes() const noexcept {
  int64_t sum = 0;
  for (const Layer& layer : layers_) {
    if (layer.keys.defined()) sum += static_cast<int64_t>(layer.keys.nbytes() + layer.values.nbytes());
  }
  return sum;
}

void KvCache::truncate(int64_t num_tokens) {
  if (num_tokens < 0 || num_tokens > this->num_tokens()) {
    throw UsageError(Origin{"models"}, "the cache holds ", this->num_tokens(), " tokens; it cannot keep ", num_tokens,
                     ".");
  }
  for (Layer& layer : layers_) layer.used = num_tokens;
}

}  // namespace hasten::models
