// Optimizers' state in the form of PyTorch's Optimizer.state_dict(), both ways; see optimizer_state.h.
#include <ATen/Functions.h>
#include <torch/nn/module.h>

#include <unordered_map>
#include <unordered_set>

#include "checkpoint/parameter_places.h"
#include "hasten/checkpoint/optimizer_state.h"
#include "hasten/checkpoint/python_tensor.h"
#include "hasten/core/error.h"

namespace hasten::checkpoint {
namespace {

using files::PythonValue;

// Names classes that PyTorch lacks; its own are known by their keys.
constexpr const char* kClassKey = "hasten_class";

PythonValue option_to_python(const std::string& name, const core::Value& value) {
  if (name != "betas" || !value.is_list()) return to_python(value);
  PythonValue::Items items;
  for (const auto& each : value.as_list()) items.push_back(to_python(each));
  return PythonValue::tuple(std::move(items));
}

// Keys in PyTorch's order; what libtorch lacks is written as PyTorch's default.
PythonValue::Pairs group_to_python(const std::string& type, const core::Value& options) {
  PythonValue::Pairs pairs;
  for (const auto& [name, value] : options.as_map()) pairs.emplace_back(name, option_to_python(name, value));
  const auto add = [&](const char* name, PythonValue value) {
    if (!options.contains(name)) pairs.emplace_back(name, std::move(value));
  };
  if (type == "LBFGS") return pairs;
  add("maximize", false);
  if (type == "Adam" || type == "AdamW") add("decoupled_weight_decay", type == "AdamW");
  const bool is_torchs = type == "SGD" || type == "Adam" || type == "AdamW" || type == "RMSprop" || type == "Adagrad";
  if (!is_torchs) add(kClassKey, type);
  return pairs;
}

PythonValue numbered_to_python(const training::State& state) {
  PythonValue::Items items;
  for (const auto& item : state.map()) {
    items.push_back(item.second.is_tensor() ? to_python(item.second) : PythonValue());
  }
  return PythonValue::list(std::move(items));
}

PythonValue slot_to_python(const std::string& type, const std::string& name, const training::State& state) {
  if (name == "step" && state.is_value() && type != "LBFGS") {
    return to_python(training::State(at::full({}, state.value().as_double(), at::kFloat)));
  }
  if (state.is_map() && type == "LBFGS") return numbered_to_python(state);
  return to_python(state);
}

training::State slot_from_python(const std::string& name, const PythonValue& value, const std::string& place) {
  if (name == "step" && value.is_tensor()) return static_cast<int64_t>(tensor_of(value).to(at::kDouble).item<double>());
  if (value.kind() == PythonValue::Kind::kList) {  // LBFGS: tensors, or None where al has none yet
    training::State::Map map;
    for (size_t i = 0; i < value.size(); ++i) {
      map.emplace_back(std::to_string(i),
                       value[i].is_tensor() ? training::State(tensor_of(value[i])) : training::State());
    }
    return map;
  }
  return state_of_python(value, place);
}

// Parameters that have no name are called by their place, which is none for `param_names`.
bool has_names(const OptimizerState& state) {
  for (size_t g = 0; g < state.groups.size(); ++g) {
    const auto& parameters = state.groups[g].parameters;
    for (size_t i = 0; i < parameters.size(); ++i) {
      if (parameters[i] == text("group", g, '.', i)) return false;
    }
  }
  return true;
}

// The names that PyTorch writes beside the numbers of an optimizer of named parameters. Empty unless each is one of
// `names` and stands once: the file's order is then not needed.
std::vector<std::string> file_names(const PythonValue& groups, const std::vector<std::string>& names) {
  const std::unordered_set<std::string> known(names.begin(), names.end());
  std::unordered_set<std::string> seen;
  std::vector<std::string> out;
  for (const auto& group : groups.as_items()) {
    const auto* own = group.is_mapping() ? group.find("param_names") : nullptr;
    if (own == nullptr || !own->is_sequence() || own->size() != group.at("params").size()) return {};
    for (const auto& name : own->as_items()) {
      if (!name.is_string() || !known.count(name.as_string()) || !seen.insert(name.as_string()).second) return {};
      out.push_back(name.as_string());
    }
  }
  return out;
}

[[noreturn]] void throw_form(const std::string& what) {
  throw DataError(Origin{"checkpoint"}, "", "an optimizer's state: ", what,
                  "; expected {\"state\": …, \"param_groups\": …} as Optimizer.state_dict() of PyTorch gives.");
}

}  // namespace

PythonValue to_python(const OptimizerState& state) {
  std::unordered_map<std::string, int64_t> numbers;
  PythonValue::Items groups;
  const bool is_named = has_names(state);
  for (const auto& group : state.groups) {
    auto pairs = group_to_python(state.type, group.options);
    PythonValue::Items numbered, names;
    for (const auto& name : group.parameters) {
      const auto [place, is_new] = numbers.emplace(name, static_cast<int64_t>(numbers.size()));
      numbered.push_back(place->second);
      names.emplace_back(name);
    }
    if (is_named) pairs.emplace_back("param_names", PythonValue::list(std::move(names)));
    pairs.emplace_back("params", PythonValue::list(std::move(numbered)));
    groups.push_back(PythonValue::dict(std::move(pairs)));
  }
  PythonValue::Pairs states;
  for (const auto& [name, slots] : state.state) {
    const auto number = numbers.find(name);
    if (number == numbers.end()) continue;
    PythonValue::Pairs own;
    for (const auto& [slot, value] : slots) own.emplace_back(slot, slot_to_python(state.type, slot, value));
    states.emplace_back(number->second, PythonValue::dict(std::move(own)));
  }
  return PythonValue::dict(
      {{"state", PythonValue::dict(std::move(states))}, {"param_groups", PythonValue::list(std::move(groups))}});
}

OptimizerState optimizer_from_python(const PythonValue& value, const std::vector<std::string>& names) {
  const auto* states = value.find("state");
  const auto* groups = value.find("param_groups");
  if (states == nullptr || groups == nullptr || !states->is_mapping() || !groups->is_sequence()) {
    throw_form(text("a ", value.type_name(), " without state or param_groups"));
  }
  OptimizerState out;
  std::unordered_map<std::string, std::string> name_of;  // Python's number (or name, in FSDP's form) → our name
  size_t count = 0;
  const auto in_file = file_names(*groups, names);
  const auto& in_order = in_file.empty() ? names : in_file;
  for (size_t g = 0; g < groups->size(); ++g) {
    const auto& group = (*groups)[g];
    if (!group.is_mapping() || !group.contains("params")) throw_form(text("group ", g, " has no params"));
    OptimizerGroup own;
    for (const auto& [key, option] : group.as_pairs()) {
      if (!key.is_string() || key.as_string() == "params" || key.as_string() == "param_names") continue;
      const auto state = state_of_python(option, "param_groups." + key.as_string());
      own.options[key.as_string()] =
          state.is_tensor() ? core::Value(state.tensor().to(at::kDouble).item<double>()) : state.value();
    }
    if (const auto* name = own.options.find(kClassKey)) out.type = name->as_string();
    own.options.erase(kClassKey);
    const auto& numbers = group["params"];
    for (size_t i = 0; i < numbers.size(); ++i, ++count) {
      const bool is_named = numbers[i].is_string();
      const std::string key = is_named ? numbers[i].as_string() : numbers[i].int_text();
      std::string name = is_named ? key : count < in_order.size() ? in_order[count] : text("group", g, '.', i);
      name_of.emplace(key, name);
      own.parameters.push_back(std::move(name));
    }
    out.groups.push_back(std::move(own));
  }
  if (!names.empty() && names.size() != count) {
    throw_form(text("it is of ", count, " parameters, the optimizer has ", names.size()));
  }
  for (const auto& [key, slots] : states->as_pairs()) {
    const std::string number = key.is_string() ? key.as_string() : key.int_text();
    const auto name = name_of.find(number);
    if (name == name_of.end()) throw_form(text("it has state of parameter ", number, ", which is in no group"));
    Slots own;
    for (const auto& [slot, one] : slots.as_pairs()) {
      if (one.is_none()) continue;
      own.emplace_back(slot.as_string(),
                       slot_from_python(slot.as_string(), one, name->second + "." + slot.as_string()));
    }
    out.state.emplace_back(name->second, std::move(own));
  }
  return out;
}

OptimizerReport load_optimizer(torch::optim::Optimizer& optimizer, const torch::nn::Module& module,
                               const PythonValue& value, const LoadOptimizerOptions& options) {
  const auto name_of = names_of(module);
  return load_optimizer_state(optimizer, optimizer_from_python(value, place_names(optimizer, name_of)), name_of,
                              options);
}

std::string guess_optimizer(const core::Value& options, const Slots* state) {
  const auto has = [&](const char* key) { return options.contains(key); };
  const auto has_slot = [&](const char* key) {
    if (state == nullptr) return false;
    for (const auto& item : *state) {
      if (item.first == key) return true;
    }
    return false;
  };
  if (has("history_size")) return "LBFGS";
  if (has("momentum_decay")) return "NAdam";
  if (has("lambd")) return "ASGD";
  if (has("etas")) return "Rprop";
  if (has("rho")) return "Adadelta";
  if (has("ns_steps")) return "Muon";
  if (has("beta2_decay")) return "Adafactor";
  if (has("wd_after_momentum") || has("max_grad_norm")) return {};
  if (has("betas")) {
    if (has_slot("exp_inf")) return "Adamax";
    if (has("bias_correction")) return {};  // Apex's
    if (!has("amsgrad")) return has("decoupled_weight_decay") ? "RAdam" : has("weight_decay") ? "Adamax" : "SparseAdam";
    const auto* decoupled = options.find("decoupled_weight_decay");
    if (decoupled == nullptr || !decoupled->is_bool()) return {};  // before torch 2.7: Adam or AdamW
    return decoupled->as_bool() ? "AdamW" : "Adam";
  }
  if (has("centered")) return "RMSprop";
  if (has("lr_decay")) return "Adagrad";
  if (has("nesterov")) return "SGD";
  return {};
}

}  // namespace hasten::checkpoint
