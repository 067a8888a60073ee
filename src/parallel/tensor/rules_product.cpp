// Rules of matrix products and embeddings. See rules.h.
#include <ATen/ops/addmm.h>
#include <ATen/ops/bmm.h>
#include <ATen/ops/embedding.h>
#include <ATen/ops/linear.h>
#include <ATen/ops/matmul.h>
#include <ATen/ops/mm.h>

#include <cmath>
#include <functional>
#include <utility>

#include "parallel/tensor/rules.h"

namespace hasten::parallel::tensor {
namespace {

// A product of x [..., in] and a matrix [in, out], with a bias [out] or none.
struct Product {
  Argument x;
  /// `cut` and `sizes` as of [in, out]; `local` as the operator takes it.
  Argument matrix;
  Argument bias;
  /// Whether the operator takes the matrix as [out, in].
  bool transposed = false;
  std::function<at::Tensor(const at::Tensor& x, const at::Tensor& matrix, const at::Tensor& bias)> multiply;

  int64_t last() const { return x.dim() - 1; }
  int64_t out() const { return matrix.sizes[1]; }
};

// What leaves a sum over the cut dimension: whole, or cut on a sequence.
at::Tensor leave_sum(RuleCall& call, const at::Tensor& part, const Argument& bias) {
  const int ranks = call.axis.num_parts();
  if (call.axis.options().sequence_parallel) {
    if (const auto dim = sequence_dim(part.sizes().vec(), ranks)) {
      const int64_t size = part.size(*dim);
      at::Tensor own = exchange(call.axis, part, {ExchangeKind::kReduceScatter, {*dim, 1}, size});
      if (bias.local.defined()) own = own.add(call.whole_for_parts(bias).to(own.scalar_type()));
      return call.wrap(own, {*dim, 1}, size);
    }
  }
  const at::Tensor sum = call.sum(part);
  return bias.local.defined() ? sum.add(call.whole(bias).to(sum.scalar_type())) : sum;
}

// The matrix is cut on its outputs: so is the result.
at::Tensor by_columns(RuleCall& call, const Product& of) {
  const at::Tensor in = call.whole_for_parts(of.x);
  const Cut cut{0, of.matrix.cut.blocks};
  const at::Tensor bias = of.bias.local.defined() ? call.part(of.bias, cut) : at::Tensor();
  return call.wrap(of.multiply(in, of.matrix.local, bias), {of.last(), of.matrix.cut.blocks}, of.out());
}

// Sums over the cut dimension.
at::Tensor by_rows(RuleCall& call, const Product& of) {
  const at::Tensor in = call.part(of.x, {of.last(), of.matrix.cut.blocks});
  return leave_sum(call, of.multiply(in, of.matrix.local, {}), of.bias);
}

at::Tensor multiply(RuleCall& call, Product& of) {
  if (of.matrix.is_cut()) return of.matrix.cut.dim == 1 ? by_columns(call, of) : by_rows(call, of);
  if (of.x.is_cut() && of.x.cut.dim == of.last()) {
    // Each rank takes its rows of the whole matrix.
    const Cut rows{0, of.x.cut.blocks};
    Argument matrix = of.matrix;
    if (of.transposed) {
      matrix.local = exchange(call.axis, matrix.local, {ExchangeKind::kSlice, {1, rows.blocks}, matrix.sizes[0]});
    } else {
      matrix.local = exchange(call.axis, matrix.local, {ExchangeKind::kSlice, rows, matrix.sizes[0]});
    }
    matrix.cut = rows;
    of.matrix = matrix;
    return by_rows(call, of);
  }
  if (!of.x.is_cut()) {
    const at::Tensor bias = of.bias.local.defined() ? call.whole(of.bias) : at::Tensor();
    return of.multiply(of.x.local, of.matrix.local, bias);
  }
  const at::Tensor bias =
      of.bias.local.defined() ? call.entered({of.bias.tensor, call.whole(of.bias), {}, {}}) : at::Tensor();
  return call.wrap(of.multiply(of.x.local, call.entered(of.matrix), bias), of.x.cut, of.x.size(of.x.cut.dim));
}

void linear_rule(RuleCall& call) {
  Product of{.x = call.argument(0),
             .matrix = call.argument(1),
             .bias = call.argument(2),
             .transposed = true,
             .multiply = [](const at::Tensor& x, const at::Tensor& matrix, const at::Tensor& bias) {
               return at::linear(x, matrix, bias.defined() ? std::optional(bias) : std::nullopt);
             }};
  if (of.matrix.dim() != 2) return call.call_on_whole();
  std::swap(of.matrix.sizes[0], of.matrix.sizes[1]);
  if (of.matrix.is_cut()) of.matrix.cut.dim = 1 - of.matrix.cut.dim;
  call.give(multiply(call, of));
}

void addmm_rule(RuleCall& call) {
  const bool plain = call[3].toScalar().equal(1) && call[4].toScalar().equal(1);
  Product of{.x = call.argument(1),
             .matrix = call.argument(2),
             .bias = call.argument(0),
             .multiply = [](const at::Tensor& x, const at::Tensor& matrix, const at::Tensor& bias) {
               return bias.defined() ? at::addmm(bias, x, matrix) : at::mm(x, matrix);
             }};
  if (!plain || of.bias.dim() != 1) return call.call_on_whole();
  call.give(multiply(call, of));
}

// Products of batches of matrices: cut alike on a batch dimension, on rows, on columns, or on what is summed.
void batch_rule(RuleCall& call, const Argument& x, const Argument& y) {
  const int64_t dims = std::max(x.dim(), y.dim());
  const auto aligned = [&](const Argument& of) {
    return of.is_cut() ? Cut{of.cut.dim + dims - of.dim(), of.cut.blocks} : Cut{};
  };
  const Cut a = aligned(x), b = aligned(y);
  const Cut first = a.is_cut() ? a : b;
  const int64_t size = a.is_cut() ? x.size(x.cut.dim) : y.size(y.cut.dim);
  if (first.dim < dims - 2) {
    const auto spreads = [&](const Argument& of) {
      const int64_t dim = first.dim - (dims - of.dim());
      return dim >= 0 && of.size(dim) > size;
    };
    if (spreads(x) || spreads(y)) return call.call_on_whole();
    const auto own = [&](const Argument& of) {
      const int64_t dim = first.dim - (dims - of.dim());
      return dim >= 0 && of.size(dim) == size ? call.part(of, {dim, first.blocks}) : call.whole_for_parts(of);
    };
    return call.give(call.wrap(at::matmul(own(x), own(y)), first, size));
  }
  if (a.is_cut() && a.dim == dims - 2) {
    return call.give(call.wrap(at::matmul(x.local, call.whole_for_parts(y)), a, size));
  }
  if (!a.is_cut() && b.dim == dims - 1) {
    return call.give(call.wrap(at::matmul(call.whole_for_parts(x), y.local), b, size));
  }
  // Over the last dimension of x and the last but one of y.
  const Cut summed{x.dim() - 1, first.blocks};
  const Cut rows{y.dim() - 2, first.blocks};
  if ((a.is_cut() && a.dim == dims - 1) || (!a.is_cut() && b.dim == dims - 2)) {
    return call.give(call.sum(at::matmul(call.part(x, summed), call.part(y, rows))));
  }
  call.call_on_whole();
}

void matmul_rule(RuleCall& call) {
  Product of{.x = call.argument(0),
             .matrix = call.argument(1),
             .bias = {},
             .multiply = [](const at::Tensor& x, const at::Tensor& matrix, const at::Tensor&) {
               return at::matmul(x, matrix);
             }};
  if (of.x.dim() < 2 || of.matrix.dim() < 2) return call.call_on_whole();
  if (of.matrix.dim() == 2) return call.give(multiply(call, of));
  batch_rule(call, of.x, of.matrix);
}

// Rows of the vocabulary that this rank has; the others' are zeros, and the sum of all ranks' is the embedding.
at::Tensor own_rows(RuleCall& call, const Argument& table, const at::Tensor& ids, int64_t padding) {
  const auto own = call.axis.part_of(table.sizes[0]);
  const at::Tensor others = ids.lt(own.begin).logical_or(ids.ge(own.end));
  const at::Tensor strange = strange_indices(ids, table.sizes[0], {}, "index out of range in self");
  const bool has_padding = padding >= own.begin && padding < own.end;
  if (own.size() == 0) {
    auto sizes = ids.sizes().vec();
    sizes.push_back(table.sizes[1]);
    // Behind the empty part, so that its gradients take part in exchanges as the others' do.
    return at::zeros(sizes, table.local.options()).add(table.local.sum());
  }
  return at::embedding(table.local, (ids - own.begin).masked_fill(others, 0), has_padding ? padding - own.begin : -1)
      .masked_fill(others.unsqueeze(-1), 0)
      .masked_fill(strange.unsqueeze(-1), NAN);
}

void embedding_rule(RuleCall& call) {
  const Argument table = call.argument(0), ids = call.argument(1);
  const int64_t padding = call.integer(2, -1);
  const bool by_frequency = call[3].toBool(), sparse = call[4].toBool();
  if (by_frequency || sparse || (table.is_cut() && table.cut.blocks > 1)) return call.call_on_whole();
  if (!table.is_cut()) {
    return call.give(call.wrap(at::embedding(call.entered(table), ids.local, padding), ids.cut, ids.size(ids.cut.dim)));
  }
  const at::Tensor all_ids = call.whole(ids);
  if (table.cut.dim == 1) {
    return call.give(call.wrap(at::embedding(table.local, all_ids, padding), {ids.dim(), 1}, table.sizes[1]));
  }
  call.give(leave_sum(call, own_rows(call, table, all_ids, padding), {}));
}

}  // namespace

void add_product_rules(Rules& rules) {
  rules["aten::linear"] = linear_rule;
  rules["aten::addmm"] = addmm_rule;
  rules["aten::matmul"] = rules["aten::mm"] = rules["aten::bmm"] = matmul_rule;
  rules["aten::embedding"] = embedding_rule;
}

}  // namespace hasten::parallel::tensor
