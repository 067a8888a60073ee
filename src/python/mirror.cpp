// See python/mirror.h.
#include "python/mirror.h"

#include <torch/csrc/autograd/python_variable.h>
#include <torch/nn/modules/embedding.h>

#include <string_view>
#include <utility>
#include <vector>

#include "hasten/core/error.h"

namespace hasten::python {
namespace {

constexpr Origin kOrigin{"python"};

// Names a protected member of Module, which is replaced as a whole.
struct Parameters : torch::nn::Module {
  static auto& of(torch::nn::Module& module) { return module.*(&Parameters::parameters_); }
};

std::string_view text_of(PyObject* key) {
  Py_ssize_t size = 0;
  const char* data = PyUnicode_AsUTF8AndSize(key, &size);
  if (data == nullptr) throw py::error_already_set();
  return {data, static_cast<size_t>(size)};
}

// Calls `fn(name, value)` for all entries but None, until it returns false.
template <class Fn>
void for_each_entry(py::handle dict, const Fn& fn) {
  PyObject *key = nullptr, *value = nullptr;
  for (Py_ssize_t position = 0; PyDict_Next(dict.ptr(), &position, &key, &value);) {
    if (value != Py_None && !fn(text_of(key), value)) return;
  }
}

// Whether the dict's entries are those of the list: the names, and what `same` compares.
template <class List, class Same>
bool agrees(py::handle dict, const List& list, const Same& same) {
  size_t next = 0;
  bool all = true;
  for_each_entry(dict, [&](std::string_view name, PyObject* value) {
    all = next < list.size() && list[next].first == name && same(value, list[next].second);
    ++next;
    return all;
  });
  return all && next == list.size();
}

bool shows(const at::Tensor& own, const at::Tensor& given) {
  return own.scalar_type() == given.scalar_type() && own.sizes() == given.sizes() && own.strides() == given.strides() &&
         own.storage_offset() == given.storage_offset() &&
         own.storage().unsafeGetStorageImpl() == given.storage().unsafeGetStorageImpl();
}

std::string class_of(py::handle module) {
  return py::str(py::type::of(module).attr("__name__"));
}

// C++ finds a table with sparse gradients by its class and options.
template <class Impl, class Options>
std::shared_ptr<torch::nn::Module> table_of(py::handle module) {
  const auto weight = module.attr("weight").cast<at::Tensor>();
  const bool trains = weight.requires_grad();
  auto table = std::make_shared<Impl>(Options(weight.size(0), weight.size(1)).sparse(true)._weight(weight));
  weight.set_requires_grad(trains);
  return table;
}

std::shared_ptr<torch::nn::Module> module_like(py::handle module) {
  const auto nn = py::module_::import("torch.nn");
  const auto is_sparse = [&](const char* name) {
    return py::isinstance(module, nn.attr(name)) && module.attr("sparse").cast<bool>();
  };
  if (is_sparse("Embedding")) return table_of<torch::nn::EmbeddingImpl, torch::nn::EmbeddingOptions>(module);
  if (is_sparse("EmbeddingBag")) return table_of<torch::nn::EmbeddingBagImpl, torch::nn::EmbeddingBagOptions>(module);
  return std::make_shared<torch::nn::Module>(class_of(module));
}

void take_weight(torch::nn::Module& module, const at::Tensor& weight) {
  if (auto* table = module.as<torch::nn::EmbeddingImpl>()) table->weight = weight;
  if (auto* bag = module.as<torch::nn::EmbeddingBagImpl>()) bag->weight = weight;
}

void check(const at::Tensor& parameter, const std::string& name, py::handle object) {
  const auto refuse = [&](const std::string& is, const std::string& remedy) {
    throw UsageError(kOrigin, "distribute: parameter '", name, "' is ", is, ". ", remedy);
  };
  if (py::module_::import("torch.nn.parameter").attr("is_lazy")(object).cast<bool>()) {
    refuse("lazy, it has no shape yet", "Run a batch through the module first.");
  }
  if (parameter.unsafeGetTensorImpl()->is_python_dispatch()) {
    refuse("a " + class_of(object),
           "Expected a plain parameter: distribute does not go with fully_shard and parallelize_module.");
  }
  if (parameter.is_meta()) refuse("on meta, without values", "Give the module memory and values first (to_empty).");
  if (!parameter.is_cpu() || parameter.layout() != at::kStrided) {
    refuse(text("a tensor of layout ", parameter.layout(), " on ", parameter.device()),
           "Expected a dense one of the CPU; GPUs have DistributedDataParallel over nccl.");
  }
}

}  // namespace

// The module's name in the tree, joined only for errors.
struct Mirror::Place {
  const Place* above = nullptr;
  std::string_view name = {};

