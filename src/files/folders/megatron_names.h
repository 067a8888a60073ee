// Names of Megatron-LM's tensors: of all its versions as one, and as those of transformers. Pure; private to the room.
//
// Names are Megatron-Core's: decoder.layers.0.self_attention.linear_qkv.weight. Those of Megatron-LM before it, and of
// layers that have a norm fused in, are turned into these.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "hasten/core/value.h"
#include "hasten/files/base/tensor_source.h"

namespace hasten::files {

/// Returns Megatron-Core's name; nothing for what is no weight (tables of rotary embeddings, states of fp8).
std::optional<std::string> megatron_name(std::string name);

/// "decoder.layers.3.mlp.linear_fc1.weight" in its parts.
struct MegatronLayer {
  std::string stack = {};
  int64_t number = 0;
  std::string rest = {};
};
/// Returns nothing for a tensor outside of layers.
std::optional<MegatronLayer> megatron_layer(std::string_view name);

/// How tensor ranks hold a tensor: its rows or columns one rank after the other, in each of `blocks` blocks.
struct MegatronCut {
  /// -1: every rank has the whole tensor.
  int dim = -1;
  int64_t blocks = 1;
};
MegatronCut megatron_cut(std::string_view name, bool is_gated, int64_t version);

/// Returns true if the arguments say that the first linear layer of an mlp is two, a gate's and its factor's.
bool is_gated(const core::Value& arguments);

/// Rows of a tensor of Megatron's that are rows of a tensor of transformers'.
struct MegatronRows {
  std::string name = {};
  int64_t from = 0, count = 0, to = 0;
};
/// A tensor of transformers', before it is transposed.
struct MegatronTensor {
  std::string name = {};
  std::vector<MegatronRows> rows = {};
  bool is_transposed = false;
  double scale = 1;
};
struct MegatronModel {
  std::string type = {};
  std::vector<MegatronTensor> tensors = {};
  std::vector<std::string> remarks = {};
};

/// Returns transformers' model and the places of its tensors in Megatron's. `version`: checkpoint_version.
/// `is_transposed`: linear layers of GPT-2 are [in, out], as in transformers' files.
/// Throws: UsageError for a model without a counterpart, or tensors without one; DataError for arguments that are
/// missing or do not go with the shapes.
MegatronModel megatron_model(const TensorSource& own, const core::Value& arguments, int64_t version,
                             bool is_transposed);

/// Throws: UsageError, with the nearest name, for an argument that no reader uses.
void require_known_arguments(const core::Value& arguments);

}  // namespace hasten::files
