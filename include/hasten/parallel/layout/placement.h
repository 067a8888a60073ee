// Placement: what a rank holds of a parameter, recorded beside the parameter.
//
// The record lies with the interceptor that stands for cut or located parameters. So what only needs the record (norms,
// exchanges, files) needs nothing of tensor or pipeline parallelism.
#pragma once

#include <ATen/core/Tensor.h>
#include <torch/nn/module.h>

#include <cstdint>
#include <string>
#include <vector>

#include "hasten/comm/group/group.h"
#include "hasten/files/base/box.h"
#include "hasten/parallel/layout/cut.h"

namespace hasten::parallel {

/// A part of a parameter that a rank of a group holds.
struct Placement {
  /// Sizes of the whole parameter.
  std::vector<int64_t> sizes = {};
  Cut cut = {};
};

/// Knows the parameters that are cut over the ranks of a group. An interceptor of each of them.
class PlacedParameters {
 public:
  virtual ~PlacedParameters() = default;
  /// Returns the record of a parameter; null if it is none of these.
  virtual const Placement* placement(const at::Tensor& parameter) const noexcept = 0;
  /// The ranks that hold the parts.
  virtual const comm::Group& group() const noexcept = 0;
};

/// Returns the owner of the record of a parameter; null for a parameter that is whole on this rank.
const PlacedParameters* placed_by(const at::Tensor& parameter);

/// Returns the sizes of the whole parameter, whether it is cut or not.
std::vector<int64_t> whole_sizes(const at::Tensor& parameter);

/// Returns true if any of a module's parameters is cut.
bool has_parts(const torch::nn::Module& module);

/// Returns the whole parameter of parts, on every rank; the parameter itself, detached, if it is whole.
/// Collective: yes, for a cut one. Blocks: then. Throws: CommError.
at::Tensor gather_parameter(const at::Tensor& parameter);

/// Returns the whole tensor of values that are cut as a parameter is, such as its moments, on every rank of its cut.
/// The values themselves if the parameter is whole. Collective: yes, for a cut one. Blocks: then. Throws: CommError.
at::Tensor gather_as(const at::Tensor& parameter, const at::Tensor& part);

/// Returns this rank's part of a tensor of a parameter's whole sizes; the tensor itself if the parameter is whole.
at::Tensor part_as(const at::Tensor& parameter, const at::Tensor& whole);

/// Copies this rank's part of a whole tensor into a parameter.
void copy_part_(const at::Tensor& parameter, const at::Tensor& whole);

/// Returns this rank's part of a whole tensor, as a view or (with blocks) a copy.
at::Tensor cut_tensor(const at::Tensor& whole, const Cut& cut, int num_parts, int part);

/// Returns the whole tensor of all ranks' parts, by rank; `size` is that of the cut dimension.
at::Tensor join_parts(const std::vector<at::Tensor>& parts, const Cut& cut);

/// A box of the whole tensor, and the place of its elements in a box of the part.
struct PartBox {
  files::Box whole = {};
  files::Box in_part = {};
};

/// Returns the boxes of the whole tensor that the box `own` of a part stands for, one a block that it touches. Offsets
/// of `in_part` count from the beginning of `own`. Boxes without elements are left out.
std::vector<PartBox> part_boxes(const Placement& placement, int num_parts, int part, const files::Box& own);

/// As above, for a parameter whether it is cut or not: the box of a whole parameter is its own.
std::vector<PartBox> part_boxes(const at::Tensor& parameter, const files::Box& own);

}  // namespace hasten::parallel
