// Whole pickled modules and state_dicts as tensor sources; see python_file.h.
#include <algorithm>
#include <set>

#include "files/base/named_source.h"
#include "files/base/origin.h"
#include "files/python/tensor_files.h"
#include "hasten/core/sentence.h"
#include "hasten/files/python/python_file.h"

namespace hasten::files {
namespace {

using Kind = PythonValue::Kind;
constexpr int kMaxModuleDepth = 500;

/// Returns the module inside a wrapper that adds a prefix to all names, or the module itself.
const PythonValue& unwrapped(const PythonValue& module, int depth = 0) {
  const PythonValue* modules = module.is_object() ? module.as_object().attribute("_modules") : nullptr;
  if (modules == nullptr || modules->size() != 1 || depth > 16) return module;
  const std::string& name = module.as_object().name;
  const bool parallel =
      name == "DistributedDataParallel" || name == "DataParallel" || name == "FullyShardedDataParallel";
  const PythonValue* inner = parallel                    ? modules->find("module")
                             : name == "OptimizedModule" ? modules->find("_orig_mod")
                                                         : nullptr;
  return inner == nullptr || !is_module(*inner) ? module : unwrapped(*inner, depth + 1);
}

/// Returns the version that a class of torch writes to _metadata: 2 for batch and instance norms, 1 for all others.
int64_t version_of(const PythonValue::Object& object) {
  const bool norm =
      object.name.find("BatchNorm") != std::string::npos || object.name.find("InstanceNorm") != std::string::npos;
  return norm && object.module.starts_with("torch.") ? 2 : 1;
}

std::set<std::string> names_in(const PythonValue* set) {
  std::set<std::string> names;
  if (set == nullptr || !set->is_sequence()) return names;
  for (const PythonValue& name : set->as_items()) {
    if (name.is_string()) names.insert(name.as_string());
  }
  return names;
}

void add_tensors(const PythonValue* from, const std::string& prefix, const std::set<std::string>& left_out,
                 PythonValue::Pairs& out) {
  if (from == nullptr || !from->is_mapping()) return;
  for (const auto& [key, value] : from->as_pairs()) {
    if (!key.is_string() || !value.is_tensor() || left_out.contains(key.as_string())) continue;
    PythonTensor tensor = value.as_tensor();
    tensor.parameter = tensor.requires_grad = false;  // a state_dict holds detached tensors
    out.emplace_back(prefix + key.as_string(), std::move(tensor));
  }
}

void add_module(const PythonValue& wrapped, const std::string& prefix, int depth, PythonValue::Pairs& out,
                PythonValue::Pairs& metadata) {
  if (depth > kMaxModuleDepth)
    throw DataError(kOrigin, "", "a pickled module nests more than ", kMaxModuleDepth, " levels deep.");
  const PythonValue& module = unwrapped(wrapped);
  if (!is_module(module)) return;
  const PythonValue::Object& object = module.as_object();
  PythonValue version = PythonValue::dict({{PythonValue("version"), PythonValue(version_of(object))}});
  metadata.emplace_back(prefix.empty() ? prefix : prefix.substr(0, prefix.size() - 1), std::move(version));
  add_tensors(object.attribute("_parameters"), prefix, {}, out);
  add_tensors(object.attribute("_buffers"), prefix, names_in(object.attribute("_non_persistent_buffers_set")), out);
  const PythonValue* children = object.attribute("_modules");
  for (const auto& [name, child] : children->as_pairs()) {
    if (name.is_string()) add_module(child, prefix + name.as_string() + ".", depth + 1, out, metadata);
  }
}

// ---- names ----------------------------------------------------------------------------------------------------------

using NamedTensors = std::vector<std::pair<std::string, PythonTensor>>;

bool holds_tensors(const PythonValue& value) {
  return value.is_mapping() && std::any_of(value.as_pairs().begin(), value.as_pairs().end(),
                                           [](const auto& pair) { return pair.second.is_tensor(); });
}

std::string key_name(const PythonValue& key) {
  return key.is_string() ? key.as_string() : key.is_int() ? key.int_text() : key.type_name();
}

void flatten(const PythonValue& value, const std::string& name, int depth, NamedTensors& out) {
  if (depth > kMaxModuleDepth)
    throw DataError(kOrigin, "", "a Python value nests more than ", kMaxModuleDepth, " levels deep.");
  if (value.is_tensor()) {
    if (value.as_tensor().storage != nullptr || value.as_tensor().is_sparse())
      out.emplace_back(name, value.as_tensor());
    return;
  }
  const std::string prefix = name.empty() ? "" : name + ".";
  if (is_module(value)) {
    flatten(state_dict_of_module(value), name, depth + 1, out);
  } else if (value.is_mapping()) {
    for (const auto& [key, child] : value.as_pairs()) flatten(child, prefix + key_name(key), depth + 1, out);
  } else if (value.is_sequence()) {
    const auto& items = value.as_items();
    for (size_t i = 0; i < items.size(); ++i) flatten(items[i], prefix + std::to_string(i), depth + 1, out);
  }
}

class PythonSource : public NamedSource {
 public:
  PythonSource(std::string path, NamedTensors tensors) : NamedSource(std::move(path)) {
    for (auto& [name, tensor] : tensors) {
      add({name, tensor.dtype, tensor.shape});
      tensors_.push_back(std::move(tensor));
    }
  }
  std::string_view form() const override { return "torch.save"; }
  using NamedSource::remark;

