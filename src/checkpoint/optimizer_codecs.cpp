// Options and state of libtorch's six optimizers and of optim/'s own, under PyTorch's names; see optimizer_state.h.
//
// A class is a row of a table: its name, its options and its state, each a list of fields. A field is a name in PyTorch
// and the accessor of libtorch's TORCH_ARG. Its type decides how it is written and read.
#include <torch/optim/adagrad.h>
#include <torch/optim/adam.h>
#include <torch/optim/adamw.h>
#include <torch/optim/lbfgs.h>
#include <torch/optim/rmsprop.h>
#include <torch/optim/sgd.h>

#include <deque>
#include <optional>
#include <tuple>
#include <typeinfo>

#include "hasten/checkpoint/optimizer_state.h"
#include "hasten/core/error.h"
#include "hasten/optim/apex_adam.h"
#include "hasten/optim/apex_sgd.h"
#include "hasten/optim/deepspeed.h"
#include "hasten/optim/lamb.h"
#include "hasten/optim/moment_state.h"
#include "hasten/optim/novograd.h"

namespace hasten::checkpoint {
namespace {

using core::Value;
using torch::optim::OptimizerOptions;
using torch::optim::OptimizerParamState;
using training::State;
using Betas = std::tuple<double, double>;

// ---- Options: as plain values.

template <class T>
Value value_of(const T& option) {
  return option;
}
Value value_of(const Betas& betas) {
  return Value::list({std::get<0>(betas), std::get<1>(betas)});
}
template <class T>
Value value_of(const std::optional<T>& option) {
  return option ? Value(*option) : Value();
}

void read_option(const Value& value, double& option) {
  option = value.as_double();
}
void read_option(const Value& value, int64_t& option) {
  option = value.as_int();
}
void read_option(const Value& value, bool& option) {
  option = value.as_bool();
}
void read_option(const Value& value, std::string& option) {
  option = value.as_string();
}
void read_option(const Value& value, Betas& betas) {
  const auto& list = value.as_list();
  if (list.size() != 2) throw UsageError(Origin{"checkpoint"}, "betas hold ", list.size(), " numbers; expected 2.");
  betas = {list[0].as_double(), list[1].as_double()};
}
template <class T>
void read_option(const Value& value, std::optional<T>& option) {
  T read{};
  read_option(value, read);
  option = std::move(read);
}

// ---- State: numbers, tensors, and lists of tensors as maps by number. An undefined tensor has no slot.

void put(Slots& slots, const char* name, int64_t number) {
  slots.emplace_back(name, State(number));
}
void put(Slots& slots, const char* name, double number) {
  slots.emplace_back(name, State(number));
}
void put(Slots& slots, const char* name, const at::Tensor& tensor) {
  if (tensor.defined()) slots.emplace_back(name, State(tensor));
}
template <class Tensors>
  requires std::is_same_v<typename Tensors::value_type, at::Tensor>
void put(Slots& slots, const char* name, const Tensors& tensors) {
  State::Map map;
  for (const at::Tensor& tensor : tensors) {
    map.emplace_back(std::to_string(map.size()), tensor.defined() ? State(tensor) : State());
  }
  slots.emplace_back(name, std::move(map));
}
void put(Slots& slots, const char* name, const std::optional<std::vector<at::Tensor>>& tensors) {
  if (tensors) put(slots, name, *tensors);
}

void read_slot(const State& slot, double& number) {
  if (slot.is_tensor()) {
    number = slot.tensor().to(at::kDouble).item<double>();
  } else if (!slot.value().is_null()) {
    number = slot.value().as_double();
  }
}
void read_slot(const State& slot, int64_t& number) {
  double read = 0;
  read_slot(slot, read);
  number = static_cast<int64_t>(read);
}
void read_slot(const State& slot, at::Tensor& tensor) {
  if (slot.is_tensor()) tensor = slot.tensor();
}
template <class Tensors>
  requires std::is_same_v<typename Tensors::value_type, at::Tensor>
void read_slot(const State& slot, Tensors& tensors) {
  if (!slot.is_map()) return;
  for (const auto& item : slot.map()) tensors.push_back(item.second.is_tensor() ? item.second.tensor() : at::Tensor());
}
void read_slot(const State& slot, std::optional<std::vector<at::Tensor>>& tensors) {
  if (slot.is_map()) read_slot(slot, tensors.emplace());
}

// ---- The table.

template <class Access>
struct Field {
  const char* name;
  Access access;
};
template <class Access>
Field(const char*, Access) -> Field<Access>;

#define HASTEN_FIELD_AS(name, member)                     \
  Field {                                                 \
    name, [](auto& own) -> auto& { return own.member(); } \
  }
#define HASTEN_FIELD(member) HASTEN_FIELD_AS(#member, member)

// `needs_tensor`: state without a tensor is no state. Examples: SGD without momentum; libtorch would step with an
// undefined buffer.
template <class OptionsType, class StateType, class Options, class Slots>
struct Row {
  const char* name;
  Options options;
  Slots slots;
  bool needs_tensor = false;
  using Own = OptionsType;
  using OwnState = StateType;
};
template <class OptionsType, class StateType, class... O, class... S>
constexpr auto row(const char* name, std::tuple<O...> options, std::tuple<S...> slots, bool needs_tensor = false) {
  return Row<OptionsType, StateType, std::tuple<O...>, std::tuple<S...>>{name, options, slots, needs_tensor};
}

constexpr auto kAdamOptions = std::tuple(HASTEN_FIELD(lr), HASTEN_FIELD(betas), HASTEN_FIELD(eps),
                                         HASTEN_FIELD(weight_decay), HASTEN_FIELD(amsgrad));
constexpr auto kAdamSlots =
    std::tuple(HASTEN_FIELD(step), HASTEN_FIELD(exp_avg), HASTEN_FIELD(exp_avg_sq), HASTEN_FIELD(max_exp_avg_sq));
constexpr auto kSgdOptions = std::tuple(HASTEN_FIELD(lr), HASTEN_FIELD(momentum), HASTEN_FIELD(dampening),
                                        HASTEN_FIELD(weight_decay), HASTEN_FIELD(nesterov));
// optim/'s own classes share one state; `first` and `second` are moments, `moment` NovoGrad's number.
constexpr auto kLoopSlots = std::tuple(HASTEN_FIELD(step), HASTEN_FIELD_AS("exp_avg", first),
                                       HASTEN_FIELD_AS("exp_avg_sq", second), HASTEN_FIELD(master));
using optim::detail::MomentState;
namespace to = torch::optim;

constexpr auto kSgd =
    row<to::SGDOptions, to::SGDParamState>("SGD", kSgdOptions, std::tuple(HASTEN_FIELD(momentum_buffer)), true);
constexpr auto kAdam = row<to::AdamOptions, to::AdamParamState>("Adam", kAdamOptions, kAdamSlots);
constexpr auto kAdamW = row<to::AdamWOptions, to::AdamWParamState>("AdamW", kAdamOptions, kAdamSlots);
constexpr auto kRmsprop = row<to::RMSpropOptions, to::RMSpropParamState>(
    "RMSprop",
    std::tuple(HASTEN_FIELD(lr), HASTEN_FIELD(momentum), HASTEN_FIELD(alpha), HASTEN_FIELD(eps), HASTEN_FIELD(centered),
               HASTEN_FIELD(weight_decay)),
    std::tuple(HASTEN_FIELD(step), HASTEN_FIELD(square_avg), HASTEN_FIELD(momentum_buffer), HASTEN_FIELD(grad_avg)));
constexpr auto kAdagrad = row<to::AdagradOptions, to::AdagradParamState>(
    "Adagrad",
    std::tuple(HASTEN_FIELD(lr), HASTEN_FIELD(lr_decay), HASTEN_FIELD(eps), HASTEN_FIELD(weight_decay),
               HASTEN_FIELD(initial_accumulator_value)),
    std::tuple(HASTEN_FIELD(step), HASTEN_FIELD(sum)));
constexpr auto kLbfgs = row<to::LBFGSOptions, to::LBFGSParamState>(
    "LBFGS",
    std::tuple(HASTEN_FIELD(lr), HASTEN_FIELD(max_iter), HASTEN_FIELD(max_eval), HASTEN_FIELD(tolerance_grad),
               HASTEN_FIELD(tolerance_change), HASTEN_FIELD(history_size), HASTEN_FIELD(line_search_fn)),
    std::tuple(HASTEN_FIELD(func_evals), HASTEN_FIELD(n_iter), HASTEN_FIELD(d), HASTEN_FIELD(t), HASTEN_FIELD(old_dirs),
               HASTEN_FIELD(old_stps), HASTEN_FIELD(ro), HASTEN_FIELD(H_diag), HASTEN_FIELD(prev_flat_grad),
               HASTEN_FIELD(prev_loss), HASTEN_FIELD(al)));
constexpr auto kApexAdam =
    row<optim::ApexAdamOptions, MomentState>("ApexAdam",
                                             std::tuple(HASTEN_FIELD(lr), HASTEN_FIELD(betas), HASTEN_FIELD(eps),
                                                        HASTEN_FIELD(weight_decay), HASTEN_FIELD(bias_correction)),
                                             kLoopSlots);
constexpr auto kApexSgd = row<optim::ApexSgdOptions, MomentState>("ApexSgd", kSgdOptions, kLoopSlots);
constexpr auto kLamb =
    row<optim::LambOptions, MomentState>("Lamb",
                                         std::tuple(HASTEN_FIELD(lr), HASTEN_FIELD(betas), HASTEN_FIELD(eps),
                                                    HASTEN_FIELD(weight_decay), HASTEN_FIELD(max_grad_norm)),
                                         kLoopSlots);
constexpr auto kNovoGrad = row<optim::NovoGradOptions, MomentState>(
    "NovoGrad", std::tuple(HASTEN_FIELD(lr), HASTEN_FIELD(betas), HASTEN_FIELD(eps), HASTEN_FIELD(weight_decay)),
    std::tuple_cat(kLoopSlots, std::tuple(HASTEN_FIELD(moment))));
constexpr auto kLion = row<optim::deepspeed::LionOptions, MomentState>(
    "Lion", std::tuple(HASTEN_FIELD(lr), HASTEN_FIELD(betas), HASTEN_FIELD(weight_decay)), kLoopSlots);
constexpr auto kFusedLamb = row<optim::deepspeed::LambOptions, MomentState>(
    "FusedLamb",
    std::tuple(HASTEN_FIELD(lr), HASTEN_FIELD(betas), HASTEN_FIELD(eps), HASTEN_FIELD(weight_decay),
               HASTEN_FIELD(bias_correction), HASTEN_FIELD(max_coeff), HASTEN_FIELD(min_coeff)),
    kLoopSlots);

#undef HASTEN_FIELD
#undef HASTEN_FIELD_AS

// ---- A row as functions.

template <const auto& kRow>
struct RowCodec {
  using Own = typename std::remove_cvref_t<decltype(kRow)>::Own;
  using OwnState = typename std::remove_cvref_t<decltype(kRow)>::OwnState;

