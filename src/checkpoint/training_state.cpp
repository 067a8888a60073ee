// Keys of Python's dicts, and MT19937 states; see training_state.h.
#include "checkpoint/training_state.h"

#include <algorithm>
#include <cmath>
#include <cstring>
#include <limits>

#include "hasten/checkpoint/python_tensor.h"
#include "hasten/core/error.h"

namespace hasten::checkpoint {
namespace {

using core::Value;
using files::PythonValue;

constexpr size_t kWords = 624;

[[noreturn]] void throw_state_form(const std::string& what) {
  throw DataError(Origin{"checkpoint"}, "", what, ". Load the state of the same class.");
}

PythonValue floats(const Value& list) {
  PythonValue::Items items;
  for (const auto& each : list.as_list()) items.emplace_back(each.as_double());
  return PythonValue::list(std::move(items));
}

Value floats_from(const PythonValue& list) {
  Value out = Value::list();
  for (const auto& each : list.as_items())
    out.push_back(each.is_tensor() ? tensor_of(each).item().toDouble() : each.as_double());
  return out;
}

// ReduceLROnPlateau keeps an infinite metric as text.
double metric_of(const Value& value) {
  if (!value.is_string()) return value.as_double();
  const std::string& text = value.as_string();
  if (text.find("nan") != std::string::npos) return std::numeric_limits<double>::quiet_NaN();
  return text.rfind('-', 0) == 0 ? -std::numeric_limits<double>::infinity() : std::numeric_limits<double>::infinity();
}

Value metric_value(double metric, const Value& own) {
  if (std::isfinite(metric)) return metric;
  if (own.is_string() || own.is_null()) return std::isnan(metric) ? "nan" : metric > 0 ? "inf" : "-inf";
  return std::isnan(metric) ? "nan" : metric > 0 ? "inf" : "-inf";
}

const PythonValue* find_any(const PythonValue& saved, std::initializer_list<const char*> keys) {
  for (const char* key : keys) {
    if (const auto* found = saved.find(key)) return found;
  }
  return nullptr;
}

PythonValue words_tuple(const std::vector<uint32_t>& words, bool with_position) {
  PythonValue::Items items;
  for (const uint32_t word : words) items.emplace_back(static_cast<int64_t>(word));
  if (with_position) items.emplace_back(static_cast<int64_t>(kWords));
  return PythonValue::tuple(std::move(items));
}

// An array of numpy needs code to load, a plain tuple of its numbers does not. None for a state of another form.
PythonValue numpy_tuple(const PythonValue& state) {
  if (!state.is_sequence() || state.size() != 5) return {};
  if (state[1].is_sequence()) return state;
  if (state[1].kind() != PythonValue::Kind::kArray || state[1].as_array().dtype != "u4") return {};
  const std::string& bytes = state[1].as_array().bytes;
  std::vector<uint32_t> words(bytes.size() / sizeof(uint32_t));
  if (!words.empty()) std::memcpy(words.data(), bytes.data(), words.size() * sizeof(uint32_t));
  return PythonValue::tuple({state[0], words_tuple(words, false), state[2], state[3], state[4]});
}

}  // namespace

PythonValue scheduler_to_python(const Value& state) {
  const std::string name = state.at("scheduler").as_string();
  auto out = PythonValue::dict();
  if (const Value* parts = state.find("schedulers")) {
    PythonValue::Items schedulers;
    for (const auto& part : parts->as_list()) schedulers.push_back(scheduler_to_python(part));
    out.set("_schedulers", PythonValue::list(std::move(schedulers)));
  }
  if (const Value* base = state.find("base_lrs"); base != nullptr && !state.contains("schedulers"))
    out.set("base_lrs", floats(*base));
  if (name != "ChainedScheduler") out.set("last_epoch", state.at("last_epoch").as_int());
  if (const Value* count = state.find("step_count"); count != nullptr && !state.contains("schedulers")) {
    out.set("_step_count", count->as_int());
    out.set("_is_initial", false);
    out.set("_get_lr_called_within_step", false);
  }
  out.set("_last_lr", floats(state.at("last_lr")));
  if (name == "LambdaLR" || name == "MultiplicativeLR") {
    out.set("lr_lambdas", PythonValue::list(PythonValue::Items(state.at("last_lr").size())));
  }
  if (name == "CosineAnnealingWarmRestarts") out.set("T_cur", state.at("last_epoch").as_int());
  if (const Value* best = state.find("best")) {
    out.set("best", metric_of(*best));
    out.set("num_bad_epochs", state.at("num_bad_epochs").as_int());
    out.set("cooldown_counter", state.at("cooldown_counter").as_int());
  }
  return out;
}

Value scheduler_from_python(const PythonValue& saved, const Value& own) {
  if (!saved.is_mapping()) throw_state_form(text("a scheduler's state is a ", saved.type_name(), "; expected a dict"));
  Value out = own;
  const auto* parts = saved.find("_schedulers");
  const Value* own_parts = own.find("schedulers");
  if ((parts != nullptr) != (own_parts != nullptr)) {
    throw_state_form(text("a state of ", parts != nullptr ? "several schedulers" : "one scheduler", " for ",
                          own.at("scheduler").as_string()));
  }
  if (parts != nullptr) {
    if (parts->size() != own_parts->size()) {
      throw_state_form(text("a state of ", parts->size(), " schedulers for ", own.at("scheduler").as_string(), " of ",
                            own_parts->size()));
    }
    for (size_t i = 0; i < parts->size(); ++i) {
      out["schedulers"].as_list()[i] = scheduler_from_python((*parts)[i], own_parts->as_list()[i]);
    }
  }
  const auto* best = saved.find("best");
  if ((best != nullptr) != own.contains("best")) {
    throw_state_form(text("a state ", best != nullptr ? "of ReduceLROnPlateau" : "without 'best'", " for ",
                          own.at("scheduler").as_string()));
  }
  int64_t last_epoch = 0;
  if (const auto* epoch = saved.find("last_epoch")) {
    last_epoch = epoch->as_int();
  } else if (parts != nullptr && parts->size() > 0) {
    if (const auto* first = (*parts)[0].find("last_epoch")) last_epoch = first->as_int();
  }
  if (last_epoch < 0) return own;  // a part of SequentialLR that has not begun
  out["last_epoch"] = last_epoch;
  if (own.contains("step_count")) {
    const auto* count = saved.find("_step_count");
    out["step_count"] = count != nullptr ? count->as_int() : last_epoch + 1;
  }
  if (const auto* base = saved.find("base_lrs"); base != nullptr && own.contains("base_lrs"))
    out["base_lrs"] = floats_from(*base);
  if (const auto* rates = saved.find("_last_lr")) out["last_lr"] = floats_from(*rates);
  if (best != nullptr) {
    out["best"] = metric_value(best->as_double(), own.at("best"));
    out["num_bad_epochs"] = saved.at("num_bad_epochs").as_int();
    out["cooldown_counter"] = saved.at("cooldown_counter").as_int();
  }
  return out;
}

Value scheduler_options_from_python(const PythonValue& saved, const Value& own) {
  Value out = Value::map();
  if (const auto* parts = saved.find("_schedulers");
      parts != nullptr && parts->is_sequence() && own.contains("schedulers")) {
    Value list = Value::list();
    const auto& own_parts = own.at("schedulers").as_list();
    for (size_t i = 0; i < std::min(parts->size(), own_parts.size()); ++i) {
      list.push_back(scheduler_options_from_python((*parts)[i], own_parts[i]));
    }
    out["schedulers"] = std::move(list);
  }
  const Value* options = own.find("options");
  if (options == nullptr || !saved.is_mapping()) return out;
  out["options"] = Value::map();
  for (const auto& [key, ignored] : options->as_map()) {
    const auto* found = saved.find(key);
    if (found == nullptr) continue;
    if (found->is_mapping()) {  // milestones: a Counter of steps
      std::vector<int64_t> steps;
      for (const auto& [step, times] : found->as_pairs()) {
        if (step.is_int() && times.is_int())
          steps.insert(steps.end(), static_cast<size_t>(std::clamp<int64_t>(times.as_int(), 0, 1000)), step.as_int());
      }
      std::sort(steps.begin(), steps.end());
      out["options"][key] = Value(steps);
    } else if (found->is_number() || found->is_bool() || found->is_string() || found->is_sequence()) {
      out["options"][key] = state_of_python(*found, key).value();
    }
  }
  return out;
}

PythonValue scaler_to_python(const Value& state) {
  return to_python(state);
}

Value scaler_from_python(const PythonValue& saved, const Value& own) {
  if (!saved.is_mapping()) throw_state_form(text("a scaler's state is a ", saved.type_name(), "; expected a dict"));
  if (saved.size() == 0) return Value::map();
  Value out = own;
  if (const auto* apex = find_any(saved, {"loss_scaler0", "loss_scaler"})) {
    out["scale"] = apex->at("loss_scale").as_double();
    out["_growth_tracker"] = apex->at("unskipped").as_int();
    return out;
  }
  if (!saved.contains("scale")) throw_state_form("a scaler's state without 'scale'");
  for (const char* key : {"scale", "growth_factor", "backoff_factor"}) {
    if (const auto* value = saved.find(key))
      out[key] = value->is_tensor() ? tensor_of(*value).item().toDouble() : value->as_double();
  }
  for (const char* key : {"growth_interval", "_growth_tracker"}) {
    if (const auto* value = saved.find(key)) out[key] = value->as_int();
  }
  return out;
}

uint64_t seed_of(const at::Tensor& cpu_state) {
  uint64_t seed = 0;
  if (cpu_state.defined() && cpu_state.nbytes() >= sizeof seed)
    std::memcpy(&seed, cpu_state.const_data_ptr(), sizeof seed);
  return seed;
}

// Matsumoto and Nishimura's init_genrand and init_by_array.
std::vector<uint32_t> mt19937_state(uint64_t seed, bool by_array) {
  std::vector<uint32_t> mt(kWords);
  const auto begin = [&](uint32_t from) {
    mt[0] = from;
    for (size_t i = 1; i < kWords; ++i)
      mt[i] = 1812433253U * (mt[i - 1] ^ (mt[i - 1] >> 30)) + static_cast<uint32_t>(i);
  };
  if (!by_array) {
    begin(static_cast<uint32_t>(seed));
    return mt;
  }
  std::vector<uint32_t> key{static_cast<uint32_t>(seed)};
  if (seed >> 32 != 0) key.push_back(static_cast<uint32_t>(seed >> 32));
  begin(19650218U);
  size_t i = 1, j = 0;
  for (size_t k = std::max(kWords, key.size()); k > 0; --k) {
    mt[i] = (mt[i] ^ ((mt[i - 1] ^ (mt[i - 1] >> 30)) * 1664525U)) + key[j] + static_cast<uint32_t>(j);
    if (++i >= kWords) mt[0] = mt[kWords - 1], i = 1;
    if (++j >= key.size()) j = 0;
  }
  for (size_t k = kWords - 1; k > 0; --k) {
    mt[i] = (mt[i] ^ ((mt[i - 1] ^ (mt[i - 1] >> 30)) * 1566083941U)) - static_cast<uint32_t>(i);
    if (++i >= kWords) mt[0] = mt[kWords - 1], i = 1;
  }
  mt[0] = 0x80000000U;
  return mt;
}

PythonRandom random_from_python(const PythonValue& saved) {
  const auto* cpu = saved.find("torch_manual_seed");
  if (cpu == nullptr || !cpu->is_tensor()) throw_state_form("a file of random states without 'torch_manual_seed'");
  PythonRandom out;
  out.torch.cpu = tensor_of(*cpu);
  if (const auto* step = saved.find("step")) out.step = step->as_int();
  if (const auto* python = saved.find("random_state")) out.python = *python;
  if (const auto* numpy = saved.find("numpy_random_seed")) out.numpy = *numpy;
  if (const auto* cuda = saved.find("torch_cuda_manual_seed"); cuda != nullptr && cuda->is_sequence()) {
    for (const auto& each : cuda->as_items()) out.torch.cuda.push_back(tensor_of(each));
  }
  return out;
}

PythonValue to_python(const PythonRandom& random, uint64_t seed) {
  auto out = PythonValue::dict({{"step", random.step}});
  out.set("random_state",
          !random.python.is_none()
              ? random.python
              : PythonValue::tuple({int64_t{3}, words_tuple(mt19937_state(seed, true), true), PythonValue::none()}));
  const PythonValue numpy = numpy_tuple(random.numpy);
  out.set("numpy_random_seed", !numpy.is_none()
                                   ? numpy
                                   : PythonValue::tuple({"MT19937", words_tuple(mt19937_state(seed, false), false),
                                                         static_cast<int64_t>(kWords), int64_t{0}, 0.0}));
  out.set("torch_manual_seed", to_python(training::State(random.torch.cpu)));
  if (!random.torch.cuda.empty()) {
    PythonValue::Items cuda;
    for (const auto& each : random.torch.cuda) cuda.push_back(to_python(training::State(each)));
    out.set("torch_cuda_manual_seed", PythonValue::list(std::move(cuda)));
  }
  return out;
}

}  // namespace hasten::checkpoint
