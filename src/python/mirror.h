// Mirror: a module of Python's as a tree of torch::nn modules, for the components that take these.
//
// The tree has Python's names and class names and the very parameters, one TensorImpl each. Buffers are handles of its
// own over Python's memory. A module that stands in several places of the tree is one module in the mirror as well.
#pragma once

#include <torch/nn/module.h>

#include <cstdint>
#include <memory>
#include <string>
#include <unordered_map>

#include "python/values.h"

namespace hasten::python {

class Mirror {
 public:
  /// With the GIL. Throws: UsageError, with its name, for a parameter that is no dense tensor of a CPU (DTensors, meta
  /// tensors, lazy ones).
  explicit Mirror(py::handle module);

  const std::shared_ptr<torch::nn::Module>& root() const noexcept;

  /// Takes over what has changed since: replaced parameters, buffers and modules, and modes. With the GIL. Throws: as
  /// the constructor.
  void follow(py::handle module);

 private:
  struct Node;
  struct Place;
  std::shared_ptr<Node> node_of(py::handle module);
  void visit(Node& node, py::handle module, const Place& place);
  void take_parameters(Node& node, py::handle dict, const Place& place);
  void take_buffers(Node& node, py::handle dict, const Place& place);
  void take_children(Node& node, py::handle dict);

  /// By the module's address, which only tells modules of one walk apart.
  std::unordered_map<PyObject*, std::shared_ptr<Node>> nodes_;
  std::shared_ptr<Node> root_;
  uint64_t walk_ = 0;
};

}  // namespace hasten::python
