// Operations on nested structures of tensors. Among the ranks: gather, broadcast, reduce and padding. On one rank:
// concatenate, slice, batch size and device. Behaviour follows accelerate.utils.operations; where it differs, the
// function's comment names the difference.
//
// Each function flattens the structure (nested.h), works on the list of tensors (nested_operations.cpp, compiled once),
// and builds the structure again. All ranks must pass the same structure. If the group is checked (Group::checked),
// they first compare it and throw naming both sides. Numbers, texts and lists take part, too (leaves.h); operations on
// one rank alone leave them as they are.
#pragma once

#include <ATen/core/Tensor.h>

#include <functional>
#include <string>
#include <vector>

#include "hasten/comm/group/group.h"
#include "hasten/comm/nested/leaves.h"
#include "hasten/comm/nested/nested.h"

namespace hasten::comm {

/// The detail of structure_of about tensors: nothing ("tensor"), dtype and all sizes but the first ("Float[*, 28]"),
/// dtype and all sizes ("Float[64, 28]"). kRows and kShapesOfTensors write "[*]" for sequences without tensors, which
/// may be of any length.
enum class StructureDetail { kNames, kRows, kShapes, kShapesOfTensors };

namespace detail {

using Tensors = std::vector<at::Tensor>;
using Site = Group::Site;

std::string describe(const std::function<void(Walker&)>& walk, StructureDetail detail);
Tensors gather(const Group& group, const Tensors& tensors, const Site& site);
Tensors broadcast(const Group& group, const Tensors& tensors, int from, const Site& site);
Tensors concatenate(const std::vector<Tensors>& values, int64_t dim, const std::vector<std::string>& structures);
int64_t find_batch_size(const Tensors& tensors, const std::string& structure);
at::Tensor slice(const at::Tensor& tensor, int64_t begin, int64_t end);

/// Throws on every rank unless all pass the same text.
void agree(const Group& group, const char* operation, const std::string& structure, const Site& site);

/// Returns the structure of `value` around other tensors, in the order of tensors_of.
template <class T>
T with_tensors(const T& value, const Tensors& tensors) {
  size_t next = 0;
  return map_tensors(value, [&](const at::Tensor&) { return tensors.at(next++); });
}

}  // namespace detail

/// "{data: Float[64, 1, 28, 28], target: Long[64]}": braces around names, brackets around sequences,
/// parentheses around tuples and structs, "-" for what is no tensor, "none" for empty optionals and
/// undefined tensors.
template <class T>
std::string structure_of(const T& value, StructureDetail detail = StructureDetail::kShapes) {
  T copy = value;
  return detail::describe([&](detail::Walker& walker) { detail::walk(copy, walker); }, detail);
}

namespace detail {

/// Agrees on structure and settings where the group is checked, and gives the group to go on with: one
/// agreement is enough for all tensors.
template <class T, class... Settings>
Group agreed(const Group& group, const char* operation, const T& value, StructureDetail detail, const Site& site,
             const Settings&... settings) {
  if (!group.checked()) return group;
  agree(group, operation, text(settings..., structure_of(value, detail)), site);
  return group.with_check(false);
}

}  // namespace detail

/// Concatenates every tensor along dim 0 over all ranks, in rank order. Scalars become [world_size], also in a world of
/// one, where Accelerate leaves them scalars. First sizes may differ between the ranks. The results are new tensors
/// without autograd history. Vectors of numbers, texts and other objects become those of all ranks, one after the
/// other. A single number or text does not compile: gather_object gives all of them. Collective: yes. Blocks: yes.
/// Throws: CommError (peer; another structure on a checked group).
template <class T>
T gather(const Group& group, const T& value, Group::Site site = Group::Site::current()) {
  const Group agreed = detail::agreed(group, "gather", value, StructureDetail::kRows, site);
  T result = detail::with_tensors(value, detail::gather(agreed, tensors_of(value), site));
  detail::join_lists(result, [&](const auto& list) { return detail::gather_list(agreed, list, site); });
  return result;
}

/// Sets every tensor to that of rank `from`; shapes and dtypes are the same everywhere. New tensors on every rank
/// (Accelerate overwrites the arguments). Numbers, texts and vectors of objects become those of rank `from`, too.
/// Collective: yes. Blocks: yes. Throws: UsageError for a rank outside the group; CommError as gather.
template <class T>
T broadcast(const Group& group, const T& value, int from = 0, Group::Site site = Group::Site::current()) {
  const Group agreed =
      detail::agreed(group, "broadcast", value, StructureDetail::kShapesOfTensors, site, "from rank ", from, ": ");
  T result = detail::with_tensors(value, detail::broadcast(agreed, tensors_of(value), from, site));
  detail::broadcast_leaves(agreed, result, from, site);
  return result;
}

struct ReduceOptions {
  ReduceOp op = ReduceOp::kSum;
  /// Factor on the result, on any number of processes (Accelerate applies it on TPUs only).
  double scale = 1.0;
};

namespace detail {
Tensors reduce(const Group& group, const Tensors& tensors, const ReduceOptions& options, const Site& site);
const char* reduction_name(ReduceOp op) noexcept;
}  // namespace detail

/// Reduces every tensor and every number over the ranks, times `scale`; the results are new tensors without autograd
/// history. Numbers are reduced as int64, double or bool. Texts do not compile.
/// Collective: yes. Blocks: yes. Throws: UsageError for the mean, or a scale other than 1, of integers, and for an
/// integer that its type cannot hold; CommError.
template <class T>
T reduce(const Group& group, const T& value, const ReduceOptions& options = {},
         Group::Site site = Group::Site::current()) {
  const Group agreed =
      detail::agreed(group, "reduce", value, StructureDetail::kShapes, site, detail::reduction_name(options.op), ": ");
  return detail::from_numbers(value, detail::reduce(agreed, detail::with_numbers(value), options, site));
}

struct PadOptions {
  /// Dimension that is made equal; negative counts from the end. Tensors that lack it stay as they are.
  int64_t dim = 0;
  /// Value of the padding, converted to each tensor's dtype.
  at::Scalar pad_index = 0;
  /// Padding before the values instead of behind them.
  bool pad_first = false;
};

namespace detail {
Tensors pad(const Group& group, const Tensors& tensors, const PadOptions& options, const Site& site);
}

/// Pads every tensor along `dim` to the largest size that any rank has there, so that gather can follow. All else stays
/// this rank's own.
/// Collective: yes. Blocks: yes. Throws: CommError if the ranks hold different numbers of tensors, or as gather.
template <class T>
T pad_across_processes(const Group& group, const T& value, const PadOptions& options = {},
                       Group::Site site = Group::Site::current()) {
  const Group agreed =
      detail::agreed(group, "pad_across_processes", value, StructureDetail::kNames, site, "dim ", options.dim, ": ");
  return detail::with_tensors(value, detail::pad(agreed, tensors_of(value), options, site));
}

/// Returns a structure whose tensors are the concatenation of the values' along `dim`. Other leaves are the first
/// value's.
/// Throws: UsageError if there is no value, the structures differ, or a tensor is a scalar.
template <class T>
T concatenate(const std::vector<T>& values, int64_t dim = 0) {
  std::vector<detail::Tensors> tensors;
  std::vector<std::string> structures;
  for (const T& value : values) {
    tensors.push_back(tensors_of(value));
    structures.push_back(structure_of(value, StructureDetail::kNames));
  }
  const detail::Tensors joined = detail::concatenate(tensors, dim, structures);
  return detail::with_tensors(values.front(), joined);
}

/// Returns every tensor on `device`; the same tensors where they are there already. `non_blocking` lets copies from
/// pinned memory to a GPU run beside the host.
/// Blocks: for the copies unless non_blocking. Throws: what libtorch throws for the device.
template <class T>
T send_to_device(const T& value, c10::Device device, bool non_blocking = false) {
  return map_tensors(
      value, [&](const at::Tensor& tensor) { return tensor.to(tensor.options().device(device), non_blocking); });
}

/// Returns the first size of the first tensor.
/// Throws: UsageError if there is no tensor, or it is a scalar.
template <class T>
int64_t find_batch_size(const T& value) {
  return detail::find_batch_size(tensors_of(value), structure_of(value));
}

/// Returns rows [begin, end) of every tensor, as views. Bounds are Python's: negative ones count from the end, others
/// are clamped.
/// Throws: UsageError for a scalar.
template <class T>
T slice(const T& value, int64_t begin, int64_t end) {
  return map_tensors(value, [&](const at::Tensor& tensor) { return detail::slice(tensor, begin, end); });
}

}  // namespace hasten::comm
