// OptimizerState: an optimizer's options and state by parameter name, to and from libtorch and Python.
//
// libtorch keys state by address and Python by number. Here it is keyed by the parameters' names, so that between a
// save and a load groups may be regrouped and parameters added or frozen. The known classes are libtorch's SGD, Adam,
// AdamW, Adagrad, RMSprop and LBFGS, and optim/'s ApexAdam, ApexSgd, Lamb and NovoGrad. Another class has a codec of
// its own (OptimizerCodec).
#pragma once

#include <ATen/core/Tensor.h>
#include <torch/optim/optimizer.h>

#include <functional>
#include <map>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "hasten/core/value.h"
#include "hasten/files/python/python_value.h"
#include "hasten/training/stateful.h"

namespace torch::nn {
class Module;
}

namespace hasten::checkpoint {

/// State of a single parameter: "exp_avg" → tensor, "step" → number. Lists of tensors (LBFGS) are maps by number.
using Slots = training::State::Map;

struct OptimizerGroup {
  /// PyTorch's names: lr, betas, weight_decay …; keys that libtorch lacks (initial_lr) stay.
  core::Value options = core::Value::map();
  /// Names of the parameters, in order.
  std::vector<std::string> parameters = {};
};

struct OptimizerState {
  /// The class: "AdamW". Empty if it is not known (a Python file lacks it).
  std::string type = {};
  std::vector<OptimizerGroup> groups = {};
  /// By parameter name; only of parameters that have state, in the order of the groups.
  std::vector<std::pair<std::string, Slots>> state = {};

  const Slots* find(const std::string& parameter) const noexcept;
};

/// Reads and writes the options and state of one class of optimizers. Specialise it for a class of your own, and pass
/// `optimizer_codec<MyOptimizer>()` to the functions below. A specialisation has these static functions:
///   core::Value options(const torch::optim::OptimizerOptions&);
///   void load_options(torch::optim::OptimizerOptions&, const core::Value&);
///   Slots state(const torch::optim::OptimizerParamState&);
///   std::unique_ptr<torch::optim::OptimizerParamState> make_state(const Slots&);
/// and `static constexpr const char* kName`.
template <class T>
struct OptimizerCodec;

/// The functions of a specialisation as values.
struct AnyOptimizerCodec {
  const char* name = "";
  core::Value (*options)(const torch::optim::OptimizerOptions&) = nullptr;
  void (*load_options)(torch::optim::OptimizerOptions&, const core::Value&) = nullptr;
  Slots (*state)(const torch::optim::OptimizerParamState&) = nullptr;
  std::unique_ptr<torch::optim::OptimizerParamState> (*make_state)(const Slots&) = nullptr;
};

template <class T>
AnyOptimizerCodec optimizer_codec() {
  using Codec = OptimizerCodec<T>;
  return {Codec::kName, Codec::options, Codec::load_options, Codec::state, Codec::make_state};
}

/// Returns the codec of a known class; null for others.
const AnyOptimizerCodec* find_codec(const torch::optim::Optimizer& optimizer) noexcept;

/// Gives a parameter's name, or "" if it is none of the model's.
using ParameterNames = std::function<std::string(const at::Tensor& parameter)>;
/// Returns the names of a module's parameters.
ParameterNames names_of(const torch::nn::Module& module);

/// Options and state as they are; tensors share memory with the optimizer. Parameters without a name are called
/// "group{g}.{i}". `codec` null: the class's own.
/// Throws: UsageError for a class without a codec.
OptimizerState optimizer_state(const torch::optim::Optimizer& optimizer, const ParameterNames& name_of = {},
                               const AnyOptimizerCodec* codec = nullptr);

struct LoadOptimizerOptions {
  /// lr, betas … are taken over too; false: the program's stay.
  bool options = true;
  /// A parameter of the optimizer without state in the file keeps none; false: UsageError listing them.
  bool allow_missing = true;
  /// The optimizer maximises (PreparedOptimizerOptions::maximize); a file with another value is refused.
  bool maximize = false;
  const AnyOptimizerCodec* codec = nullptr;
  /// The tensors have no other user. They become the optimizer's where dtype, device and strides fit already. Flat ones
  /// may be this rank's slices of sharded parameters.
  bool is_own = false;
  /// True for parameters whose state stays on the CPU, since it is stepped there; unset: all state goes to its
  /// parameter's device.
  std::function<bool(const at::Tensor& parameter)> rests_on_host = {};
};

/// Which parameters' state found no place, and which found none in the file.
struct OptimizerReport {
  std::vector<std::string> unused = {};
  std::vector<std::string> missing = {};
};

/// Replaces options and state. Finds parameters by name; their groups may differ. A group takes the options of the
/// saved group that held its first known parameter. State is cast to the parameter's dtype where it has its shape.
/// Throws: UsageError for another class, or a state of another shape; nothing has changed
/// then.
OptimizerReport load_optimizer_state(torch::optim::Optimizer& optimizer, const OptimizerState& state,
                                     const ParameterNames& name_of = {}, const LoadOptimizerOptions& options = {});

/// Returns the argument for PyTorch's Optimizer.load_state_dict: {"state": {0: …}, "param_groups": […]}.
/// Blocks: for device copies. Throws: UsageError as python_tensors.
files::PythonValue to_python(const OptimizerState& state);
/// From what Optimizer.state_dict() of PyTorch gave. Python numbers parameters across groups; `names` has their names
/// in that order. If it is empty, the optimizer must hold as many parameters in the same order.
/// Blocks: on the file. Throws: DataError for a value of another form.
OptimizerState optimizer_from_python(const files::PythonValue& value, const std::vector<std::string>& names = {});

/// Makes the three steps in one: names from `module`, parameters in the optimizer's order.
/// Blocks: on the file. Throws: DataError; UsageError as load_optimizer_state.
OptimizerReport load_optimizer(torch::optim::Optimizer& optimizer, const torch::nn::Module& module,
                               const files::PythonValue& value, const LoadOptimizerOptions& options = {});

/// Returns the name of the class in PyTorch whose group has these keys, or "". Files do not name the class.
std::string guess_optimizer(const core::Value& group_options, const Slots* state);

}  // namespace hasten::checkpoint
