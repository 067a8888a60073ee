// Rules of views and of operators that move, split and join values. See rules.h.
#include <ATen/InferSize.h>
#include <ATen/TensorUtils.h>
#include <ATen/ops/cat.h>

#include <algorithm>
#include <utility>

#include "hasten/parallel/tensor/tensor_parallel.h"
#include "parallel/tensor/rules.h"

namespace hasten::parallel::tensor {
namespace {

std::vector<int64_t> inferred(const std::vector<int64_t>& given, const std::vector<int64_t>& sizes) {
  int64_t numel = 1;
  for (const int64_t size : sizes) numel *= size;
  const auto view = at::infer_size_dv(given, numel);
  return {view.begin(), view.end()};
}

// The strides that a value of `sizes` has on one process, by those of a part. Dimensions outside the cut one grow as it
// does. A part that was cut out of a whole value has that one's strides.
std::vector<int64_t> grown_strides(std::vector<int64_t> strides, int64_t own, const Cut& cut,
                                   const std::vector<int64_t>& sizes) {
  std::vector<int64_t> row(sizes.size(), 1);
  for (size_t i = row.size(); i-- > 1;) row[i - 1] = row[i] * sizes[i];
  if (strides == row || own == 0) return strides;
  const auto dim = static_cast<size_t>(cut.dim);
  const int64_t inner = strides[dim];
  for (int64_t& stride : strides) {
    if (stride > inner) stride = stride / own * sizes[dim];
  }
  return strides;
}

std::vector<int64_t> strides_of(const at::Tensor& value) {
  const auto* const global = GlobalTensor::of(value);
  if (global == nullptr) return value.strides().vec();
  const int64_t own = global->local().size(global->cut().dim);
  return grown_strides(strides_of(global->local()), own, global->cut(), global->sizes().vec());
}

// Whether one process would have a view: then writes to it reach the value.
bool is_view_elsewhere(const Argument& x, const std::vector<int64_t>& sizes) {
  const auto strides = grown_strides(strides_of(x.local), x.local.size(x.cut.dim), x.cut, x.sizes);
  return at::detail::computeStride(at::IntArrayRef(x.sizes), strides, at::IntArrayRef(sizes)).has_value();
}

// Both view and reshape: a global tensor says that it is contiguous, its part need not be.
void view_rule(RuleCall& call) {
  const Argument x = call.argument(0);
  if (!call[1].isIntList()) return call.call_on_whole();
  auto sizes = inferred(call[1].toIntVector(), x.sizes);
  const bool is_view = call.op.schema().name() == "aten::view" || is_view_elsewhere(x, sizes);
  const auto cut = cut_of_view(x.sizes, x.cut, sizes, call.axis.num_parts());
  if (!cut || cut->blocks % call.axis.blocks_together() != 0) {
    call.axis.note_gathered(call.op);
    at::Tensor copy = call.whole(x).reshape(sizes);
    return is_view ? call.give_lost(std::move(copy)) : call.give(std::move(copy));
  }
  auto& own = sizes[static_cast<size_t>(cut->dim)];
  const int64_t size = own;
  own = part_size(size, cut->blocks, call.axis.num_parts(), call.axis.part());
  at::Tensor local = x.local.reshape(sizes);
  const bool is_lost = is_view && !local_value(local).is_alias_of(local_value(x.local));
  at::Tensor result = call.wrap(std::move(local), *cut, size);
  return is_lost ? call.give_lost(std::move(result)) : call.give(std::move(result));
}

void transpose_rule(RuleCall& call) {
  const Argument x = call.argument(0);
  if (!call[1].isInt()) return call.call_on_whole();
  const int64_t a = call.dim(1, x.dim()), b = call.dim(2, x.dim());
  Cut cut = x.cut;
  cut.dim = cut.dim == a ? b : cut.dim == b ? a : cut.dim;
  call.give(call.wrap(x.local.transpose(a, b), cut, x.cut_size()));
}

void t_rule(RuleCall& call) {
  const Argument x = call.argument(0);
  Cut cut = x.cut;
  if (x.dim() == 2) cut.dim = 1 - cut.dim;
  call.give(call.wrap(x.local.t(), cut, x.cut_size()));
}

void permute_rule(RuleCall& call) {
  const Argument x = call.argument(0);
  auto dims = call[1].toIntVector();
  Cut cut = x.cut;
  for (size_t i = 0; i < dims.size(); ++i) {
    if (dims[i] < 0) dims[i] += x.dim();
    if (dims[i] == x.cut.dim) cut.dim = static_cast<int64_t>(i);
  }
  call.give(call.wrap(x.local.permute(dims), cut, x.cut_size()));
}

void unsqueeze_rule(RuleCall& call) {
  const Argument x = call.argument(0);
  const int64_t dim = call.dim(1, x.dim() + 1);
  Cut cut = x.cut;
  if (cut.dim >= dim) ++cut.dim;
  call.give(call.wrap(x.local.unsqueeze(dim), cut, x.cut_size()));
}

void squeeze_rule(RuleCall& call) {
  const Argument x = call.argument(0);
  if (call.size() < 2 || !call[1].isInt()) return call.call_on_whole();
  const int64_t dim = call.dim(1, x.dim());
  if (dim == x.cut.dim && x.cut_size() != 1) return call.give(call[0].toTensor());
  if (dim == x.cut.dim) return call.call_on_whole();
  Cut cut = x.cut;
  const bool goes = x.sizes[static_cast<size_t>(dim)] == 1;
  if (goes && cut.dim > dim) --cut.dim;
  call.give(call.wrap(x.local.squeeze(dim), cut, x.cut_size()));
}

void expand_rule(RuleCall& call) {
  const Argument x = call.argument(0);
  auto sizes = call[1].toIntVector();
  const int64_t more = static_cast<int64_t>(sizes.size()) - x.dim();
  const Cut cut{x.cut.dim + more, x.cut.blocks};
  auto& own = sizes[static_cast<size_t>(cut.dim)];
  if (own != -1 && own != x.cut_size()) return call.call_on_whole();
  own = -1;
  call.give(call.wrap(x.local.expand(sizes), cut, x.cut_size()));
}

void select_rule(RuleCall& call) {
  const Argument x = call.argument(0);
  if (!call[1].isInt()) return call.call_on_whole();
  const int64_t dim = call.dim(1, x.dim());
  if (dim == x.cut.dim) return call.call_on_whole();
  Cut cut = x.cut;
  if (cut.dim > dim) --cut.dim;
  call.give(call.wrap(x.local.select(dim, call.integer(2)), cut, x.cut_size()));
}

void unbind_rule(RuleCall& call) {
  const Argument x = call.argument(0);
  const int64_t dim = call.dim(1, x.dim());
  if (!call[1].isInt() || dim == x.cut.dim) return call.call_on_whole();
  Cut cut = x.cut;
  if (cut.dim > dim) --cut.dim;
  std::vector<at::Tensor> parts;
  for (auto& part : x.local.unbind(dim)) parts.push_back(call.wrap(std::move(part), cut, x.cut_size()));
  call.give(parts);
}

// The size at whose multiples pieces of a cut dimension may begin.
int64_t piece_unit(const RuleCall& call, const Argument& x) {
  return x.cut_size() / x.cut.blocks * call.axis.blocks_together();
}

// Pieces of `size` along a dimension; along the cut one at the borders of blocks.
void give_pieces(RuleCall& call, const Argument& x, int64_t size, int64_t dim) {
  std::vector<at::Tensor> pieces;
  if (dim != x.cut.dim) {
    for (auto& piece : x.local.split(size, dim)) pieces.push_back(call.wrap(std::move(piece), x.cut, x.cut_size()));
    return call.give(pieces);
  }
  const int64_t block = x.cut_size() / x.cut.blocks;
  if (size == 0 || size % piece_unit(call, x) != 0) return call.call_on_whole();
  // This rank's part may be empty; it has as many pieces as the others'.
  const int64_t own_block = x.local.size(dim) / x.cut.blocks;
  for (int64_t begin = 0; begin < x.cut_size(); begin += size) {
    const int64_t whole = std::min(x.cut_size() - begin, size);
    pieces.push_back(call.wrap(x.local.narrow(dim, begin / block * own_block, whole / block * own_block),
                               {dim, whole / block}, whole));
  }
  call.give(pieces);
}

void split_rule(RuleCall& call) {
  const Argument x = call.argument(0);
  if (!call[1].isInt()) return call.call_on_whole();
  give_pieces(call, x, call.integer(1), call.dim(2, x.dim()));
}

void chunk_rule(RuleCall& call) {
  const Argument x = call.argument(0);
  const int64_t num = call.integer(1), dim = call.dim(2, x.dim());
  const int64_t size = x.sizes[static_cast<size_t>(dim)];
  const int64_t piece = (size + num - 1) / num;
  if (dim == x.cut.dim && (piece == 0 || piece % piece_unit(call, x) != 0)) {
    call.axis.note_gathered(call.op);
    return call.give_lost(call.whole(x).chunk(num, dim));
  }
  give_pieces(call, x, piece, dim);
}

void split_with_sizes_rule(RuleCall& call) {
  const Argument x = call.argument(0);
  const auto sizes = call[1].toIntVector();
  const int64_t dim = call.dim(2, x.dim());
  const bool along = dim == x.cut.dim;
  const int64_t block = x.cut_size() / x.cut.blocks;
  const bool fits = std::all_of(sizes.begin(), sizes.end(),
                                [unit = piece_unit(call, x)](int64_t size) { return size > 0 && size % unit == 0; });
  if (along && !fits) return call.call_on_whole();
  const int64_t own_block = x.local.size(x.cut.dim) / x.cut.blocks;
  std::vector<at::Tensor> pieces;
  int64_t begin = 0;
  for (const int64_t size : sizes) {
    const int64_t own = along ? size / block * own_block : size;
    pieces.push_back(call.wrap(x.local.narrow(dim, begin, own), {x.cut.dim, along ? size / block : x.cut.blocks},
                               along ? size : x.cut_size()));
    begin += own;
  }
  call.give(pieces);
}

void slice_rule(RuleCall& call) {
  const Argument x = call.argument(0);
  const int64_t dim = call.dim(1, x.dim()), size = x.sizes[static_cast<size_t>(dim)], step = call.integer(4, 1);
  const auto place = [&](size_t i, int64_t otherwise) {
    const int64_t given = call.integer(i, otherwise);
    return std::clamp(given < 0 ? given + size : given, int64_t{0}, size);
  };
  const int64_t begin = place(2, 0), end = std::max(begin, place(3, size));
  if (dim != x.cut.dim) return call.give(call.wrap(x.local.slice(dim, begin, end, step), x.cut, x.cut_size()));
  if (step == 1 && begin == 0 && end == size) return call.give(call.wrap(x.local.alias(), x.cut, size));
  const int64_t block = size / x.cut.blocks, unit = piece_unit(call, x);
  if (step != 1 || begin % unit != 0 || end % unit != 0 || end == begin) return call.call_on_whole();
  const int64_t own = x.local.size(dim) / x.cut.blocks;
  call.give(
      call.wrap(x.local.slice(dim, begin / block * own, end / block * own), {dim, (end - begin) / block}, end - begin));
}

void narrow_rule(RuleCall& call) {
  const Argument x = call.argument(0);
  if (!call[2].isInt()) return call.call_on_whole();
  const int64_t dim = call.dim(1, x.dim()), size = x.size(dim), length = call.integer(3);
  const int64_t begin = call.integer(2) < 0 ? call.integer(2) + size : call.integer(2);
  // What does not fit gets libtorch's words; a slice would be shorter.
  if (begin < 0 || length < 0 || begin + length > size) return call.call_on_whole();
  call.give(x.tensor.slice(dim, begin, begin + length));
}

void cat_rule(RuleCall& call) {
  std::vector<Argument> all;
  for (const at::Tensor& tensor : call[0].toTensorVector()) all.push_back(call.axis.look(tensor));
  if (!call[1].isInt()) return call.call_on_whole();
  const auto first_cut = std::find_if(all.begin(), all.end(), [](const Argument& x) { return x.is_cut(); });
  const Cut cut = first_cut->cut;
  const int64_t dim = call.dim(1, first_cut->dim());
  const bool alike =
      std::all_of(all.begin(), all.end(), [&](const Argument& x) { return x.dim() == first_cut->dim(); });
  if (dim == cut.dim || !alike) return call.call_on_whole();
  std::vector<at::Tensor> parts;
  for (const Argument& x : all) parts.push_back(call.part(x, cut));
  call.give(call.wrap(at::cat(parts, dim), cut, first_cut->cut_size()));
}

void stack_rule(RuleCall& call) {
  std::vector<at::Tensor> rows;
  for (const at::Tensor& tensor : call[0].toTensorVector()) {
    const int64_t dims = tensor.dim() + 1, given = call.integer(1);
    rows.push_back(tensor.unsqueeze(given < 0 ? given + dims : given));
  }
  call.give(at::cat(rows, call.integer(1)));
}

void repeat_interleave_rule(RuleCall& call) {
  const Argument x = call.argument(0);
  if (!call[1].isInt() || !call[2].isInt()) return call.call_on_whole();
  const int64_t dim = call.dim(2, x.dim()), times = call.integer(1);
  // Parts of the result are torch.chunk's as well, and repeated uneven parts are none.
  const bool is_even = x.cut_size() / x.cut.blocks % call.axis.num_parts() == 0;
  if (dim == x.cut.dim && !is_even) return call.call_on_whole();
  call.call_on_parts(x.cut, dim == x.cut.dim ? x.cut_size() * times : x.cut_size());
}

}  // namespace

void add_shape_rules(Rules& rules) {
  rules["aten::view"] = rules["aten::reshape"] = rules["aten::_unsafe_view"] = view_rule;
  rules["aten::transpose"] = rules["aten::swapaxes"] = rules["aten::swapdims"] = transpose_rule;
  rules["aten::t"] = t_rule;
  rules["aten::permute"] = permute_rule;
  rules["aten::unsqueeze"] = unsqueeze_rule;
  rules["aten::squeeze"] = squeeze_rule;
  rules["aten::expand"] = expand_rule;
  rules["aten::select"] = select_rule;
  rules["aten::unbind"] = unbind_rule;
  rules["aten::split"] = split_rule;
  rules["aten::split_with_sizes"] = split_with_sizes_rule;
  rules["aten::chunk"] = chunk_rule;
  rules["aten::slice"] = slice_rule;
  rules["aten::narrow"] = narrow_rule;
  rules["aten::cat"] = rules["aten::concat"] = rules["aten::concatenate"] = cat_rule;
  rules["aten::stack"] = stack_rule;
  rules["aten::repeat_interleave"] = repeat_interleave_rule;
}

}  // namespace hasten::parallel::tensor
