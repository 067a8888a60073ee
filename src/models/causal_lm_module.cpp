// See causal_lm_module.h.
#include "hasten/models/causal_lm_module.h"

#include <torch/nn/functional/linear.h>
#include <torch/nn/init.h>
#include <torch/types.h>

#include <limits>

#include "hasten/core/error.h"

namespace hasten::models::detail {
namespace {

// Query i (counted over all tokens) attends to keys up to i, and with a window not those before i - window + 1.
at::Tensor causal_mask(int64_t past, int64_t tokens, int64_t sliding_window, c10::Device device) {
  at::Tensor allowed = at::ones({tokens, past + tokens}, at::TensorOptions(device).dtype(at::kBool)).tril(past);
  if (sliding_window > 0) allowed = at::logical_and(allowed, at::ones_like(allowed).triu(past - sliding_window + 1));
  return allowed.unsqueeze(0);
}

}  // namespace

AttentionContext attention_context(const at::Tensor& ids, const at::Tensor& attention_mask, KvCache* cache,
                                   at::ScalarType type, int64_t sliding_window) {
  if (ids.dim() != 2 || !c10::isIntegralType(ids.scalar_type(), false)) {
    throw UsageError(Origin{"models"}, "token ids are ", c10::toString(ids.scalar_type()), " of shape [",
                     join(ids.sizes()), "]; expected integers of shape [batch, tokens].");
  }
  const int64_t past = cache == nullptr ? 0 : cache->num_tokens(), tokens = ids.size(1), all = past + tokens;
  AttentionContext context;
  context.cache = cache;
  const bool is_windowed = sliding_window > 0 && all > sliding_window;
  if (!attention_mask.defined()) {
    const at::Tensor places = at::arange(past, all, at::TensorOptions(ids.device()).dtype(at::kLong));
    context.positions = places.unsqueeze(0).expand({ids.size(0), tokens});
    if (!is_windowed && (past == 0 || tokens == 1)) {
      context.is_causal = past == 0 && tokens > 1;
      return context;
    }
  } else {
    if (attention_mask.dim() != 2 || attention_mask.size(0) != ids.size(0) || attention_mask.size(1) != all) {
      throw UsageError(Origin{"models"}, "the attention mask has shape [", join(attention_mask.sizes()),
                       "]; expected [", ids.size(0), ", ", all, "]: the batch and all tokens so far.");
    }
    context.positions = (attention_mask.to(at::kLong).cumsum(-1) - 1).clamp_min(0).slice(1, past, all);
  }
  at::Tensor allowed = causal_mask(past, tokens, sliding_window, ids.device());
  if (attention_mask.defined()) allowed = at::logical_and(allowed, attention_mask.to(at::kBool).unsqueeze(1));
  // A row of padding attends to all positions, so that its softmax is no division by zero. Its output is not used.
  allowed = at::logical_or(allowed, at::logical_not(allowed.any(-1, true)));
  context.mask = at::zeros(allowed.sizes(), allowed.options().dtype(type))
                     .masked_fill(at::logical_not(allowed), -std::numeric_limits<double>::infinity())
                     .unsqueeze(1);
  return context;
}

at::Tensor attend(const at::Tensor& queries, const at::Tensor& keys, const at::Tensor& values,
                  const AttentionContext& context, int64_t layer) {
  at::Tensor all_keys = keys, all_values = values;
  if (context.cache != nullptr) std::tie(all_keys, all_values) = context.cache->append(layer, keys, values);
  const int64_t group = queries.size(1) / keys.size(1);
  if (group > 1) {
    all_keys = all_keys.repeat_interleave(group, 1);
    all_values = all_values.repeat_interleave(group, 1);
  }
  const std::optional<at::Tensor> mask = context.mask.defined() ? std::optional(context.mask) : std::nullopt;
  const at::Tensor out = at::scaled_dot_product_attention(queries, all_keys, all_values, mask, 0.0, context.is_causal);
  return out.transpose(1, 2).reshape({out.size(0), out.size(2), out.size(1) * out.size(3)});
}

LmHeadImpl::LmHeadImpl(int64_t hidden, int64_t vocabulary, const at::Tensor& tied_weight) {
  weight = register_parameter("weight", tied_weight.defined() ? tied_weight : at::empty({vocabulary, hidden}));
}

at::Tensor LmHeadImpl::forward(const at::Tensor& x) const {
  return torch::nn::functional::linear(x, weight);
}

void initialize_normal(torch::nn::Module& module, double range) {
  const torch::NoGradGuard no_grad;
  for (const auto& item : module.named_parameters()) {
    if (item.value().dim() > 1) {
      torch::nn::init::normal_(item.value(), 0.0, range);
    } else if (item.key().ends_with("bias")) {
      item.value().zero_();
    }
  }
}

}  // namespace hasten::models::detail
