// See find_used_models.h.
#include "parallel/parameters/find_used_models.h"

#include <torch/csrc/autograd/function.h>

#include <unordered_map>
#include <unordered_set>

#include "compat/torch_compat.h"

namespace hasten::parallel {

std::vector<bool> find_used_models(const at::Tensor& loss, const std::vector<std::vector<at::Tensor>>& parameters) {
  using torch::autograd::Node;
  std::unordered_map<const Node*, size_t> leaves;
  for (size_t list = 0; list < parameters.size(); ++list) {
    for (const at::Tensor& parameter : parameters[list]) {
      if (const auto leaf = torch::autograd::impl::try_get_grad_accumulator(parameter)) leaves[leaf.get()] = list;
    }
  }
  std::vector<bool> seen(parameters.size());
  size_t missing = parameters.size();
  std::unordered_set<const Node*> visited;
  std::vector<const Node*> open;
  const auto visit = [&](const Node* node) {
    if (node != nullptr && visited.insert(node).second) open.push_back(node);
  };
  if (loss.requires_grad()) visit(torch::autograd::impl::gradient_edge(loss).function.get());
  while (!open.empty() && missing > 0) {
    const Node* node = open.back();
    open.pop_back();
    if (const auto leaf = leaves.find(node); leaf != leaves.end() && !seen[leaf->second]) {
      seen[leaf->second] = true;
      --missing;
    }
    for (const auto& edge : node->next_edges()) visit(edge.function.get());
  }
  return seen;
}

}  // namespace hasten::parallel
