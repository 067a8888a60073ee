// See weightless_backward.h.
#include "parallel/statistics/weightless_backward.h"

#include <torch/csrc/autograd/autograd.h>
#include <torch/csrc/autograd/function.h>
#include <torch/csrc/autograd/functions/accumulate_grad.h>
#include <torch/types.h>

#include <vector>

#include "compat/torch_compat.h"
#include "parallel/statistics/global_batch_norm.h"

namespace hasten::parallel {
namespace {

using torch::autograd::Node;

// Found in the graph of a loss.
struct Reached {
  std::vector<c10::intrusive_ptr<SyncGroup>> groups;
  std::vector<at::Tensor> leaves;
};

Reached reached_from(const at::Tensor& loss) {
  Reached reached;
  std::unordered_set<Node*> visited;
  std::vector<Node*> open;
  const auto visit = [&](Node* node) {
    if (node != nullptr && visited.insert(node).second) open.push_back(node);
  };
  visit(torch::autograd::impl::gradient_edge(loss).function.get());
  while (!open.empty()) {
    Node* node = open.back();
    open.pop_back();
    if (auto group = sync_group_of(*node)) reached.groups.push_back(std::move(group));
    if (auto* leaf = dynamic_cast<torch::autograd::AccumulateGrad*>(node)) reached.leaves.push_back(leaf->variable);
    for (const auto& edge : node->next_edges()) visit(edge.function.get());
  }
  return reached;
}

// While it exists, the groups exchange zeros in the place of gradients.
class SilentScope {
 public:
  explicit SilentScope(const std::vector<c10::intrusive_ptr<SyncGroup>>& groups) : groups_(groups) { set(true); }
  ~SilentScope() { set(false); }
  SilentScope(const SilentScope&) = delete;
  SilentScope& operator=(const SilentScope&) = delete;

 private:
  void set(bool silent) const noexcept {
    for (const auto& group : groups_) group->set_silent(silent);
  }
  const std::vector<c10::intrusive_ptr<SyncGroup>>& groups_;
};

}  // namespace

void weightless_backward(const at::Tensor& loss, const WeightlessOptions& options) {
  if (!loss.requires_grad()) return;
  const Reached reached = reached_from(loss);
  if (reached.groups.empty() || reached.leaves.empty()) return;
  {
    const SilentScope scope(reached.groups);
    // Captured gradients leave those of the leaves, and the hooks of their exchange, alone.
    torch::autograd::grad({loss}, reached.leaves, {at::zeros_like(loss)}, options.retain_graph, options.create_graph,
                          /*allow_unused=*/true);
  }
  for (const at::Tensor& leaf : reached.leaves) {
    if (!options.parameters.contains(leaf.unsafeGetTensorImpl()) && !leaf.grad().defined())
      leaf.mutable_grad() = at::zeros_like(leaf);
  }
}

}  // namespace hasten::parallel
