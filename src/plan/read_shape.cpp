// Readers of model_shape.h: config.json of transformers, JSON of the fields, module trees.
#include <algorithm>
#include <cctype>
#include <functional>
#include <optional>

#include "hasten/core/error.h"
#include "hasten/core/text.h"
#include "hasten/plan/model_shape.h"

namespace hasten::plan {
namespace {

using core::Value;

constexpr const char* kInstead =
    "Give --layers, --hidden, --heads, --ffn, --vocabulary and --sequence, or a module tree.";

// Keys of one config.json, with the errors that name them.
class ConfigKeys {
 public:
  ConfigKeys(const Value& value, const std::string& source) : value_(value), source_(source) {}

  double number(const char* key) const {
    const Value* found = value_.find(key);
    if (found == nullptr || found->is_null())
      throw DataError({"plan"}, source_, source_, " has no key '", key, "', which its model_type needs. ", kInstead);
    return checked(key, *found);
  }
  double number(const char* key, double otherwise) const {
    const Value* found = value_.find(key);
    return found == nullptr || found->is_null() ? otherwise : checked(key, *found);
  }
  bool flag(const char* key, bool otherwise) const {
    const Value* found = value_.find(key);
    if (found == nullptr || found->is_null()) return otherwise;
    if (!found->is_bool())
      throw DataError({"plan"}, source_, source_, ": '", key, "' is ", found->to_json(), "; expected true or false.");
    return found->as_bool();
  }
  std::string text(const char* key) const {
    const Value* found = value_.find(key);
    return found != nullptr && found->is_string() ? found->as_string() : "";
  }

