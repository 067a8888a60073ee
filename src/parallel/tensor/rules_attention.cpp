// The rule of scaled dot-product attention: on heads, or on a sequence. See rules.h.
#include <ATen/ops/arange.h>
#include <ATen/ops/scaled_dot_product_attention.h>

#include <algorithm>
#include <utility>

#include "hasten/core/error.h"
#include "parallel/tensor/rules.h"

namespace hasten::parallel::tensor {
namespace {

constexpr size_t kMask = 3, kDropout = 4, kCausal = 5;

// The rows of a mask that belong to a rank's queries; masks that say the same of all queries stay.
at::Tensor mask_part(RuleCall& call, const Argument& queries) {
  if (!call.has_tensor(kMask)) return {};
  const Argument mask = call.argument(kMask);
  const int64_t dim = queries.cut.dim - (queries.dim() - mask.dim());
  if (dim < 0 || mask.size(dim) == 1) return call.whole_for_parts(mask);
  return call.part(mask, {dim, queries.cut.blocks});
}

at::Tensor attend(RuleCall& call, const at::Tensor& queries, const at::Tensor& keys, const at::Tensor& values,
                  const at::Tensor& mask, bool is_causal) {
  call[0] = queries;
  call[1] = keys;
  call[2] = values;
  call[kMask] = mask.defined() ? c10::IValue(mask) : c10::IValue();
  call[kCausal] = is_causal;
  if (call[kDropout].toDouble() > 0) {
    const CutAxis::OwnRandom own(call.axis, queries.device());
    return call.call();
  }
  return call.call();
}

// Heads or batch entries of a rank: nothing is exchanged.
void on_heads(RuleCall& call, const Argument& queries) {
  const Argument keys = call.argument(1), values = call.argument(2);
  const int64_t size = queries.size(queries.cut.dim);
  for (const Argument& x : {keys, values}) {
    // Fewer heads of keys than of queries go along only if they divide alike.
    const int64_t own = x.size(queries.cut.dim);
    if (own != size && !divides_evenly(own, queries.cut.blocks, call.axis.num_parts())) return call.call_on_whole();
  }
  const auto own = [&](const Argument& x) { return call.part(x, queries.cut); };
  const at::Tensor mask = mask_part(call, queries);
  const bool is_causal = call[kCausal].toBool();
  const at::Tensor k = own(keys), v = own(values);
  call.give(call.wrap(attend(call, queries.local, k, v, mask, is_causal), queries.cut, size));
}

// A rank's queries over the keys of all.
void gather_keys(RuleCall& call, const Argument& queries) {
  const Argument keys = call.argument(1), values = call.argument(2);
  const int64_t size = queries.size(queries.cut.dim);
  const at::Tensor k = call.whole_for_parts(keys), v = call.whole_for_parts(values);
  at::Tensor mask = mask_part(call, queries);
  if (call[kCausal].toBool()) {
    const auto own = call.axis.part_of(size);
    const auto options = at::TensorOptions(at::kLong).device(queries.local.device());
    const at::Tensor rows = at::arange(own.begin, own.end, options).unsqueeze(1);
    mask = at::arange(0, keys.size(queries.cut.dim), options).unsqueeze(0).le(rows);
  }
  call.give(call.wrap(attend(call, queries.local, k, v, mask, false), queries.cut, size));
}

// All positions of some heads, then back.
void move_to_heads(RuleCall& call, const Argument& queries) {
  const int64_t dim = queries.cut.dim, heads = dim - 1;
  const int64_t size = queries.size(dim), num_heads = queries.size(heads);
  const int ranks = call.axis.num_parts();
  if (num_heads % ranks != 0) {
    throw UsageError(Origin{"tensor", call.axis.part(), ranks}, "attention has ", num_heads, " heads, which ",
                     call.axis.options().name, " = ", ranks,
                     " does not divide. Choose a divisor, or cp in the place of sp.");
  }
  const auto to_heads = [&](const Argument& given) {
    Argument x = given;
    at::Tensor own = call.part(x, {dim, 1});
    const int64_t had = x.size(heads);
    // Fewer heads of keys than ranks are repeated until each rank has some.
    const int64_t times = had % ranks == 0 ? 1 : num_heads / had;
    if (times > 1) own = own.repeat_interleave(times, heads);
    return exchange(call.axis, own, {ExchangeKind::kMove, {dim, 1}, x.size(dim), heads, had * times});
  };
  const at::Tensor q = to_heads(queries), k = to_heads(call.argument(1)), v = to_heads(call.argument(2));
  at::Tensor mask;
  if (call.has_tensor(kMask)) {
    const Argument given = call.argument(kMask);
    const int64_t at = heads - (queries.dim() - given.dim());
    mask = at >= 0 && given.size(at) > 1 ? call.part(given, {at, 1}) : call.whole_for_parts(given);
  }
  const at::Tensor out = attend(call, q, k, v, mask, call[kCausal].toBool());
  call.give(
      call.wrap(exchange(call.axis, out, {ExchangeKind::kMove, {heads, 1}, num_heads, dim, size}), {dim, 1}, size));
}

void attention_rule(RuleCall& call) {
  const Argument queries = call.argument(0);
  if (!queries.is_cut() || queries.cut.dim == queries.dim() - 1) return call.call_on_whole();
  if (queries.cut.dim < queries.dim() - 2) return on_heads(call, queries);
  const bool by_heads = call.axis.options().attention == SequenceAttention::kHeads && queries.cut.blocks == 1;
  return by_heads ? move_to_heads(call, queries) : gather_keys(call, queries);
}

}  // namespace

void add_attention_rules(Rules& rules) {
  rules["aten::scaled_dot_product_attention"] = attention_rule;
}

}  // namespace hasten::parallel::tensor
