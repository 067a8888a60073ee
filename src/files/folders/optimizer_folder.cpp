// Names for numbers, and the two forms that are written; see optimizer_folder.h.
#include "hasten/files/folders/optimizer_folder.h"

#include <algorithm>
#include <cstring>
#include <filesystem>
#include <map>
#include <unordered_map>

#include "files/base/named_source.h"
#include "files/base/origin.h"
#include "hasten/files/folders/dcp_folder.h"
#include "hasten/files/folders/deepspeed_folder.h"
#include "hasten/files/folders/megatron_folder.h"
#include "hasten/files/python/python_file.h"
#include "hasten/files/safetensors/weight_writer.h"

namespace hasten::files {
namespace {

namespace fs = std::filesystem;
using core::Value;

/// Returns a tensor of a source, whose values are read when they are written.
PythonValue lazy_tensor(TensorSourcePtr source, const std::string& name) {
  const TensorInfo& info = source->info(name);
  auto storage = std::make_shared<PythonStorage>();
  storage->dtype = info.dtype;
  storage->bytes = bytes_of(info);
  storage->read = [source, name](uint64_t begin, uint64_t size, void* target) {
    const TensorInfo& own = source->info(name);
    const auto item = static_cast<int64_t>(element_bytes(own.dtype));
    char* to = static_cast<char*>(target);
    for (const Box& box :
         boxes_of_range(own.shape, static_cast<int64_t>(begin) / item, static_cast<int64_t>(begin + size) / item)) {
      source->read(name, box, to);
      to += numel_of(box) * item;
    }
  };
  PythonTensor tensor{.storage = std::move(storage), .dtype = info.dtype, .shape = info.shape};
  tensor.stride = contiguous_strides(info.shape);
  return tensor;
}

PythonValue scalar_tensor(double number) {
  const auto owner = std::make_shared<const float>(static_cast<float>(number));
  return tensor_value(Dtype::kFloat32, {}, owner.get(), owner);
}

PythonValue plain_value(const Value& value, const std::string& name = {}) {
  switch (value.kind()) {
    case Value::Kind::kNull:
      return {};
    case Value::Kind::kBool:
      return value.as_bool();
    case Value::Kind::kInt:
      return value.as_int();
    case Value::Kind::kDouble:
      return value.as_double();
    case Value::Kind::kString:
      return value.as_string();
    case Value::Kind::kList: {
      PythonValue::Items items;
      for (const Value& each : value.as_list()) items.push_back(plain_value(each));
      return name == "betas" ? PythonValue::tuple(std::move(items)) : PythonValue::list(std::move(items));
    }
    case Value::Kind::kMap: {
      PythonValue::Pairs pairs;
      for (const auto& [key, each] : value.as_map()) pairs.emplace_back(key, plain_value(each, key));
      return PythonValue::dict(std::move(pairs));
    }
  }
  return {};
}

Value plain_option(const PythonValue& value) {
  if (value.is_bool()) return value.as_bool();
  if (value.kind() == PythonValue::Kind::kInt) return value.as_int();
  if (value.kind() == PythonValue::Kind::kFloat) return value.as_double();
  if (value.is_string()) return value.as_string();
  if (value.is_tensor() && numel_of(value.as_tensor().shape) == 1) return value.as_double();
  if (value.is_sequence()) {
    Value list = Value::list();
    for (const PythonValue& each : value.as_items()) list.push_back(plain_option(each));
    return list;
  }
  return {};
}

[[noreturn]] void other_form(const std::string& what) {
  throw DataError(kOrigin, "", "an optimizer's state: ", what, "; expected {\"state\": …, \"param_groups\": …}.");
}

// ---- hasten's own.

/// Returns the value of a slot: {"$tensor": path} means a tensor, a map of numbers for LBFGS's lists.
PythonValue slot_of(const Value& skeleton, const TensorSourcePtr& source, const std::string& prefix) {
  if (const Value* path = skeleton.find("$tensor"); path != nullptr && skeleton.size() == 1)
    return lazy_tensor(source, prefix + path->as_string());
  if (!skeleton.is_map()) return plain_value(skeleton);
  PythonValue::Items items;
  for (const auto& [number, each] : skeleton.as_map()) items.push_back(slot_of(each, source, prefix));
  return PythonValue::list(std::move(items));
}

bool has_tensors(const Value& skeleton, const TensorSource& source, const std::string& prefix) {
  if (const Value* path = skeleton.find("$tensor")) return source.contains(prefix + path->as_string());
  if (!skeleton.is_map()) return true;
  return std::all_of(skeleton.as_map().begin(), skeleton.as_map().end(),
                     [&](const auto& each) { return has_tensors(each.second, source, prefix); });
}

PythonValue group_of(const std::string& type, const Value& group) {
  PythonValue::Pairs pairs;
  const Value& options = group.at("options");
  for (const auto& [name, value] : options.as_map()) pairs.emplace_back(name, plain_value(value, name));
  const auto add = [&](const char* name, bool value) {
    if (!options.contains(name)) pairs.emplace_back(name, value);
  };
  if (type != "LBFGS") add("maximize", false);
  if (type == "Adam" || type == "AdamW") add("decoupled_weight_decay", type == "AdamW");
  pairs.emplace_back("params", plain_value(group.at("params")));
  return PythonValue::dict(std::move(pairs));
}

std::optional<PythonValue> from_hasten(const std::string& folder, size_t index) {
  const Manifest manifest = read_manifest(folder);
  const Value* optimizers = manifest.parts.find("optimizers");
  if (optimizers == nullptr || index >= optimizers->size()) return std::nullopt;
  const auto& [name, part] = optimizers->as_map()[index];
  const std::string type = part.at("type").as_string();
  if (type == "archive") {
    throw UsageError(kOrigin, "optimizer ", name, " of '", folder,
                     "' is kept as libtorch's archive, which only libtorch reads. Convert with --only model.");
  }
  const TensorSourcePtr source = open_hasten_folder(folder);
  const Value* all = manifest.parts.find("optimizer_states");
  const Value* states = all == nullptr ? nullptr : all->find(name);
  PythonValue::Pairs state;
  PythonValue::Items groups;
  for (const Value& group : part.at("groups").as_list()) {
    groups.push_back(group_of(type, group));
    if (states == nullptr) continue;
    for (const Value& each : group.at("params").as_list()) {
      const std::string prefix = text("optimizer.", name, '.', each.as_string(), '.');
      const Value* skeleton = states->at("other").find(each.as_string());
      if (skeleton == nullptr && !states->at("default").is_null() &&
          has_tensors(states->at("default"), *source, prefix))
        skeleton = &states->at("default");
      if (skeleton == nullptr) continue;
      PythonValue::Pairs slots;
      for (const auto& [slot, value] : skeleton->as_map()) {
        const bool is_step = slot == "step" && value.is_number() && type != "LBFGS";
        slots.emplace_back(slot, is_step ? scalar_tensor(value.as_double()) : slot_of(value, source, prefix));
      }
      state.emplace_back(each.as_string(), PythonValue::dict(std::move(slots)));
    }
  }
  return PythonValue::dict(
      {{"state", PythonValue::dict(std::move(state))}, {"param_groups", PythonValue::list(std::move(groups))}});
}

// ---- Python's files.

void check_shapes(const PythonValue& slots, const std::string& name, const TensorSource& weights) {
  if (!weights.contains(name)) return;  // a tied weight is stored under its other name
  for (const auto& [slot, value] : slots.as_pairs()) {
    if (!value.is_tensor() || value.as_tensor().shape.empty() || value.as_tensor().shape == weights.info(name).shape)
      continue;
    throw UsageError(kOrigin, slot.as_string(), " of parameter '", name, "' has the shape [",
                     join(value.as_tensor().shape), "], the weight [", join(weights.info(name).shape),
                     "], so the optimizer is of another model. Convert with --only model.");
  }
}

/// Returns the names that PyTorch's optimizers write beside the numbers when they were made of named parameters.
const PythonValue* names_in(const PythonValue& group) {
  const PythonValue* names = group.find("param_names");
  return names != nullptr && names->is_sequence() && names->size() == group.at("params").size() ? names : nullptr;
}

bool is_numbered(const PythonValue& group) {
  const PythonValue& params = group.at("params");
  return params.size() > 0 && !params[0].is_string() && names_in(group) == nullptr;
}

/// The numbers follow the optimizer's groups, which no order of the weights gives: files sort them, groups reorder
/// them.
[[noreturn]] void numbers_only(const std::string& file) {
  throw UsageError(kOrigin, "'", file,
                   "' numbers the parameters of its optimizer and has no param_names, so only the program that made it "
                   "has their order. Convert with --only model, or call load_state on the folder in the program and "
                   "save_state, which writes the names.");
}

PythonValue named(const PythonValue& value, const std::string& file, const TensorSource& weights) {
  const PythonValue *states = value.find("state"), *groups = value.find("param_groups");
  if (states == nullptr || groups == nullptr || !states->is_mapping() || !groups->is_sequence())
    other_form(text("a ", value.type_name()));
  if (std::any_of(groups->as_items().begin(), groups->as_items().end(), is_numbered)) numbers_only(file);
  std::unordered_map<std::string, std::string> name_of;
  PythonValue::Items out_groups;
  for (const PythonValue& group : groups->as_items()) {
    PythonValue out = PythonValue::dict();
    for (const auto& [key, option] : group.as_pairs()) {
      if (!key.is_string() || (key.as_string() != "params" && key.as_string() != "param_names")) out.set(key, option);
    }
    PythonValue::Items params;
    const PythonValue* own_names = names_in(group);
    for (size_t i = 0; i < group.at("params").size(); ++i) {
      const PythonValue& each = group.at("params")[i];
      const std::string key = each.is_string() ? each.as_string() : each.int_text();
      const std::string name = each.is_string() ? key : (*own_names)[i].as_string();
      name_of.emplace(key, name);
      params.emplace_back(name);
    }
    out.set("params", PythonValue::list(std::move(params)));
    out_groups.push_back(std::move(out));
  }
  PythonValue::Pairs state;
  for (const auto& [key, slots] : states->as_pairs()) {
    const auto name = name_of.find(key.is_string() ? key.as_string() : key.int_text());
    if (name == name_of.end()) other_form("it has state of a parameter that is in no group");
    check_shapes(slots, name->second, weights);
    state.emplace_back(name->second, slots);
  }
  return PythonValue::dict(
      {{"state", PythonValue::dict(std::move(state))}, {"param_groups", PythonValue::list(std::move(out_groups))}});
}

std::optional<PythonValue> from_deepspeed(const std::string& path, const std::string& tag) {
  const DeepSpeedFolder saved = open_deepspeed_folder(path, {.tag = tag});
  if (saved.moments == nullptr) return std::nullopt;
  std::map<std::string, PythonValue> slots;
  for (const std::string& name : saved.moments->names()) {
    const size_t dot = name.rfind('.');
    auto& own = slots.try_emplace(name.substr(0, dot), PythonValue::dict()).first->second;
    own.set(name.substr(dot + 1), lazy_tensor(saved.moments, name));
  }
  PythonValue::Pairs state;
  PythonValue::Items groups;
  for (size_t g = 0; g < saved.groups.size(); ++g) {
    PythonValue out = PythonValue::dict();
    if (saved.param_groups.is_sequence() && g < saved.param_groups.size()) {
      for (const auto& [key, option] : saved.param_groups[g].as_pairs()) {
        const bool plain = option.is_number() || option.is_bool() || option.is_sequence();
        if (key.is_string() && key.as_string() != "params" && plain) out.set(key, option);
      }
    }
    PythonValue::Items params;
    for (const std::string& name : saved.groups[g]) {
      params.emplace_back(name);
      const auto found = slots.find(name);
      if (found == slots.end()) continue;
      if (!found->second.contains("step")) found->second.set("step", scalar_tensor(static_cast<double>(saved.step)));
      state.emplace_back(name, found->second);
    }
    out.set("params", PythonValue::list(std::move(params)));
    groups.push_back(std::move(out));
  }
  return PythonValue::dict(
      {{"state", PythonValue::dict(std::move(state))}, {"param_groups", PythonValue::list(std::move(groups))}});
}

// A weight that the names of the folder call otherwise than the source, or that has another layout there.
MegatronNames names_like(const TensorSource& weights) {
  if (weights.contains("embedding.word_embeddings.weight")) return MegatronNames::kMegatron;
  const std::string packed = "transformer.h.0.attn.c_attn.weight";
  const bool is_turned = weights.contains(packed) && weights.info(packed).shape[0] < weights.info(packed).shape[1];
  return is_turned ? MegatronNames::kTransformers : MegatronNames::kModel;
}

// Megatron's Adam is decoupled unless its arguments say otherwise; its own options have no counterpart.
PythonValue megatron_group(const MegatronGroup& group, const MegatronFolder& folder) {
  PythonValue out = PythonValue::dict();
  for (const char* const name : {"lr", "betas", "eps", "weight_decay", "momentum", "dampening", "nesterov"}) {
    if (const PythonValue* const option = group.options.find(name)) out.set(name, *option);
  }
  out.set("maximize", false);
  if (folder.optimizer.slots.contains("exp_avg")) {
    const Value* const decoupled = folder.arguments.find("decoupled_weight_decay");
    out.set("amsgrad", false);
    out.set("decoupled_weight_decay", decoupled == nullptr || !decoupled->is_bool() || decoupled->as_bool());
  }
  PythonValue::Items params;
  for (const std::string& name : group.parameters) params.emplace_back(name);
  out.set("params", PythonValue::list(std::move(params)));
  return out;
}

std::optional<PythonValue> from_megatron(const std::string& path, const std::string& tag, const TensorSource& weights) {
  const MegatronFolder folder =
      open_megatron_folder(path, {.tag = tag, .names = names_like(weights), .optimizer = true});
  if (folder.optimizer.slots.empty()) return std::nullopt;
  PythonValue::Pairs state;
  PythonValue::Items groups;
  for (const MegatronGroup& group : folder.optimizer.groups) {
    groups.push_back(megatron_group(group, folder));
    for (const std::string& name : group.parameters) {
      PythonValue own = PythonValue::dict();
      for (const auto& [slot, source] : folder.optimizer.slots) {
        if (source->contains(name)) own.set(slot, lazy_tensor(source, name));
      }
      if (own.size() == 0) continue;
      own.set("step", scalar_tensor(static_cast<double>(folder.optimizer.step)));
      check_shapes(own, name, weights);
      state.emplace_back(name, std::move(own));
    }
  }
  return PythonValue::dict(
      {{"state", PythonValue::dict(std::move(state))}, {"param_groups", PythonValue::list(std::move(groups))}});
}

/// Tensors of a value under names, for writing.
class SlotSource : public NamedSource {
 public:
  SlotSource() : NamedSource("the optimizers") {}
  std::string_view form() const override { return "optimizers"; }
  void add_slot(const std::string& name, const PythonTensor& tensor) {
    add({name, tensor.dtype, tensor.shape});
    tensors_.push_back(tensor);
  }

