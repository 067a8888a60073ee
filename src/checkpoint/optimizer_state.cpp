// An optimizer's state by parameter name, taken and loaded; see optimizer_state.h.
#include "hasten/checkpoint/optimizer_state.h"

#include <torch/nn/module.h>
#include <torch/optim/lbfgs.h>

#include <ATen/Functions.h>

#include <typeinfo>
#include <unordered_map>
#include <unordered_set>

#include "checkpoint/parameter_places.h"
#include "hasten/core/error.h"

namespace hasten::checkpoint {
namespace {

const AnyOptimizerCodec& codec_of(const torch::optim::Optimizer& optimizer, const AnyOptimizerCodec* given) {
  if (given != nullptr) return *given;
  if (const auto* codec = find_codec(optimizer)) return *codec;
  throw UsageError(
      Origin{"checkpoint"}, "the optimizer's class (", typeid(optimizer).name(),
      ") has no known state; known are SGD, Adam, AdamW, Adagrad, RMSprop, LBFGS, ApexAdam, ApexSgd, Lamb, "
      "NovoGrad. Specialise checkpoint::OptimizerCodec for it, or give it state() and load_state().");
}

// Memory in the parameter's order. No operator reads the parameter: that is a collective where ranks have parts of it,
// and each rank loads its own.
at::Tensor empty_like_parameter(const at::Tensor& parameter, c10::ScalarType dtype, c10::Device device) {
  const auto options = parameter.options().dtype(dtype).device(device).requires_grad(false);
  if (parameter.layout() == at::kStrided && parameter.is_non_overlapping_and_dense())
    return at::empty_strided(parameter.sizes(), parameter.strides(), options);
  return at::empty_like(parameter.detach(), options);
}

// State that has the parameter's shape follows its dtype, and goes to `device`, as Optimizer.load_state_dict has it. It
// is copied, so that a step does not write into what was loaded.
training::State fitted(const training::State& state, const at::Tensor& parameter, const std::string& slot,
                       c10::Device device, bool is_own) {
  if (state.is_tensor()) {
    const at::Tensor& tensor = state.tensor();
    const bool follows = tensor.is_floating_point() && parameter.is_floating_point() && slot != "master" &&
                         slot != "step" && tensor.dim() > 0;
    const auto requested = follows ? parameter.scalar_type() : tensor.scalar_type();
    const bool lies_well = tensor.sizes() != parameter.sizes() || tensor.strides() == parameter.strides();
    if (is_own && lies_well && tensor.device() == device && tensor.scalar_type() == requested) return tensor;
    if (tensor.sizes() == parameter.sizes()) {  // in the parameter's memory order too, which kernels and slices go by
      return empty_like_parameter(parameter, requested, device).copy_(tensor);
    }
    return tensor.to(device, requested, false, true);
  }
  if (!state.is_map()) return state;
  training::State::Map map;
  for (const auto& [name, child] : state.map()) map.emplace_back(name, fitted(child, parameter, name, device, is_own));
  return map;
}

using SlotsByName = std::unordered_map<std::string_view, const Slots*>;

SlotsByName slots_by_name(const OptimizerState& state) {
  SlotsByName all;
  for (const auto& [name, slots] : state.state) all.emplace(name, &slots);
  return all;
}

// Everything that can be refused, before anything changes.
void check(const torch::optim::Optimizer& optimizer, const OptimizerState& state, const SlotsByName& by_name,
           const std::vector<Place>& places, const LoadOptimizerOptions& options, const AnyOptimizerCodec& codec) {
  std::string guess = state.type;
  if (guess.empty() && !state.groups.empty()) {
    guess = guess_optimizer(state.groups[0].options, state.state.empty() ? nullptr : &state.state[0].second);
  }
  if (!guess.empty() && guess != codec.name) {
    throw UsageError(Origin{"checkpoint"}, "the saved state is of ", guess, ", this optimizer is ", codec.name,
                     ". Make the optimizer of that class, or leave its state out.");
  }
  for (const auto& group : state.groups) {
    const auto* maximize = group.options.find("maximize");
    if (maximize != nullptr && maximize->is_bool() && maximize->as_bool() != options.maximize) {
      throw UsageError(Origin{"checkpoint"}, "the saved optimizer has maximize = ", maximize->as_bool(), ", this one ",
                       options.maximize, ". Set PreparedOptimizerOptions::maximize to the saved value.");
    }
  }
  if (dynamic_cast<const torch::optim::LBFGS*>(&optimizer) != nullptr) return;  // flat tensors of all parameters
  std::string wrong;
  for (const auto& place : places) {
    const auto found = by_name.find(place.name);
    if (found == by_name.end()) continue;
    for (const auto& [slot, value] : *found->second) {
      if (!value.is_tensor() || value.tensor().numel() == 1 || value.tensor().sizes() == place.parameter.sizes())
        continue;
      if (options.is_own && value.tensor().dim() == 1 && value.tensor().numel() <= place.parameter.numel()) continue;
      wrong += text(wrong.empty() ? "" : "; ", slot, " of '", place.name, "' has sizes ", value.tensor().sizes(),
                    ", the parameter ", place.parameter.sizes());
    }
  }
  if (!wrong.empty()) throw UsageError(Origin{"checkpoint"}, wrong, ". Load the state of a model with these shapes.");
}

}  // namespace

const Slots* OptimizerState::find(const std::string& parameter) const noexcept {
  for (const auto& [name, slots] : state) {
    if (name == parameter) return &slots;
  }
  return nullptr;
}

ParameterNames names_of(const torch::nn::Module& module) {
  auto names = std::make_shared<std::unordered_map<const c10::TensorImpl*, std::string>>();
  for (const auto& item : module.named_parameters()) names->emplace(item.value().unsafeGetTensorImpl(), item.key());
  return [names](const at::Tensor& parameter) {
    const auto found = names->find(parameter.unsafeGetTensorImpl());
    return found == names->end() ? std::string() : found->second;
  };
}

OptimizerState optimizer_state(const torch::optim::Optimizer& optimizer, const ParameterNames& name_of,
                               const AnyOptimizerCodec* given) {
  const auto& codec = codec_of(optimizer, given);
  OptimizerState out;
  out.type = codec.name;
  std::unordered_set<std::string> done;  // a tied weight may be listed twice
  const auto& states = optimizer.state();
  for (size_t g = 0; g < optimizer.param_groups().size(); ++g) {
    const auto& group = optimizer.param_groups()[g];
    OptimizerGroup own{codec.options(group.has_options() ? group.options() : optimizer.defaults()), {}};
    for (size_t i = 0; i < group.params().size(); ++i) {
      own.parameters.push_back(place_name(name_of, group.params()[i], g, i));
      const auto found = states.find(group.params()[i].unsafeGetTensorImpl());
      // libtorch leaves empty entries where it looked for a state.
      if (found == states.end() || found->second == nullptr || !done.insert(own.parameters.back()).second) continue;
      Slots slots = codec.state(*found->second);
      if (!slots.empty()) out.state.emplace_back(own.parameters.back(), std::move(slots));
    }
    out.groups.push_back(std::move(own));
  }
  return out;
}

OptimizerReport load_optimizer_state(torch::optim::Optimizer& optimizer, const OptimizerState& state,
                                     const ParameterNames& name_of, const LoadOptimizerOptions& options) {
  const at::NoGradGuard no_grad;
  const auto& codec = codec_of(optimizer, options.codec);
  const auto places = places_of(optimizer, name_of);
  const auto by_name = slots_by_name(state);
  check(optimizer, state, by_name, places, options, codec);
  OptimizerReport report;
  std::unordered_map<std::string, size_t> group_of;
  for (size_t g = 0; g < state.groups.size(); ++g) {
    for (const auto& name : state.groups[g].parameters) group_of.emplace(name, g);
  }
  std::unordered_set<std::string> known;
  std::unordered_map<const c10::TensorImpl*, std::unique_ptr<torch::optim::OptimizerParamState>> made;
  for (const auto& place : places) {
    known.insert(place.name);
    const auto found = by_name.find(place.name);
    if (found == by_name.end()) {
      if (!group_of.count(place.name)) report.missing.push_back(place.name);
      continue;
    }
    Slots own;
    const bool on_host = options.rests_on_host && options.rests_on_host(place.parameter);
    const c10::Device device = on_host ? c10::Device(at::kCPU) : place.parameter.device();
    for (const auto& [slot, value] : *found->second)
      own.emplace_back(slot, fitted(value, place.parameter, slot, device, options.is_own));
    if (auto one = codec.make_state(own)) made[place.parameter.unsafeGetTensorImpl()] = std::move(one);
  }
  for (const auto& item : state.state) {
    if (!known.count(item.first)) report.unused.push_back(item.first);
  }
  if (!options.allow_missing && !report.missing.empty()) {
    throw UsageError(Origin{"checkpoint"}, "the saved optimizer has no ", hasten::join(report.missing),
                     ". Load the state of the same parameters, or set allow_missing.");
  }
  auto& states = optimizer.state();
  for (const auto& place : places) states.erase(place.parameter.unsafeGetTensorImpl());
  for (auto& [impl, one] : made) states[const_cast<c10::TensorImpl*>(impl)] = std::move(one);
  if (!options.options) return report;
  std::unordered_set<size_t> loaded;
  for (const auto& place : places) {
    const auto found = group_of.find(place.name);
    if (found == group_of.end() || !loaded.insert(place.group).second) continue;
    auto& group = optimizer.param_groups()[place.group];
    if (group.has_options()) codec.load_options(group.options(), state.groups[found->second].options);
  }
  return report;
}

}  // namespace hasten::checkpoint