  std::optional<TensorLocation> location(std::string_view name) const override {
    return plain_location(tensors_[index_of(name)]);
  }

 protected:
  void read_tensor(size_t index, const Box& box, void* target) const override {
    try {
      files_.read(tensors_[index], box, target);
    } catch (const DataError& error) {
      if (!error.path().empty()) throw;
      fail_data(path(), "'", names()[index], "': ", inner_words(error.what()), ".");
    }
  }

 private:
  std::vector<PythonTensor> tensors_;
  TensorFiles files_;
};

/// Returns the value that holds the weights, and whether it had to be chosen.
const PythonValue& weights_in(const PythonValue& value, std::string& remark) {
  if (holds_tensors(value) || !value.is_mapping()) return value;
  const PythonValue* chosen = nullptr;
  for (const char* key : {"model", "state_dict", "model_state_dict", "module"}) {
    const PythonValue* found = value.find(key);
    if (found == nullptr || (!holds_tensors(*found) && !is_module(*found))) continue;
    if (chosen != nullptr) return value;
    chosen = found;
    remark = text("the tensors under '", key, "' are read");
  }
  if (chosen == nullptr && value.size() == 1 && holds_tensors(value.as_pairs().front().second))
    return value.as_pairs().front().second;
  return chosen == nullptr ? value : *chosen;
}

std::string strip_prefixes(NamedTensors& tensors) {
  std::string stripped;
  for (bool again = true; again && !tensors.empty();) {
    again = false;
    for (const std::string prefix : {"module.", "_orig_mod."}) {
      if (!std::all_of(tensors.begin(), tensors.end(), [&](const auto& one) { return one.first.starts_with(prefix); }))
        continue;
      for (auto& [name, tensor] : tensors) name.erase(0, prefix.size());
      stripped += prefix;
      again = true;
    }
  }
  return stripped;
}

}  // namespace

bool is_module(const PythonValue& value) noexcept {
  if (!value.is_object()) return false;
  const PythonValue::Object& object = value.as_object();
  const PythonValue *modules = object.attribute("_modules"), *parameters = object.attribute("_parameters");
  return modules != nullptr && modules->is_mapping() && parameters != nullptr && parameters->is_mapping();
}

PythonValue state_dict_of_module(const PythonValue& module) {
  if (!is_module(module)) throw DataError(kOrigin, "", "a ", module.type_name(), " is no pickled torch.nn.Module.");
  PythonValue::Pairs tensors, metadata;
  add_module(module, "", 0, tensors, metadata);
  PythonValue state = PythonValue::ordered_dict(std::move(tensors));
  state.set_attributes(PythonValue::dict({{PythonValue("_metadata"), PythonValue::ordered_dict(std::move(metadata))}}));
  return state;
}

TensorSourcePtr python_source(const PythonValue& value, const std::string& path, const PythonSourceOptions& options) {
  std::string remark;
  NamedTensors tensors;
  flatten(options.key.empty() ? weights_in(value, remark) : value.at(options.key), "", 0, tensors);
  const std::string stripped = options.strip_prefix ? strip_prefixes(tensors) : "";
  auto source = std::make_shared<PythonSource>(path, std::move(tensors));
  if (!remark.empty()) source->remark(text("in '", path, "' ", remark, "."));
  if (!stripped.empty()) source->remark(text("the prefix '", stripped, "' of all names in '", path, "' is taken off."));
  return source;
}

TensorSourcePtr open_python_source(const std::string& path, const PythonSourceOptions& options) {
  return python_source(PythonFile::open(path).value(), path, options);
}

}  // namespace hasten::files