 protected:
  void read_tensor(size_t index, const Box& box, void* target) const override {
    files::read_tensor(tensors_[index], box, target);
  }

 private:
  std::vector<PythonTensor> tensors_;
};

/// Returns the plain part of a slot; its tensors go to `source` under PREFIX PATH.
Value skeleton_of(const PythonValue& value, const std::string& prefix, const std::string& path, SlotSource& source) {
  if (value.is_tensor()) {
    source.add_slot(prefix + path, value.as_tensor());
    return Value::map({{"$tensor", path}});
  }
  if (value.kind() != PythonValue::Kind::kList) return plain_option(value);
  Value map = Value::map();
  for (size_t i = 0; i < value.size(); ++i)
    map[std::to_string(i)] = skeleton_of(value[i], prefix, text(path, '.', i), source);
  return map;
}

}  // namespace

std::optional<PythonValue> read_optimizer(const std::string& path, size_t index, const TensorSource& weights,
                                          const SourceOptions& options) {
  if (!fs::is_directory(path)) return std::nullopt;
  const std::string folder = tagged_folder(path, options.tag);
  const auto in = [&](const std::string& name) { return (fs::path(folder) / name).string(); };
  if (fs::exists(in(std::string(kManifestFile)))) return from_hasten(folder, index);
  const std::string file = in(index == 0 ? "optimizer.bin" : text("optimizer_", index, ".bin"));
  if (fs::exists(file)) return named(PythonFile::open(file).value(), file, weights);
  if (options.form.starts_with("megatron") || is_megatron(folder))
    return index > 0 ? std::nullopt : from_megatron(folder, options.tag, weights);
  if (const std::string dcp = in(text("optimizer_", index)); DcpFolder::is_dcp(dcp)) {
    const PythonValue whole = DcpFolder::open(dcp).state_dict();
    const PythonValue* inner = whole.find("optimizer");
    return named(inner != nullptr ? *inner : whole, dcp, weights);
  }
  if (index > 0) return std::nullopt;
  // A folder with `latest` or a tag names the checkpoint; Accelerate's holds one beside its own files.
  if (options.form == "deepspeed" || is_deepspeed(folder)) return from_deepspeed(folder, options.tag);
  if (is_deepspeed(in("pytorch_model"))) return from_deepspeed(in("pytorch_model"), {});
  return std::nullopt;
}

PythonValue numbered_optimizer(const PythonValue& by_name) {
  const PythonValue *states = by_name.find("state"), *groups = by_name.find("param_groups");
  if (states == nullptr || groups == nullptr) other_form(text("a ", by_name.type_name()));
  std::unordered_map<std::string, int64_t> numbers;
  PythonValue::Items out_groups;
  for (const PythonValue& group : groups->as_items()) {
    PythonValue out = PythonValue::dict();
    PythonValue::Items params;
    for (const auto& [key, option] : group.as_pairs()) {
      if (key.as_string() != "params") out.set(key, option);
    }
    for (const PythonValue& name : group.at("params").as_items()) {
      params.emplace_back(numbers.emplace(name.as_string(), static_cast<int64_t>(numbers.size())).first->second);
    }
    out.set("params", PythonValue::list(std::move(params)));
    out.set("param_names", group.at("params"));
    out_groups.push_back(std::move(out));
  }
  PythonValue::Pairs state;
  for (const auto& [name, slots] : states->as_pairs()) {
    const auto number = numbers.find(name.as_string());
    if (number != numbers.end()) state.emplace_back(number->second, slots);
  }
  return PythonValue::dict(
      {{"state", PythonValue::dict(std::move(state))}, {"param_groups", PythonValue::list(std::move(out_groups))}});
}

void write_hasten_optimizers(Disk& disk, const std::string& folder, const std::vector<PythonValue>& optimizers,
                             Value& parts) {
  SlotSource source;
  for (size_t i = 0; i < optimizers.size(); ++i) {
    const std::string name = std::to_string(i);
    Value groups = Value::list();
    for (const PythonValue& group : optimizers[i].at("param_groups").as_items()) {
      Value options = Value::map(), params = Value::list();
      for (const auto& [key, option] : group.as_pairs()) {
        if (key.as_string() != "params") options[key.as_string()] = plain_option(option);
      }
      for (const PythonValue& each : group.at("params").as_items()) params.push_back(each.as_string());
      groups.push_back(Value::map({{"options", std::move(options)}, {"params", std::move(params)}}));
    }
    Value::Map other;
    for (const auto& [parameter, slots] : optimizers[i].at("state").as_pairs()) {
      const std::string prefix = text("optimizer.", name, '.', parameter.as_string(), '.');
      Value skeleton = Value::map();
      for (const auto& [slot, value] : slots.as_pairs()) {
        if (!value.is_none()) skeleton[slot.as_string()] = skeleton_of(value, prefix, slot.as_string(), source);
      }
      other.emplace_back(parameter.as_string(), std::move(skeleton));
    }
    // The class is not in Python's files; a load finds it by the groups' keys.
    parts["optimizers"][name] = Value::map({{"type", ""}, {"groups", std::move(groups)}});
    parts["optimizer_states"][name] = Value::map({{"default", Value()}, {"other", Value(std::move(other))}});
  }
  if (!source.names().empty()) write_weights(disk, source, (fs::path(folder) / "state.safetensors").string());
}

}  // namespace hasten::files