 private:
  double checked(const char* key, const Value& found) const {
    if (!found.is_number() || !(found.as_double() >= 0))
      throw DataError({"plan"}, source_, source_, ": '", key, "' is ", found.to_json(),
                      "; expected a number of at least 0.");
    return found.as_double();
  }
  const Value& value_;
  const std::string& source_;
};

ModelShape gpt2_shape(const ConfigKeys& config) {
  ModelShape shape;
  shape.layers = config.number("n_layer");
  shape.hidden = config.number("n_embd");
  shape.heads = shape.kv_heads = config.number("n_head");
  shape.head_dim = shape.hidden / shape.heads;
  shape.ffn = config.number("n_inner", 4 * shape.hidden);
  shape.vocabulary = config.number("vocab_size");
  shape.sequence = config.number("n_positions", 1024);
  shape.tied = config.flag("tie_word_embeddings", true);
  return shape;
}

ModelShape llama_shape(const ConfigKeys& config) {
  ModelShape shape;
  shape.layers = config.number("num_hidden_layers");
  shape.hidden = config.number("hidden_size");
  shape.heads = config.number("num_attention_heads");
  shape.kv_heads = config.number("num_key_value_heads", shape.heads);
  shape.head_dim = config.number("head_dim", shape.hidden / shape.heads);
  shape.ffn = config.number("intermediate_size");
  shape.vocabulary = config.number("vocab_size");
  shape.sequence = config.number("max_position_embeddings");
  shape.tied = config.flag("tie_word_embeddings", false);
  shape.gated = true;
  return shape;
}

ModelShape bert_shape(const ConfigKeys& config) {
  ModelShape shape = llama_shape(config);
  shape.tied = config.flag("tie_word_embeddings", true);
  shape.gated = shape.causal = false;
  return shape;
}

ModelShape t5_shape(const ConfigKeys& config) {
  ModelShape shape;
  const double encoder = config.number("num_layers"), decoder = config.number("num_decoder_layers", encoder);
  shape.layers = encoder + decoder;
  shape.hidden = config.number("d_model");
  shape.heads = shape.kv_heads = config.number("num_heads");
  shape.head_dim = config.number("d_kv");
  shape.ffn = config.number("d_ff");
  shape.vocabulary = config.number("vocab_size");
  shape.sequence = config.number("n_positions", 512);
  shape.tied = config.flag("tie_word_embeddings", true);
  shape.gated = config.text("feed_forward_proj").starts_with("gated");
  shape.causal = false;
  shape.attentions = shape.layers > 0 ? 1 + decoder / shape.layers : 1;
  shape.notes.push_back("Encoder and decoder count as one row of layers, over sequences of one length.");
  return shape;
}

struct ConfigReader {
  const char* model_type;
  ModelShape (*read)(const ConfigKeys&);
};
constexpr ConfigReader kConfigReaders[] = {{"gpt2", gpt2_shape},   {"llama", llama_shape}, {"mistral", llama_shape},
                                           {"qwen2", llama_shape}, {"qwen3", llama_shape}, {"bert", bert_shape},
                                           {"t5", t5_shape}};

// Models that the formulas do not describe are refused, though their keys would be there.
void refuse_others(const Value& config, const std::string& source) {
  const auto refuse = [&](const auto&... words) { throw UsageError({"plan"}, source, ": ", words...); };
  for (const char* key : {"num_local_experts", "num_experts", "n_routed_experts", "moe_num_experts"}) {
    const Value* experts = config.find(key);
    if (experts != nullptr && experts->is_number() && experts->as_double() > 1)
      refuse("experts are not modelled ('", key, "' is ", experts->to_json(), "). Plan a dense model.");
  }
  if (const Value* quantized = config.find("quantization_config"); quantized != nullptr && quantized->is_map()) {
    const Value* method = quantized->find("quant_method");
    const std::string name = method != nullptr && method->is_string() ? method->as_string() : "quantization";
    refuse(name == "fp8" ? "FP8" : name, " is not modelled ('quantization_config'). Plan the model in bf16.");
  }
  const Value* diffusers = config.find("_class_name");
  if (diffusers != nullptr || config.contains("_diffusers_version"))
    refuse("diffusion models are not modelled",
           diffusers != nullptr && diffusers->is_string() ? " ('" + diffusers->as_string() + "')" : "", ". ", kInstead);
}

bool is_table(const std::string& name, const std::string& class_name) {
  if (class_name == "Embedding") return true;
  for (const char* word : {"embed", "wte", "wpe"}) {
    if (name.find(word) != std::string::npos) return true;
  }
  return false;
}

bool is_digits(const std::string& word) {
  return !word.empty() && std::all_of(word.begin(), word.end(), [](unsigned char c) { return std::isdigit(c) != 0; });
}

// Modules of the longest list of numbered ones.
double longest_list(const ModuleTree& tree) {
  size_t most = 1;
  for (const auto& [name, module] : tree.modules()) {
    const auto numbered = std::count_if(module->children.begin(), module->children.end(),
                                        [](const auto& child) { return is_digits(child.first); });
    most = std::max(most, static_cast<size_t>(numbered));
  }
  return static_cast<double>(most);
}

}  // namespace

ModelShape shape_from_config(const Value& config, const std::string& source) {
  if (!config.is_map()) throw DataError({"plan"}, source, source, " is no map of keys; expected a config.json.");
  refuse_others(config, source);
  const Value* type = config.find("model_type");
  if (type == nullptr || !type->is_string())
    throw DataError({"plan"}, source, source, " has no key 'model_type'. ", kInstead);
  std::vector<std::string> known;
  for (const ConfigReader& reader : kConfigReaders) {
    known.emplace_back(reader.model_type);
    if (type->as_string() != reader.model_type) continue;
    ModelShape shape = reader.read(ConfigKeys(config, source));
    shape.name = source;
    check_shape(shape);
    return shape;
  }
  throw UsageError({"plan"}, source, ": the model_type '", type->as_string(), "' is not known; expected one of ",
                   join(known), ". ", kInstead);
}

ModelShape shape_from_fields(const Value& fields, const std::string& source) {
  if (!fields.is_map()) throw DataError({"plan"}, source, source, " is no map of fields; expected layers, hidden ….");
  ModelShape shape;
  shape.name = source;
  const ConfigKeys config(fields, source);
  for (const char* key : {"layers", "hidden", "heads", "vocabulary", "sequence"}) config.number(key);
  const double hidden = config.number("hidden"), heads = config.number("heads");
  shape.ffn = 4 * hidden;
  shape.kv_heads = heads;
  shape.head_dim = heads > 0 ? hidden / heads : 1;
  for (const auto& [key, value] : fields.as_map()) {
    if (key == "name" && value.is_string()) {
      shape.name = value.as_string();
      continue;
    }
    if (!value.is_bool() && !value.is_number())
      throw DataError({"plan"}, source, source, ": '", key, "' is ", value.to_json(), "; expected a number or a flag.");
    try {
      set_field(shape, key, value.is_bool() ? static_cast<double>(value.as_bool()) : value.as_double());
    } catch (const UsageError& error) {
      throw DataError({"plan"}, source, source, ": ",
                      std::string(error.what()).substr(message_prefix({"plan"}).size()));
    }
  }
  check_shape(shape);
  return shape;
}

ModelShape shape_from_tree(const ModuleTree& tree, const std::string& name) {
  ModelShape shape;
  shape.name = name;
  shape.layers = longest_list(tree);
  double left_out = 0, all = 0;
  for (const NamedTensor& parameter : tree.parameters()) {
    const double count = parameter.tensor->num_elements();
    const size_t dot = parameter.name.rfind('.');
    const auto module = tree.find(dot == std::string::npos ? "" : parameter.name.substr(0, dot));
    const bool table = is_table(parameter.name, module ? module->class_name : "");
    all += count;
    if (parameter.tensor->shape.size() == 2 && !table) {
      shape.products.push_back(
          {static_cast<double>(parameter.tensor->shape[1]), static_cast<double>(parameter.tensor->shape[0])});
      shape.hidden = std::max(shape.hidden, static_cast<double>(parameter.tensor->shape[1]));
    } else {
      shape.other_parameters += count;
      if (parameter.tensor->shape.size() > 2) left_out += count;
    }
  }
  if (shape.products.empty())
    throw DataError({"plan"}, name, name, " has no weight of two dimensions, whose products could be counted. ",
                    kInstead);
  shape.notes.push_back("No transformer's sizes are known: products are those of the weights of two dimensions.");
  if (left_out > 0)
    shape.notes.push_back(
        text(100 * left_out / all, " % of the parameters have more dimensions; their time is not counted."));
  return shape;
}

}  // namespace hasten::plan
