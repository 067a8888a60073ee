// See model_shape.h. Readers of the three forms are in read_shape.cpp.
#include "hasten/plan/model_shape.h"

#include <array>
#include <cmath>
#include <string_view>

#include "hasten/core/error.h"
#include "hasten/core/sentence.h"
#include "hasten/core/text.h"

namespace hasten::plan {
namespace {

struct Field {
  std::string_view name;
  double ModelShape::*member;
  double least;
};
constexpr std::array<Field, 9> kFields = {{{"layers", &ModelShape::layers, 0},
                                           {"hidden", &ModelShape::hidden, 1},
                                           {"heads", &ModelShape::heads, 1},
                                           {"kv_heads", &ModelShape::kv_heads, 1},
                                           {"head_dim", &ModelShape::head_dim, 1},
                                           {"ffn", &ModelShape::ffn, 1},
                                           {"vocabulary", &ModelShape::vocabulary, 1},
                                           {"sequence", &ModelShape::sequence, 1},
                                           {"attentions", &ModelShape::attentions, 1}}};

struct Flag {
  std::string_view name;
  bool ModelShape::*member;
};
constexpr std::array<Flag, 4> kFlags = {{{"gated", &ModelShape::gated},
                                         {"tied", &ModelShape::tied},
                                         {"causal", &ModelShape::causal},
                                         {"flash", &ModelShape::flash}}};

constexpr double kLargest = 1e9;

}  // namespace

double ModelShape::layer_parameters() const {
  if (is_transformer()) return hidden * qkv() + attention_width() * hidden + (gates() + 1) * hidden * ffn;
  double sum = 0;
  for (const WeightShape& weight : products) sum += weight.inputs * weight.outputs;
  return layers > 0 ? sum / layers : 0;
}

double ModelShape::parameters() const {
  return stage_parameters(1, 1);
}

double ModelShape::stage_parameters(int pp, int tp) const {
  // The first stage has one table and the last one the other, so that a stage has one of them.
  const double tables = is_transformer() ? vocabulary * hidden * (tied || pp > 1 ? 1 : 2) : other_parameters;
  return layers / pp * layer_parameters() / tp + tables / tp;
}

double ModelShape::step_flops(double tokens) const {
  if (!is_transformer()) return 6 * tokens * layers * layer_parameters();
  const double products = layers * layer_parameters() + vocabulary * hidden;
  return tokens * (6 * products + 12 * layers * sequence * attention_width());
}

void set_field(ModelShape& shape, const std::string& field, double value) {
  std::vector<std::string> known;
  for (const Field& candidate : kFields) {
    known.emplace_back(candidate.name);
    if (field != candidate.name) continue;
    if (!std::isfinite(value) || value < candidate.least || value > kLargest)
      throw UsageError({"plan"}, field, " is ", value, "; expected a number between ", candidate.least, " and ",
                       kLargest, ".");
    shape.*candidate.member = value;
    return;
  }
  for (const Flag& candidate : kFlags) {
    known.emplace_back(candidate.name);
    if (field != candidate.name) continue;
    if (value != 0 && value != 1) throw UsageError({"plan"}, field, " is ", value, "; expected true or false.");
    shape.*candidate.member = value != 0;
    return;
  }
  throw UsageError({"plan"}, "a model has no field '", field, "'; expected one of ", join(known),
                   guess_end(field, known));
}

void check_shape(const ModelShape& shape) {
  ModelShape checked = shape;
  for (const Field& field : kFields) set_field(checked, std::string(field.name), shape.*field.member);
  if (std::fmod(shape.heads, shape.kv_heads) != 0)
    throw UsageError({"plan"}, "heads ", shape.heads, " are no multiple of kv_heads ", shape.kv_heads,
                     "; each head of keys serves as many heads of queries as the others.");
}

}  // namespace hasten::plan