  template <class Do>
  static void for_each(const auto& fields, const Do& act) {
    std::apply([&](const auto&... field) { (act(field), ...); }, fields);
  }

  static Value options(const OptimizerOptions& base) {
    const auto& own = static_cast<const Own&>(base);
    Value out = Value::map();
    for_each(kRow.options, [&](const auto& field) { out[field.name] = value_of(field.access(own)); });
    return out;
  }
  // Sets the options that the saved group has.
  static void load_options(OptimizerOptions& base, const Value& saved) {
    auto& own = static_cast<Own&>(base);
    for_each(kRow.options, [&](const auto& field) {
      const Value* value = saved.find(field.name);
      if (value != nullptr && !value->is_null()) read_option(*value, field.access(own));
    });
  }
  static Slots state(const OptimizerParamState& base) {
    const auto& own = static_cast<const OwnState&>(base);
    Slots slots;
    for_each(kRow.slots, [&](const auto& field) { put(slots, field.name, field.access(own)); });
    return slots;
  }
  static std::unique_ptr<OptimizerParamState> make_state(const Slots& slots) {
    auto state = std::make_unique<OwnState>();
    bool has_tensor = false;
    for_each(kRow.slots, [&](const auto& field) {
      for (const auto& [name, slot] : slots) {
        if (name != field.name) continue;
        read_slot(slot, field.access(*state));
        has_tensor = has_tensor || slot.is_tensor();
      }
    });
    if (kRow.needs_tensor && !has_tensor) return nullptr;
    return state;
  }
  static constexpr AnyOptimizerCodec kCodec{kRow.name, options, load_options, state, make_state};
};

template <class Optimizer, const auto& kRow>
bool is_row(const torch::optim::Optimizer& optimizer, const AnyOptimizerCodec*& codec) noexcept {
  if (typeid(optimizer) != typeid(Optimizer)) return false;
  codec = &RowCodec<kRow>::kCodec;
  return true;
}

}  // namespace

const AnyOptimizerCodec* find_codec(const torch::optim::Optimizer& optimizer) noexcept {
  const AnyOptimizerCodec* codec = nullptr;
  (void)(is_row<to::SGD, kSgd>(optimizer, codec) || is_row<to::Adam, kAdam>(optimizer, codec) ||
         is_row<to::AdamW, kAdamW>(optimizer, codec) || is_row<to::RMSprop, kRmsprop>(optimizer, codec) ||
         is_row<to::Adagrad, kAdagrad>(optimizer, codec) || is_row<to::LBFGS, kLbfgs>(optimizer, codec) ||
         is_row<optim::ApexAdam, kApexAdam>(optimizer, codec) || is_row<optim::ApexSgd, kApexSgd>(optimizer, codec) ||
         is_row<optim::Lamb, kLamb>(optimizer, codec) || is_row<optim::NovoGrad, kNovoGrad>(optimizer, codec) ||
         is_row<optim::deepspeed::Lion, kLion>(optimizer, codec) ||
         is_row<optim::deepspeed::Lamb, kFusedLamb>(optimizer, codec));
  return codec;
}

}  // namespace hasten::checkpoint
