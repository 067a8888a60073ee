// ModelShape: what a prediction needs to know of a model: sizes, not weights.
//
// Transformers are described by the sizes of a layer. They come from a config.json of transformers, from JSON of these
// fields, or from a preset (model_presets.h). Other models come from a module tree. Then products are those of its
// weights of two dimensions, and no attention is counted.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "hasten/core/value.h"
#include "hasten/plan/module_tree.h"

namespace hasten::plan {

/// A weight that rows of activations are multiplied by.
struct WeightShape {
  double inputs = 0, outputs = 0;
};

struct ModelShape {
  std::string name = {};  ///< for messages and tables
  double layers = 1;      ///< 0 is a model of tables alone
  double hidden = 1;      ///< width of what passes from layer to layer
  double heads = 1;       ///< of queries
  double kv_heads = 1;    ///< of keys and values
  double head_dim = 1;    ///< width of a head
  double ffn = 1;         ///< width inside the feed-forward part
  double vocabulary = 1;  ///< rows of the tables of words
  double sequence = 1;    ///< tokens of a sample
  bool gated = false;     ///< two matrices lead into the feed-forward part (SwiGLU)
  bool tied = false;      ///< the head is the table of words
  bool causal = true;     ///< a token sees earlier ones only
  bool flash = true;      ///< fused attention, which keeps no scores
  double attentions = 1;  ///< attention parts a layer: 1.5 where every second layer has cross-attention too
  /// For models that are no transformers: all weights of two dimensions. Empty for transformers.
  std::vector<WeightShape> products = {};
  double other_parameters = 0;          ///< beside those of `products`
  std::vector<std::string> notes = {};  ///< what was left out, as sentences

  bool is_transformer() const noexcept { return products.empty(); }
  /// Returns the columns of queries, keys and values together.
  double qkv() const noexcept { return (heads + 2 * kv_heads) * head_dim * attentions; }
  /// Returns the columns of what attention gives.
  double attention_width() const noexcept { return heads * head_dim * attentions; }
  double gates() const noexcept { return gated ? 2 : 1; }
  /// Returns the parameters of one layer's matrices; of a mean layer for other models.
  double layer_parameters() const;
  /// Returns the parameters of all layers and tables. Norms and biases are not counted.
  double parameters() const;
  /// Returns the parameters on a rank of the pipeline's largest stage, cut `tp` ways. Tables are in one stage at most.
  double stage_parameters(int pp, int tp) const;
  /// Returns the floating-point operations that a step over `tokens` tokens needs, forward and backward, without
  /// recompute. A mask halves no count, as in the field's MFU.
  double step_flops(double tokens) const;
};

/// Reads a config.json of transformers: gpt2, llama, mistral, qwen2, qwen3, bert and t5 by their keys. `source` names
/// the file in messages. Throws: DataError naming a key that is missing or of another kind; UsageError for another
/// model_type, with the fields to give instead; for experts, FP8 and diffusion models, by name.
ModelShape shape_from_config(const core::Value& config, const std::string& source);

/// Reads a map of ModelShape's fields. kv_heads defaults to heads, head_dim to hidden / heads, ffn to 4 hidden.
/// Throws: DataError for a key that is missing or no field, with the nearest one.
ModelShape shape_from_fields(const core::Value& fields, const std::string& source);

/// Counts the weights of two dimensions of any model. Layers are the largest list of numbered modules. Tables of
/// embeddings are looked up and not multiplied.
/// Throws: DataError for a tree without parameters.
ModelShape shape_from_tree(const ModuleTree& tree, const std::string& name);

/// Sets a field by its name, "hidden" and so on, as a command line gives it. Throws: UsageError for no field or a value
/// that does not fit.
void set_field(ModelShape& shape, const std::string& field, double value);

/// Throws: UsageError for a size below 1 (layers: 0), not finite or above 1e9, and for heads that kv_heads do not
/// divide.
void check_shape(const ModelShape& shape);

}  // namespace hasten::plan
