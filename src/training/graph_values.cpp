// See graph_values.h.
#include "hasten/training/graph_values.h"

#include <ATen/Functions.h>
#include <c10/util/Type.h>
#include <torch/csrc/autograd/functions/accumulate_grad.h>
#include <torch/nn/module.h>

#include <algorithm>
#include <cstring>
#include <map>
#include <unordered_map>

#include "hasten/core/error.h"
#include "hasten/training/image_values.h"

namespace hasten::tracking {
namespace {

std::string with_slashes(std::string path) {
  std::replace(path.begin(), path.end(), '.', '/');
  return path;
}

// "torch::nn::LinearImpl" -> "Linear".
std::string class_of(const torch::nn::Module& module) {
  std::string name = module.name();
  if (const size_t colon = name.rfind("::"); colon != std::string::npos) name.erase(0, colon + 2);
  if (name.size() > 4 && name.ends_with("Impl")) name.resize(name.size() - 4);
  return name;
}

std::string shape_of(const at::Tensor& tensor) {
  return tensor.defined() ? text('[', join(tensor.sizes()), ']') : std::string("[]");
}

class ModuleTree {
 public:
  std::vector<GraphNode> nodes = {};

  void add(const torch::nn::Module& module, const std::string& path) {
    const size_t own = nodes.size();
    nodes.push_back({path, class_of(module), {}});
    const auto leaf = [&](const std::string& name, const char* kind, const at::Tensor& tensor) {
      const std::string inner = path + "/" + with_slashes(name);
      nodes[own].inputs.push_back(inner);
      nodes.push_back({inner, text(kind, ' ', shape_of(tensor)), {}});
    };
    for (const auto& item : module.named_parameters(/*recurse=*/false)) leaf(item.key(), "Parameter", item.value());
    for (const auto& item : module.named_buffers(/*recurse=*/false)) leaf(item.key(), "Buffer", item.value());
    for (const auto& child : module.named_children()) {
      const std::string inner = path + "/" + with_slashes(child.key());
      nodes[own].inputs.push_back(inner);
      add(*child.value(), inner);
    }
  }
};

// The recorded operations, each after those whose results it took.
class Recorded {
 public:
  explicit Recorded(const torch::nn::Module* names) {
    if (names == nullptr) return;
    const std::string root = class_of(*names);
    for (const auto& item : names->named_parameters()) {
      names_.emplace(item.value().unsafeGetTensorImpl(), root + "/" + with_slashes(item.key()));
    }
  }

  std::vector<GraphNode> walk(torch::autograd::Node* root) {
    // Not recursive: a recurrent network has as many operations in a row as the sequence is long.
    std::vector<std::pair<torch::autograd::Node*, bool>> stack = {{root, false}};
    while (!stack.empty()) {
      const auto [node, is_done] = stack.back();
      stack.pop_back();
      if (is_done) {
        finish(node);
      } else if (seen_.emplace(node, "").second) {
        stack.emplace_back(node, true);
        for (uint32_t i = node->num_outputs(); i-- > 0;) {
          if (auto* next = node->next_edge(i).function.get(); next != nullptr && !seen_.count(next))
            stack.emplace_back(next, false);
        }
      }
    }
    return std::move(nodes_);
  }

 private:
  void finish(torch::autograd::Node* node) {
    GraphNode one;
    if (const auto* leaf = dynamic_cast<const torch::autograd::AccumulateGrad*>(node)) {
      const auto found = names_.find(leaf->variable.unsafeGetTensorImpl());
      one.name = found != names_.end() ? found->second : text("leaf/", num_leaves_++);
      one.op = text("Parameter ", shape_of(leaf->variable));
    } else {
      one.op = node->name();
      if (const size_t colon = one.op.rfind("::"); colon != std::string::npos) one.op.erase(0, colon + 2);
      one.name = text("operations/", one.op, '_', counts_[one.op]++);
      for (uint32_t i = 0; i < node->num_outputs(); ++i) {
        if (auto* next = node->next_edge(i).function.get()) one.inputs.push_back(seen_[next]);
      }
    }
    seen_[node] = one.name;
    nodes_.push_back(std::move(one));
  }

  std::unordered_map<const c10::TensorImpl*, std::string> names_;
  std::unordered_map<torch::autograd::Node*, std::string> seen_;
  std::map<std::string, int> counts_;
  int num_leaves_ = 0;
  std::vector<GraphNode> nodes_;
};

std::vector<GraphNode> recorded_graph(const at::Tensor& result, const torch::nn::Module* names) {
  if (!result.defined() || !result.grad_fn()) {
    throw UsageError(Origin{"tracking"}, "the graph of a tensor ",
                     result.defined() ? shape_of(result) : std::string("that is undefined"),
                     " for which autograd has recorded nothing; expected a result that needs a gradient. Compute it "
                     "outside no_grad.");
  }
  return Recorded(names).walk(result.grad_fn().get());
}

}  // namespace

std::vector<GraphNode> graph_of(const torch::nn::Module& module) {
  ModuleTree tree;
  tree.add(module, class_of(module));
  return std::move(tree.nodes);
}

std::vector<GraphNode> graph_of(const at::Tensor& result, const torch::nn::Module& names) {
  return recorded_graph(result, &names);
}

std::vector<GraphNode> graph_of(const at::Tensor& result) {
  return recorded_graph(result, nullptr);
}

Embedding embedding_of(const at::Tensor& points, const std::vector<std::string>& labels, const at::Tensor& images) {
  if (!points.defined() || points.dim() != 2 || points.numel() == 0) {
    throw UsageError(Origin{"tracking"}, "an embedding of a tensor of shape ", shape_of(points),
                     "; expected [points, dims]. Reshape it.");
  }
  Embedding embedding{.num_dims = points.size(1)};
  const at::Tensor rows = points.detach().to(at::kCPU, at::kFloat).contiguous();
  embedding.values.resize(static_cast<size_t>(rows.numel()));
  std::memcpy(embedding.values.data(), rows.const_data_ptr<float>(), rows.nbytes());
  for (const std::string& label : labels) embedding.metadata.push_back({label});
  if (images.defined()) embedding.images = ImagesOf<at::Tensor>::make(images)->take();
  return embedding;
}

}  // namespace hasten::tracking
