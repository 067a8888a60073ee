// See python/trainer.h.
#include "python/trainer.h"

#include <torch/csrc/autograd/python_variable.h>
#include <torch/optim/adagrad.h>
#include <torch/optim/adam.h>
#include <torch/optim/adamw.h>
#include <torch/optim/rmsprop.h>
#include <torch/optim/sgd.h>

#include <functional>
#include <map>
#include <utility>

#include "hasten/checkpoint/python_tensor.h"
#include "hasten/core/error.h"
#include "hasten/parallel/shard/sharding.h"
#include "python/bindings.h"

namespace hasten::python {
namespace {

using torch::optim::OptimizerParamGroup;

std::vector<at::Tensor> tensors_of(const py::object& list) {
  std::vector<at::Tensor> tensors;
  for (const py::handle tensor : list) tensors.push_back(tensor.cast<at::Tensor>());
  return tensors;
}

core::Value options_of(py::handle group) {
  core::Value options = core::Value::map();
  for (const auto& [key, value] : group.cast<py::dict>()) {
    const auto name = key.cast<std::string>();
    if (name != "params") options[name] = plain_value(value, name);
  }
  return options;
}

// Groups as Python has them, with options of the class's own defaults.
template <class Options>
std::vector<OptimizerParamGroup> groups_of(const py::list& groups, const Options& defaults) {
  std::vector<OptimizerParamGroup> all;
  for (const py::handle group : groups) {
    all.emplace_back(tensors_of(group["params"]), std::make_unique<Options>(defaults));
  }
  return all;
}

template <class Optimizer, class Options>
optim::AnyPreparedOptimizer make(const Accelerator& accelerator, const py::list& groups, const Options& defaults) {
  return accelerator.prepare(std::make_unique<Optimizer>(groups_of(groups, defaults), defaults));
}

optim::AnyPreparedOptimizer make(const Accelerator& accelerator, const std::string& kind, const py::list& groups) {
  namespace o = torch::optim;
  if (kind == "SGD") return make<o::SGD>(accelerator, groups, o::SGDOptions(0.0));
  if (kind == "Adam") return make<o::Adam>(accelerator, groups, o::AdamOptions());
  if (kind == "AdamW") return make<o::AdamW>(accelerator, groups, o::AdamWOptions());
  if (kind == "RMSprop") return make<o::RMSprop>(accelerator, groups, o::RMSpropOptions());
  if (kind == "Adagrad") {
    // Its state is made with it.
    const auto initial = groups[0]["initial_accumulator_value"].cast<double>();
    return make<o::Adagrad>(accelerator, groups, o::AdagradOptions().initial_accumulator_value(initial));
  }
  throw InternalError(Origin{"python"}, "no twin of the class ", kind, ".");
}

process::Process process_of(const comm::GroupBackend& backend, int local_rank, int local_world_size) {
  process::RankInfo info;
  info.rank = backend.group().rank();
  info.world_size = backend.group().world_size();
  info.local_rank = local_rank;
  info.local_world_size = local_world_size;
  info.node_rank = info.rank / std::max(local_world_size, 1);
  return {info, backend.group()};
}

std::unique_ptr<Accelerator> make_trainer(const c10::intrusive_ptr<comm::GroupBackend>& backend, int local_rank,
                                          int local_world_size, const py::dict& given) {
  look_at_signals_while_waiting();
  const AcceleratorOptions options = trainer_options(given);
  const WithoutGil no_gil;
  auto accelerator = std::make_unique<Accelerator>(process_of(*backend, local_rank, local_world_size), options);
  // Python's loaders give each rank its part, so that nothing is to be said of loaders that were not prepared.
  accelerator->preparation().check_loader({.dataset = "Python's", .num_samples = 1}, /*is_stream=*/true);
  return accelerator;
}

/// An object of Python's as one with a state (training/stateful.h), by two functions of it.
class PythonState {
 public:
  PythonState(py::function state, py::function load_state)
      : state_(std::move(state)), load_state_(std::move(load_state)) {}
  ~PythonState() {
    const py::gil_scoped_acquire gil;
    state_.release().dec_ref();
    load_state_.release().dec_ref();
  }
  PythonState(const PythonState&) = delete;
  PythonState& operator=(const PythonState&) = delete;

