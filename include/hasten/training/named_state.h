// NamedState: state by global names, shapes and boxes, never by ranks.
//
// What splits state (data parallelism, sharding, tensor and pipeline parallelism, offload) hands over its part in this
// form, and checkpoints write and read it for any number of processes. A piece is a box of a tensor whose whole shape is
// known; the ranks' pieces together cover each tensor. Equal pieces on several ranks are replicas.
#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <functional>
#include <string>
#include <vector>

#include "hasten/core/value.h"
#include "hasten/files/box.h"
#include "hasten/files/tensor_source.h"

namespace hasten::training {

/// A box of a tensor, as this rank has it.
struct Piece {
  /// The tensor's global name, dtype and whole shape.
  files::TensorInfo info = {};
  files::Box box = {};
  /// The box's elements, of any strides and device. It may be the live tensor: a load writes into it.
  at::Tensor data = {};
  /// Number of this copy among equal pieces of several ranks; a save takes those of number 0. -1: every rank has an equal
  /// copy, and a save deals them to the ranks.
  int64_t replica = 0;
};

/// This rank's pieces, and plain values that are equal on all ranks.
struct NamedState {
  std::vector<Piece> pieces = {};
  core::Value value = {};
};

/// Takes and loads the NamedState of one component; what a strategy gives to checkpoints.
struct NamedStateful {
  std::string name = {};
  /// Collective: as the component says; all ranks call alike.
  std::function<NamedState()> state = {};
  std::function<void(const NamedState&)> load_state = {};
};

}  // namespace hasten::training
