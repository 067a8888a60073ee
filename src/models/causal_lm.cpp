// See causal_lm.h.
#include "hasten/models/causal_lm.h"

#include <ATen/core/grad_mode.h>

#include <algorithm>
#include <filesystem>
#include <optional>

#include "hasten/core/error.h"
#include "hasten/core/file.h"
#include "hasten/core/sentence.h"
#include "hasten/models/gpt2.h"
#include "hasten/models/gptj.h"
#include "hasten/models/llama.h"
#include "hasten/offload/units/set_tensor.h"

namespace hasten::models {
namespace {

core::Value read_config(const std::string& folder) {
  const std::string path = (std::filesystem::path(folder) / "config.json").string();
  const auto text = core::read_file(path);
  if (!text) {
    throw UsageError(Origin{"models"}, folder,
                     " has no config.json. Expected a folder that transformers' save_pretrained wrote.");
  }
  return core::Value::parse_json(*text, path);
}

std::string model_type(const core::Value& config) {
  const auto* type = config.find("model_type");
  return type == nullptr || !type->is_string() ? "" : type->as_string();
}

// The dtype of the file's weights: of its first floating-point matrix.
std::optional<at::ScalarType> file_dtype(const files::TensorSource& source) {
  for (const std::string& name : source.names()) {
    const auto& info = source.info(name);
    if (info.shape.size() > 1 && files::is_floating_point(info.dtype)) return offload::scalar_type_of(info.dtype);
  }
  return std::nullopt;
}

bool any_begins_with(const files::TensorSource& source, const std::string& prefix) {
  const auto& names = source.names();
  return std::any_of(names.begin(), names.end(), [&](const std::string& name) { return name.starts_with(prefix); });
}

}  // namespace

CausalLmPtr make_causal_lm(const core::Value& config) {
  const std::string type = model_type(config);
  if (type == "gpt2") return std::make_shared<Gpt2Impl>(Gpt2Config::from_json(config));
  if (type == "gptj") return std::make_shared<GptjImpl>(GptjConfig::from_json(config));
  if (type == "llama" || type == "mistral" || type == "qwen2")
    return std::make_shared<LlamaImpl>(LlamaConfig::from_json(config));
  const std::vector<std::string> known{"gpt2", "gptj", "llama", "mistral", "qwen2"};
  throw UsageError(Origin{"models"}, "model_type '", type, "' is not supported", guess_end(type, known), " Expected ",
                   join(known), ".");
}

offload::DispatchOptions causal_lm_load_options(const core::Value& config, const files::TensorSource& source,
                                                offload::DispatchOptions options) {
  const bool is_gpt2 = model_type(config) == "gpt2", is_gpt = is_gpt2 || model_type(config) == "gptj";
  if (!options.dtype) options.dtype = file_dtype(source);
  const std::string prefix = is_gpt ? "transformer." : "model.";
  // A base model saved by itself lacks the prefix.
  if (!any_begins_with(source, prefix)) options.rename.emplace_back("^(?!lm_head\\.)", prefix);
  // Masks that older files hold as buffers; they are computed here.
  if (is_gpt) options.rename.emplace_back("^transformer\\.h\\.[0-9]+\\.attn\\.(masked_bias|bias)$", "");
  if (is_gpt2) options.transpose.emplace_back("\\.(c_attn|c_proj|c_fc)\\.weight$");
  return options;
}

CausalLm CausalLm::from_folder(const std::string& folder, const offload::DispatchOptions& given) {
  auto config = read_config(folder);
  const auto source = files::Catalog::open(folder);
  auto options = causal_lm_load_options(config, source, given);
  auto module = offload::empty_weights([&] { return make_causal_lm(config); });
  module->eval();
  if (options.no_split_module_classes.empty()) options.no_split_module_classes = module->no_split_module_classes();
  return {std::move(config), offload::load_checkpoint_and_dispatch(std::move(module), source, options)};
}

at::Tensor CausalLm::operator()(const at::Tensor& ids, const at::Tensor& attention_mask, KvCache* cache) const {
  return dispatched_(ids, attention_mask, cache);
}

}  // namespace hasten::models
