// NamedState: state by global names, shapes and boxes, never by ranks.
//
// Code that splits state provides its part in this form: data parallelism, sharding, tensor and pipeline parallelism,
// offload. Checkpoints write and read it for any number of processes. A piece is a box of a tensor whose whole shape is
// known. The ranks' pieces together cover each tensor. Equal pieces on several ranks are replicas.
#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <functional>
#include <string>
#include <vector>

#include "hasten/core/value.h"
#include "hasten/files/base/box.h"
#include "hasten/files/base/tensor_source.h"

namespace hasten::training {

/// A box of a tensor, as this rank has it.
struct Piece {
  /// The tensor's global name, dtype and whole shape.
  files::TensorInfo info = {};
  files::Box box = {};
  /// The box's elements, of any strides and device. It may be the tensor itself: a load writes into it.
  at::Tensor data = {};
  /// Number of this copy among equal pieces of several ranks; a save takes those of number 0. If it is -1, every rank
  /// has an equal copy, and a save deals them to the ranks.
  int64_t replica = 0;
};

/// This rank's pieces, and plain values that are equal on all ranks.
struct NamedState {
  std::vector<Piece> pieces = {};
  core::Value value = {};
};

/// Takes and loads the NamedState of a component; the interface of a strategy to checkpoints.
struct NamedStateful {
  std::string name = {};
  /// Collective: by the component; all ranks call alike.
  std::function<NamedState()> state = {};
  std::function<void(const NamedState&)> load_state = {};
};

}  // namespace hasten::training
