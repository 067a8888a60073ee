// Options and state of libtorch's six optimizers and of optim/'s own, under PyTorch's names; see optimizer_state.h.
#include <torch/optim/adagrad.h>
#include <torch/optim/adam.h>
#include <torch/optim/adamw.h>
#include <torch/optim/lbfgs.h>
#include <torch/optim/rmsprop.h>
#include <torch/optim/sgd.h>

#include <typeinfo>

#include "hasten/checkpoint/optimizer_state.h"
#include "hasten/core/error.h"
#include "hasten/optim/apex_adam.h"
#include "hasten/optim/apex_sgd.h"
#include "hasten/optim/deepspeed.h"
#include "hasten/optim/lamb.h"
#include "hasten/optim/loop_state.h"
#include "hasten/optim/novograd.h"

namespace hasten::checkpoint {
namespace {

using core::Value;
using training::State;

void put(Slots& slots, const char* name, const at::Tensor& tensor) {
  if (tensor.defined()) slots.emplace_back(name, State(tensor));
}

const State* get(const Slots& slots, std::string_view name) {
  for (const auto& [key, state] : slots) {
    if (key == name) return &state;
  }
  return nullptr;
}

at::Tensor get_tensor(const Slots& slots, std::string_view name) {
  const State* state = get(slots, name);
  return state != nullptr && state->is_tensor() ? state->tensor() : at::Tensor();
}

double get_number(const Slots& slots, std::string_view name, double otherwise = 0) {
  const State* state = get(slots, name);
  if (state == nullptr) return otherwise;
  if (state->is_tensor()) return state->tensor().to(at::kDouble).item<double>();
  return state->value().is_null() ? otherwise : state->value().as_double();
}

int64_t get_int(const Slots& slots, std::string_view name) {
  return static_cast<int64_t>(get_number(slots, name));
}

// Sets an option where the saved group has it.
template <class Set>
void take(const Value& options, const char* name, const Set& set) {
  const Value* value = options.find(name);
  if (value != nullptr && !value->is_null()) set(*value);
}

std::tuple<double, double> betas_of(const Value& value) {
  const auto& list = value.as_list();
  if (list.size() != 2) {
    throw UsageError(Origin{"checkpoint"}, "betas hold ", list.size(), " numbers; expected 2.");
  }
  return {list[0].as_double(), list[1].as_double()};
}

Value list_of(const std::tuple<double, double>& betas) {
  return Value::list({std::get<0>(betas), std::get<1>(betas)});
}

#define HASTEN_TAKE(field, convert) take(value, #field, [&](const Value& one) { options.field(one.convert()); })

struct SgdCodec {
  static constexpr const char* kName = "SGD";
  using Own = torch::optim::SGDOptions;
  static Value options(const torch::optim::OptimizerOptions& base) {
    const auto& own = static_cast<const Own&>(base);
    return Value::map({{"lr", own.lr()}, {"momentum", own.momentum()}, {"dampening", own.dampening()},
                       {"weight_decay", own.weight_decay()}, {"nesterov", own.nesterov()}});
  }
  static void load_options(torch::optim::OptimizerOptions& base, const Value& value) {
    auto& options = static_cast<Own&>(base);
    HASTEN_TAKE(lr, as_double);
    HASTEN_TAKE(momentum, as_double);
    HASTEN_TAKE(dampening, as_double);
    HASTEN_TAKE(weight_decay, as_double);
    HASTEN_TAKE(nesterov, as_bool);
  }
  static Slots state(const torch::optim::OptimizerParamState& base) {
    Slots slots;
    put(slots, "momentum_buffer", static_cast<const torch::optim::SGDParamState&>(base).momentum_buffer());
    return slots;
  }
  static std::unique_ptr<torch::optim::OptimizerParamState> make_state(const Slots& slots) {
    const at::Tensor momentum = get_tensor(slots, "momentum_buffer");
    if (!momentum.defined()) return nullptr;
    auto state = std::make_unique<torch::optim::SGDParamState>();
    state->momentum_buffer(momentum);
    return state;
  }
};

template <class Options, class StateType>
struct AdamCodecBase {
  static Value options(const torch::optim::OptimizerOptions& base) {
    const auto& own = static_cast<const Options&>(base);
    return Value::map({{"lr", own.lr()}, {"betas", list_of(own.betas())}, {"eps", own.eps()},
                       {"weight_decay", own.weight_decay()}, {"amsgrad", own.amsgrad()}});
  }
  static void load_options(torch::optim::OptimizerOptions& base, const Value& value) {
    auto& options = static_cast<Options&>(base);
    HASTEN_TAKE(lr, as_double);
    take(value, "betas", [&](const Value& one) { options.betas(betas_of(one)); });
    HASTEN_TAKE(eps, as_double);
    HASTEN_TAKE(weight_decay, as_double);
    HASTEN_TAKE(amsgrad, as_bool);
  }
  static Slots state(const torch::optim::OptimizerParamState& base) {
    const auto& own = static_cast<const StateType&>(base);
    Slots slots{{"step", State(own.step())}};
    put(slots, "exp_avg", own.exp_avg());
    put(slots, "exp_avg_sq", own.exp_avg_sq());
    put(slots, "max_exp_avg_sq", own.max_exp_avg_sq());
    return slots;
  }
  static std::unique_ptr<torch::optim::OptimizerParamState> make_state(const Slots& slots) {
    auto state = std::make_unique<StateType>();
    state->step(get_int(slots, "step"));
    state->exp_avg(get_tensor(slots, "exp_avg"));
    state->exp_avg_sq(get_tensor(slots, "exp_avg_sq"));
    state->max_exp_avg_sq(get_tensor(slots, "max_exp_avg_sq"));
    return state;
  }
};
struct AdamCodec : AdamCodecBase<torch::optim::AdamOptions, torch::optim::AdamParamState> {
  static constexpr const char* kName = "Adam";
};
struct AdamWCodec : AdamCodecBase<torch::optim::AdamWOptions, torch::optim::AdamWParamState> {
  static constexpr const char* kName = "AdamW";
};

struct RmspropCodec {
  static constexpr const char* kName = "RMSprop";
  using Own = torch::optim::RMSpropOptions;
  using OwnState = torch::optim::RMSpropParamState;
  static Value options(const torch::optim::OptimizerOptions& base) {
    const auto& own = static_cast<const Own&>(base);
    return Value::map({{"lr", own.lr()}, {"momentum", own.momentum()}, {"alpha", own.alpha()}, {"eps", own.eps()},
                       {"centered", own.centered()}, {"weight_decay", own.weight_decay()}});
  }
  static void load_options(torch::optim::OptimizerOptions& base, const Value& value) {
    auto& options = static_cast<Own&>(base);
    HASTEN_TAKE(lr, as_double);
    HASTEN_TAKE(momentum, as_double);
    HASTEN_TAKE(alpha, as_double);
    HASTEN_TAKE(eps, as_double);
    HASTEN_TAKE(centered, as_bool);
    HASTEN_TAKE(weight_decay, as_double);
  }
  static Slots state(const torch::optim::OptimizerParamState& base) {
    const auto& own = static_cast<const OwnState&>(base);
    Slots slots{{"step", State(own.step())}};
    put(slots, "square_avg", own.square_avg());
    put(slots, "momentum_buffer", own.momentum_buffer());
    put(slots, "grad_avg", own.grad_avg());
    return slots;
  }
  static std::unique_ptr<torch::optim::OptimizerParamState> make_state(const Slots& slots) {
    auto state = std::make_unique<OwnState>();
    state->step(get_int(slots, "step"));
    state->square_avg(get_tensor(slots, "square_avg"));
    state->momentum_buffer(get_tensor(slots, "momentum_buffer"));
    state->grad_avg(get_tensor(slots, "grad_avg"));
    return state;
  }
};

struct AdagradCodec {
  static constexpr const char* kName = "Adagrad";
  using Own = torch::optim::AdagradOptions;
  using OwnState = torch::optim::AdagradParamState;
  static Value options(const torch::optim::OptimizerOptions& base) {
    const auto& own = static_cast<const Own&>(base);
    return Value::map({{"lr", own.lr()}, {"lr_decay", own.lr_decay()}, {"eps", own.eps()},
                       {"weight_decay", own.weight_decay()},
                       {"initial_accumulator_value", own.initial_accumulator_value()}});
  }
  static void load_options(torch::optim::OptimizerOptions& base, const Value& value) {
    auto& options = static_cast<Own&>(base);
    HASTEN_TAKE(lr, as_double);
    HASTEN_TAKE(lr_decay, as_double);
    HASTEN_TAKE(eps, as_double);
    HASTEN_TAKE(weight_decay, as_double);
    HASTEN_TAKE(initial_accumulator_value, as_double);
  }
  static Slots state(const torch::optim::OptimizerParamState& base) {
    const auto& own = static_cast<const OwnState&>(base);
    Slots slots{{"step", State(own.step())}};
    put(slots, "sum", own.sum());
    return slots;
  }
  static std::unique_ptr<torch::optim::OptimizerParamState> make_state(const Slots& slots) {
    auto state = std::make_unique<OwnState>();
    state->step(get_int(slots, "step"));
    state->sum(get_tensor(slots, "sum"));
    return state;
  }
};

struct LbfgsCodec {
  static constexpr const char* kName = "LBFGS";
  using Own = torch::optim::LBFGSOptions;
  using OwnState = torch::optim::LBFGSParamState;
  static Value options(const torch::optim::OptimizerOptions& base) {
    const auto& own = static_cast<const Own&>(base);
    return Value::map({{"lr", own.lr()},
                       {"max_iter", own.max_iter()},
                       {"max_eval", own.max_eval() ? Value(*own.max_eval()) : Value()},
                       {"tolerance_grad", own.tolerance_grad()},
                       {"tolerance_change", own.tolerance_change()},
                       {"history_size", own.history_size()},
                       {"line_search_fn", own.line_search_fn() ? Value(*own.line_search_fn()) : Value()}});
  }
  static void load_options(torch::optim::OptimizerOptions& base, const Value& value) {
    auto& options = static_cast<Own&>(base);
    HASTEN_TAKE(lr, as_double);
    HASTEN_TAKE(max_iter, as_int);
    HASTEN_TAKE(max_eval, as_int);
    HASTEN_TAKE(tolerance_grad, as_double);
    HASTEN_TAKE(tolerance_change, as_double);
    HASTEN_TAKE(history_size, as_int);
    HASTEN_TAKE(line_search_fn, as_string);
  }
  template <class Tensors>
  static State numbered(const Tensors& tensors) {
    State::Map map;
    size_t i = 0;
    for (const at::Tensor& tensor : tensors) {
      map.emplace_back(std::to_string(i++), tensor.defined() ? State(tensor) : State());
    }
    return map;
  }
  static std::vector<at::Tensor> tensors(const Slots& slots, const char* name) {
    std::vector<at::Tensor> all;
    const State* state = get(slots, name);
    if (state == nullptr || !state->is_map()) return all;
    for (const auto& item : state->map()) all.push_back(item.second.is_tensor() ? item.second.tensor() : at::Tensor());
    return all;
  }
  static Slots state(const torch::optim::OptimizerParamState& base) {
    const auto& own = static_cast<const OwnState&>(base);
    Slots slots{{"func_evals", State(own.func_evals())}, {"n_iter", State(own.n_iter())}};
    put(slots, "d", own.d());
    slots.emplace_back("t", State(own.t()));
    slots.emplace_back("old_dirs", numbered(own.old_dirs()));
    slots.emplace_back("old_stps", numbered(own.old_stps()));
    slots.emplace_back("ro", numbered(own.ro()));
    put(slots, "H_diag", own.H_diag());
    put(slots, "prev_flat_grad", own.prev_flat_grad());
    slots.emplace_back("prev_loss", State(own.prev_loss()));
    if (own.al()) slots.emplace_back("al", numbered(*own.al()));
    return slots;
  }
  static std::unique_ptr<torch::optim::OptimizerParamState> make_state(const Slots& slots) {
    auto state = std::make_unique<OwnState>();
    state->func_evals(get_int(slots, "func_evals"));
    state->n_iter(get_int(slots, "n_iter"));
    state->d(get_tensor(slots, "d"));
    state->t(get_number(slots, "t"));
    const auto deque = [&](const char* name) {
      const auto all = tensors(slots, name);
      return std::deque<at::Tensor>(all.begin(), all.end());
    };
    state->old_dirs(deque("old_dirs"));
    state->old_stps(deque("old_stps"));
    state->ro(deque("ro"));
    state->H_diag(get_tensor(slots, "H_diag"));
    state->prev_flat_grad(get_tensor(slots, "prev_flat_grad"));
    state->prev_loss(get_number(slots, "prev_loss"));
    if (const State* al = get(slots, "al"); al != nullptr && al->is_map()) state->al(tensors(slots, "al"));
    return state;
  }
};

// optim/'s own classes share one state; `first` and `second` are moments, `moment` NovoGrad's number.
struct LoopStateCodec {
  using OwnState = optim::detail::LoopState;
  static Slots state(const torch::optim::OptimizerParamState& base) {
    const auto& own = static_cast<const OwnState&>(base);
    Slots slots{{"step", State(own.step())}};
    put(slots, "exp_avg", own.first());
    put(slots, "exp_avg_sq", own.second());
    put(slots, "master", own.master());
    if (own.moment() != 0) slots.emplace_back("moment", State(own.moment()));
    return slots;
  }
  static std::unique_ptr<torch::optim::OptimizerParamState> make_state(const Slots& slots) {
    auto state = std::make_unique<OwnState>();
    state->step(get_int(slots, "step"));
    state->first(get_tensor(slots, "exp_avg"));
    state->second(get_tensor(slots, "exp_avg_sq"));
    state->master(get_tensor(slots, "master"));
    state->moment(get_number(slots, "moment"));
    return state;
  }
};

struct ApexAdamCodec : LoopStateCodec {
  static constexpr const char* kName = "ApexAdam";
  using Own = optim::ApexAdamOptions;
  static Value options(const torch::optim::OptimizerOptions& base) {
    const auto& own = static_cast<const Own&>(base);
    return Value::map({{"lr", own.lr()}, {"betas", list_of(own.betas())}, {"eps", own.eps()},
                       {"weight_decay", own.weight_decay()}, {"bias_correction", own.bias_correction()}});
  }
  static void load_options(torch::optim::OptimizerOptions& base, const Value& value) {
    auto& options = static_cast<Own&>(base);
    HASTEN_TAKE(lr, as_double);
    take(value, "betas", [&](const Value& one) { options.betas(betas_of(one)); });
    HASTEN_TAKE(eps, as_double);
    HASTEN_TAKE(weight_decay, as_double);
    HASTEN_TAKE(bias_correction, as_bool);
  }
};

struct ApexSgdCodec : LoopStateCodec {
  static constexpr const char* kName = "ApexSgd";
  using Own = optim::ApexSgdOptions;
  static Value options(const torch::optim::OptimizerOptions& base) {
    const auto& own = static_cast<const Own&>(base);
    return Value::map({{"lr", own.lr()}, {"momentum", own.momentum()}, {"dampening", own.dampening()},
                       {"weight_decay", own.weight_decay()}, {"nesterov", own.nesterov()}});
  }
  static void load_options(torch::optim::OptimizerOptions& base, const Value& value) {
    auto& options = static_cast<Own&>(base);
    HASTEN_TAKE(lr, as_double);
    HASTEN_TAKE(momentum, as_double);
    HASTEN_TAKE(dampening, as_double);
    HASTEN_TAKE(weight_decay, as_double);
    HASTEN_TAKE(nesterov, as_bool);
  }
};

struct LambCodec : LoopStateCodec {
  static constexpr const char* kName = "Lamb";
  using Own = optim::LambOptions;
  static Value options(const torch::optim::OptimizerOptions& base) {
    const auto& own = static_cast<const Own&>(base);
    return Value::map({{"lr", own.lr()}, {"betas", list_of(own.betas())}, {"eps", own.eps()},
                       {"weight_decay", own.weight_decay()}, {"max_grad_norm", own.max_grad_norm()}});
  }
  static void load_options(torch::optim::OptimizerOptions& base, const Value& value) {
    auto& options = static_cast<Own&>(base);
    HASTEN_TAKE(lr, as_double);
    take(value, "betas", [&](const Value& one) { options.betas(betas_of(one)); });
    HASTEN_TAKE(eps, as_double);
    HASTEN_TAKE(weight_decay, as_double);
    HASTEN_TAKE(max_grad_norm, as_double);
  }
};

struct NovoGradCodec : LoopStateCodec {
  static constexpr const char* kName = "NovoGrad";
  using Own = optim::NovoGradOptions;
  static Value options(const torch::optim::OptimizerOptions& base) {
    const auto& own = static_cast<const Own&>(base);
    return Value::map({{"lr", own.lr()}, {"betas", list_of(own.betas())}, {"eps", own.eps()},
                       {"weight_decay", own.weight_decay()}});
  }
  static void load_options(torch::optim::OptimizerOptions& base, const Value& value) {
    auto& options = static_cast<Own&>(base);
    HASTEN_TAKE(lr, as_double);
    take(value, "betas", [&](const Value& one) { options.betas(betas_of(one)); });
    HASTEN_TAKE(eps, as_double);
    HASTEN_TAKE(weight_decay, as_double);
  }
};

struct LionCodec : LoopStateCodec {
  static constexpr const char* kName = "Lion";
  using Own = optim::deepspeed::LionOptions;
  static Value options(const torch::optim::OptimizerOptions& base) {
    const auto& own = static_cast<const Own&>(base);
    return Value::map({{"lr", own.lr()}, {"betas", list_of(own.betas())}, {"weight_decay", own.weight_decay()}});
  }
  static void load_options(torch::optim::OptimizerOptions& base, const Value& value) {
    auto& options = static_cast<Own&>(base);
    HASTEN_TAKE(lr, as_double);
    take(value, "betas", [&](const Value& one) { options.betas(betas_of(one)); });
    HASTEN_TAKE(weight_decay, as_double);
  }
};

struct DeepSpeedLambCodec : LoopStateCodec {
  static constexpr const char* kName = "FusedLamb";
  using Own = optim::deepspeed::LambOptions;
  static Value options(const torch::optim::OptimizerOptions& base) {
    const auto& own = static_cast<const Own&>(base);
    return Value::map({{"lr", own.lr()}, {"betas", list_of(own.betas())}, {"eps", own.eps()}, {"weight_decay", own.weight_decay()},
                       {"bias_correction", own.bias_correction()}, {"max_coeff", own.max_coeff()}, {"min_coeff", own.min_coeff()}});
  }
  static void load_options(torch::optim::OptimizerOptions& base, const Value& value) {
    auto& options = static_cast<Own&>(base);
    HASTEN_TAKE(lr, as_double);
    take(value, "betas", [&](const Value& one) { options.betas(betas_of(one)); });
    HASTEN_TAKE(eps, as_double);
    HASTEN_TAKE(weight_decay, as_double);
    HASTEN_TAKE(bias_correction, as_bool);
    HASTEN_TAKE(max_coeff, as_double);
    HASTEN_TAKE(min_coeff, as_double);
  }
};

#undef HASTEN_TAKE

template <class Codec>
constexpr AnyOptimizerCodec kCodec{Codec::kName, Codec::options, Codec::load_options, Codec::state, Codec::make_state};

}  // namespace

const AnyOptimizerCodec* find_codec(const torch::optim::Optimizer& optimizer) noexcept {
  const auto& type = typeid(optimizer);
  if (type == typeid(torch::optim::SGD)) return &kCodec<SgdCodec>;
  if (type == typeid(torch::optim::Adam)) return &kCodec<AdamCodec>;
  if (type == typeid(torch::optim::AdamW)) return &kCodec<AdamWCodec>;
  if (type == typeid(torch::optim::RMSprop)) return &kCodec<RmspropCodec>;
  if (type == typeid(torch::optim::Adagrad)) return &kCodec<AdagradCodec>;
  if (type == typeid(torch::optim::LBFGS)) return &kCodec<LbfgsCodec>;
  if (type == typeid(optim::ApexAdam)) return &kCodec<ApexAdamCodec>;
  if (type == typeid(optim::ApexSgd)) return &kCodec<ApexSgdCodec>;
  if (type == typeid(optim::Lamb)) return &kCodec<LambCodec>;
  if (type == typeid(optim::NovoGrad)) return &kCodec<NovoGradCodec>;
  if (type == typeid(optim::deepspeed::Lion)) return &kCodec<LionCodec>;
  if (type == typeid(optim::deepspeed::Lamb)) return &kCodec<DeepSpeedLambCodec>;
  return nullptr;
}

}  // namespace hasten::checkpoint