  training::State state() const {
    const py::gil_scoped_acquire gil;
    return checkpoint::state_of_python(from_python(state_(), /*copies=*/true));
  }
  void load_state(const training::State& state) const {
    const py::gil_scoped_acquire gil;
    load_state_(to_python(checkpoint::to_python(state)));
  }

 private:
  py::function state_, load_state_;
};

/// A scope that Python opens and closes.
class HeldGradients {
 public:
  HeldGradients(const Accelerator& accelerator, const DistributedModule& module)
      : scope_(accelerator.no_sync(module.prepared())) {}
  void close() { scope_.reset(); }

 private:
  std::optional<parallel::NoSync> scope_;
};

}  // namespace

DistributedModule::DistributedModule(const Accelerator& accelerator, py::handle module) : mirror_(module) {
  const WithoutGil no_gil;
  auto root = mirror_.root();
  prepared_.emplace(accelerator.prepare(root));
}

void DistributedModule::before_forward(py::handle module) {
  mirror_.follow(module);
  const WithoutGil no_gil;
  if (prepared_->ddp()) parallel::before_forward(*prepared_->ddp());
}

Twin::Twin(const Accelerator& accelerator, const std::string& kind, const py::list& groups)
    : sharding_(accelerator.sharding()), prepared_(make(accelerator, kind, groups)) {
  codec_ = checkpoint::find_codec(prepared_->unwrap());
  set_options(groups);
}

void Twin::set_options(const py::list& groups) {
  auto& optimizer = prepared_->unwrap();
  for (size_t i = optimizer.param_groups().size(); i < groups.size(); ++i) {
    optimizer.add_param_group(
        OptimizerParamGroup(tensors_of(groups[i]["params"]), optimizer.param_groups()[0].options().clone()));
  }
  for (size_t i = 0; i < groups.size(); ++i) {
    codec_->load_options(optimizer.param_groups()[i].options(), options_of(groups[i]));
  }
}

py::object Twin::state() const {
  if (sharding_ && sharding_->steps(prepared_->unwrap())) return sharded_state();
  return to_python(checkpoint::to_python(checkpoint::optimizer_state(prepared_->unwrap())))["state"];
}

py::dict Twin::sharded_state() const {
  std::vector<parallel::ShardedStatePiece> pieces;
  {
    const WithoutGil no_gil;
    pieces = sharding_->full_state(prepared_->unwrap());
  }
  std::map<const c10::TensorImpl*, py::int_> numbers;
  for (const auto& group : prepared_->unwrap().param_groups()) {
    for (const at::Tensor& parameter : group.params()) numbers.emplace(parameter.unsafeGetTensorImpl(), numbers.size());
  }
  py::dict all;
  for (const auto& piece : pieces) {
    const py::int_& number = numbers.at(piece.of.unsafeGetTensorImpl());
    if (!all.contains(number)) all[number] = py::dict();
    all[number][py::str(piece.name)] = piece.name == "step" ? piece.tensor.to(at::kFloat) : piece.tensor;
  }
  return all;
}

void Twin::load_state(py::handle state_dict) const {
  const auto state = checkpoint::optimizer_from_python(from_python(state_dict, /*copies=*/true));
  checkpoint::load_optimizer_state(prepared_->unwrap(), state);
}

namespace {

void bind_checkpoints(py::class_<Accelerator>& trainer) {
  trainer
      .def(
          "save_state",
          [](const Accelerator& self, const std::string& path, bool background, const std::string& layout) {
            checkpoint::SaveOptions options{.background = background};
            if (layout == "accelerate") options.layout = checkpoint::Layout::kAccelerate;
            return self.save_state(path, options);
          },
          py::call_guard<WithoutGil>())
      .def(
          "load_state",
          [](const Accelerator& self, const std::string& path, bool strict) {
            return self.load_state(path, {.strict = strict}).path;
          },
          py::call_guard<WithoutGil>())
      .def("register_state",
           [](const Accelerator& self, const std::string& name, py::function state, py::function load_state) {
             const auto object = std::make_shared<PythonState>(std::move(state), std::move(load_state));
             self.checkpoints().register_object(name, object);
           })
      .def(
          "end_saves", [](const Accelerator& self) { self.checkpoints().end(); }, py::call_guard<WithoutGil>());
}

}  // namespace

void bind_trainer(py::module_& module) {
  py::class_<checkpoint::Save>(module, "SaveUnderWay", py::module_local())
      .def_property_readonly("path", [](const checkpoint::Save& self) { return self.path(); })
      .def_property_readonly("done", [](const checkpoint::Save& self) { return self.done(); })
      .def("wait", &checkpoint::Save::wait, py::call_guard<WithoutGil>());
  py::class_<DistributedModule>(module, "DistributedModule", py::module_local())
      .def(py::init<const Accelerator&, py::handle>(), py::arg("trainer"), py::arg("module"), py::keep_alive<1, 2>())
      .def("before_forward", &DistributedModule::before_forward);
  py::class_<HeldGradients>(module, "HeldGradients", py::module_local())
      .def(py::init<const Accelerator&, const DistributedModule&>())
      .def("close", &HeldGradients::close);
  py::class_<parallel::LocalSgd>(module, "LocalSgd", py::module_local())
      .def("step", &parallel::LocalSgd::step, py::call_guard<WithoutGil>())
      .def("finish", &parallel::LocalSgd::finish, py::call_guard<WithoutGil>());
  py::class_<Twin>(module, "Twin", py::module_local())
      .def(py::init<const Accelerator&, const std::string&, const py::list&>(), py::keep_alive<1, 2>())
      .def("set_options", &Twin::set_options)
      .def("step", &Twin::step, py::call_guard<WithoutGil>())
      .def("zero_grad", &Twin::zero_grad, py::call_guard<WithoutGil>())
      .def("state", &Twin::state)
      .def("load_state", &Twin::load_state);
  py::class_<Accelerator> trainer(module, "Trainer", py::module_local());
  trainer.def(py::init(&make_trainer))
      .def("backward", torch::wrap_pybind_function_no_gil(
                           [](const Accelerator& self, const at::Tensor& loss, std::optional<double> weight,
                              std::optional<at::Tensor> gradient, std::optional<bool> retain_graph, bool create_graph) {
                             const parallel::BackwardOptions options{.gradient = gradient.value_or(at::Tensor()),
                                                                     .retain_graph = retain_graph,
                                                                     .create_graph = create_graph,
                                                                     .weight = weight};
                             try {
                               self.backward(loss, options);
                             } catch (const Error&) {
                               throw_in_python(std::current_exception());
                             }
                           }))
      .def(
          "clip_grad_norm_",
          [](const Accelerator& self, const std::vector<at::Tensor>& parameters, double max_norm, double norm_type) {
            return self.clip_grad_norm_(parameters, max_norm, norm_type);
          },
          py::call_guard<WithoutGil>())
      .def(
          "clip_grad_value_",
          [](const Accelerator& self, const std::vector<at::Tensor>& parameters, double value) {
            self.clip_grad_value_(parameters, value);
          },
          py::call_guard<WithoutGil>())
      .def("local_sgd",
           [](const Accelerator& self, const DistributedModule& model, int64_t num_steps, bool enabled) {
             return self.local_sgd(model.prepared(), {.num_steps = num_steps, .enabled = enabled});
           })
      .def_property_readonly("shards", [](const Accelerator& self) { return self.sharding() != nullptr; });
  bind_checkpoints(trainer);
}

}  // namespace hasten::python