  std::string dotted(std::string_view leaf) const {
    if (above == nullptr) return std::string(leaf);
    return above->dotted(name) + "." + std::string(leaf);
  }
};

struct Mirror::Node {
  std::shared_ptr<torch::nn::Module> module;
  std::vector<std::pair<std::string, const c10::TensorImpl*>> parameters = {};
  std::vector<std::pair<std::string, at::Tensor>> buffers = {};
  std::vector<std::pair<std::string, std::shared_ptr<Node>>> children = {};
  uint64_t walk = 0;
};

Mirror::Mirror(py::handle module) {
  root_ = node_of(module);
  follow(module);
}

const std::shared_ptr<torch::nn::Module>& Mirror::root() const noexcept {
  return root_->module;
}

void Mirror::follow(py::handle module) {
  ++walk_;
  visit(*root_, module, {});
  std::erase_if(nodes_, [this](const auto& entry) { return entry.second->walk != walk_; });
}

std::shared_ptr<Mirror::Node> Mirror::node_of(py::handle module) {
  auto& node = nodes_[module.ptr()];
  if (!node) node = std::make_shared<Node>(Node{module_like(module)});
  return node;
}

void Mirror::visit(Node& node, py::handle module, const Place& place) {
  if (std::exchange(node.walk, walk_) == walk_) return;
  take_parameters(node, module.attr("_parameters"), place);
  take_buffers(node, module.attr("_buffers"), place);
  const py::object modules = module.attr("_modules");
  take_children(node, modules);
  // train() sets this module and all below, which then take over their own.
  const bool trains = module.attr("training").cast<bool>();
  if (node.module->is_training() != trains) node.module->train(trains);
  size_t next = 0;
  for_each_entry(modules, [&](std::string_view name, PyObject* child) {
    const Place below{&place, name};
    visit(*node.children[next++].second, child, below);
    return true;
  });
}

void Mirror::take_parameters(Node& node, py::handle dict, const Place& place) {
  const auto same = [](PyObject* value, const c10::TensorImpl* known) {
    return THPVariable_Check(value) && THPVariable_Unpack(value).unsafeGetTensorImpl() == known;
  };
  if (agrees(dict, node.parameters, same)) return;
  auto& own = Parameters::of(*node.module);
  own.clear();
  node.parameters.clear();
  for_each_entry(dict, [&](std::string_view name, PyObject* value) {
    const at::Tensor& tensor = THPVariable_Unpack(value);
    check(tensor, place.dotted(name), value);
    own.insert(std::string(name), tensor);
    node.parameters.emplace_back(name, tensor.unsafeGetTensorImpl());
    if (name == "weight") take_weight(*node.module, tensor);
    return true;
  });
}

void Mirror::take_buffers(Node& node, py::handle dict, const Place& place) {
  size_t next = 0;
  for_each_entry(dict, [&](std::string_view name, PyObject* value) {
    if (!THPVariable_Check(value)) {
      throw UsageError(kOrigin, "distribute: buffer '", place.dotted(name), "' is a ", class_of(value),
                       "; expected a tensor.");
    }
    const at::Tensor& given = THPVariable_Unpack(value);
    if (next < node.buffers.size() && node.buffers[next].first == name) {
      auto& own = node.buffers[next].second;
      if (!shows(own, given)) own.set_data(given.variable_data());
    } else if (next == node.buffers.size()) {
      node.buffers.emplace_back(name, node.module->register_buffer(std::string(name), given.variable_data()));
    } else {
      throw UsageError(kOrigin, "distribute: buffer '", place.dotted(name),
                       "' came between others after distribute. Register all buffers before.");
    }
    ++next;
    return true;
  });
}

void Mirror::take_children(Node& node, py::handle dict) {
  const auto same = [this](PyObject* value, const std::shared_ptr<Node>& known) {
    const auto found = nodes_.find(value);
    return found != nodes_.end() && found->second == known;
  };
  if (agrees(dict, node.children, same)) return;
  for (const auto& [name, child] : node.children) node.module->unregister_module(name);
  node.children.clear();
  for_each_entry(dict, [&](std::string_view name, PyObject* value) {
    node.children.emplace_back(name, node_of(value));
    node.module->register_module(std::string(name), node.children.back().second->module);
    return true;
  });
}

}  // namespace hasten::python
