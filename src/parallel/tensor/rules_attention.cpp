// The rule of scaled dot-product attention: on heads, or on a sequence. See rules.h.
#include <ATen/ops/arange.h>
#include <ATen/ops/cat.h>
#include <ATen/ops/scaled_dot_product_attention.h>
#include <ATen/ops/zeros.h>

#include <algorithm>
#include <optional>
#include <utility>
#include <vector>

#include "hasten/core/error.h"
#include "parallel/tensor/rules.h"

namespace hasten::parallel::tensor {
namespace {

constexpr size_t kMask = 3, kDropout = 4, kCausal = 5, kScale = 6, kGroups = 7;

// The rows of a mask that belong to a rank's queries; masks that say the same of all queries stay.
at::Tensor mask_part(RuleCall& call, const Argument& queries) {
  if (!call.has_tensor(kMask)) return {};
  const Argument mask = call.argument(kMask);
  const int64_t dim = queries.cut.dim - (queries.dim() - mask.dim());
  if (dim < 0 || mask.size(dim) == 1) return call.whole_for_parts(mask);
  return call.part(mask, {dim, queries.cut.blocks});
}

// A rank without queries. Gradients of all arguments are zeros, and take part in exchanges as the others' do:
// libtorch's own attention leaves those of an empty one out.
at::Tensor attend_nothing(const at::Tensor& queries, const at::Tensor& keys, const at::Tensor& values,
                          const at::Tensor& mask) {
  auto sizes = queries.sizes().vec();
  sizes.back() = values.size(-1);
  at::Tensor sum = queries.sum() + keys.sum() + values.sum();
  if (mask.defined() && mask.is_floating_point()) sum = sum + mask.sum().to(sum.scalar_type());
  return at::zeros(sizes, queries.options()).add(sum);
}

bool has_queries(const at::Tensor& queries) {
  const auto rows = queries.sizes().slice(0, static_cast<size_t>(queries.dim() - 1));
  return std::find(rows.begin(), rows.end(), 0) == rows.end();
}

// With the call's dropout, scale and groups of heads; the call stays as it is.
at::Tensor attend(const RuleCall& call, const at::Tensor& queries, const at::Tensor& keys, const at::Tensor& values,
                  const at::Tensor& mask, bool is_causal) {
  const double dropout = call[kDropout].toDouble();
  std::optional<CutAxis::OwnRandom> own;
  if (dropout > 0) own.emplace(call.axis, queries.device());
  if (!has_queries(queries)) return attend_nothing(queries, keys, values, mask);
  return at::scaled_dot_product_attention(
      queries, keys, values, mask.defined() ? std::optional(mask) : std::nullopt, dropout, is_causal,
      call[kScale].isNone() ? std::nullopt : std::optional(call[kScale].toDouble()), call[kGroups].toBool());
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

// Positions of a sequence that a rank has, block by block.
std::vector<CutInterval> own_positions(const RuleCall& call, const Argument& queries) {
  const int64_t blocks = queries.cut.blocks, block = queries.cut_size() / blocks;
  std::vector<CutInterval> own;
  for (int64_t i = 0; i < blocks; ++i) {
    const auto in_block = part_of(block, call.axis.num_parts(), call.axis.part_in_block(i, call.axis.part()));
    own.push_back({i * block + in_block.begin, i * block + in_block.end});
  }
  return own;
}

// Queries at some positions over the keys up to the last of them: what lies behind is masked for all.
at::Tensor attend_before(const RuleCall& call, const at::Tensor& queries, const at::Tensor& keys,
                         const at::Tensor& values, const CutInterval& at) {
  const int64_t dim = keys.dim() - 2, end = std::min(at.end, keys.size(dim));
  const at::Tensor k = keys.narrow(dim, 0, end), v = values.narrow(dim, 0, end);
  if (at.begin == 0) return attend(call, queries, k, v, {}, true);
  const auto options = at::TensorOptions(at::kLong).device(queries.device());
  const at::Tensor rows = at::arange(at.begin, at.end, options).unsqueeze(1);
  return attend(call, queries, k, v, at::arange(0, end, options).unsqueeze(0).le(rows), false);
}

// A rank's queries over the keys of all.
void gather_keys(RuleCall& call, const Argument& queries) {
  const Argument keys = call.argument(1), values = call.argument(2);
  const int64_t dim = queries.cut.dim, size = queries.size(dim);
  const at::Tensor k = call.whole_for_parts(keys), v = call.whole_for_parts(values);
  const at::Tensor mask = mask_part(call, queries);
  // libtorch refuses both.
  if (!call[kCausal].toBool() || mask.defined())
    return call.give(call.wrap(attend(call, queries.local, k, v, mask, call[kCausal].toBool()), queries.cut, size));
  std::vector<at::Tensor> parts;
  int64_t begin = 0;
  for (const CutInterval& own : own_positions(call, queries)) {
    if (own.size() == 0 && queries.local.size(dim) > 0) continue;
    parts.push_back(attend_before(call, queries.local.narrow(dim, begin, own.size()), k, v, own));
    begin += own.size();
  }
  const at::Tensor out = parts.size() == 1 ? parts.front() : at::cat(parts, dim);
  call.give(call.wrap(out, queries.cut, size));
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
  const bool by_heads =
      call.axis.options().attention == SequenceAttention::kHeads && queries.cut.blocks == 1 && queries.dim() > 2;
  return by_heads ? move_to_heads(call, queries) : gather_keys(call, queries);
}

}  // namespace

void add_attention_rules(Rules& rules) {
  rules["aten::scaled_dot_product_attention"] = attention_rule;
}

}  // namespace hasten::parallel::tensor
