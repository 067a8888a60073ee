// AutogradContext, forwarded to the bridge; see autograd.h.
#include "hasten/rpc/autograd.h"

#include <torch/csrc/distributed/autograd/context/container.h>
#include <torch/types.h>

#include "hasten/core/error.h"
#include "rpc/agent_core.h"
#include "rpc/bridge.h"

namespace hasten::rpc {

AutogradContext::Scope::Scope(int64_t id) : before_(torch::distributed::autograd::DistAutogradContainer::currentContextId()) {
  torch::distributed::autograd::DistAutogradContainer::forceCurrentContextId(id);
}

AutogradContext::Scope::~Scope() {
  torch::distributed::autograd::DistAutogradContainer::forceCurrentContextId(before_);
}

namespace {
Bridge& bridge_of(const std::shared_ptr<detail::Core>& core) {
  Bridge* const bridge = static_cast<AgentCore&>(*core).bridge();
  if (bridge == nullptr)
    throw UsageError({"rpc"}, "an autograd context was used at an agent that is not the first of its process.");
  return *bridge;
}
}  // namespace

void AutogradContext::backward(const std::vector<at::Tensor>& roots, const BackwardOptions& options) const {
  // Calls that have not ended would leave the graph incomplete.
  for (const auto* scope : detail::current_thread().scopes) {
    for (const auto& call : *scope) call->wait();
  }
  bridge_of(core_).backward(id_, roots, options.retain_graph);
}

std::vector<std::pair<at::Tensor, at::Tensor>> AutogradContext::gradients() const {
  return bridge_of(core_).gradients(id_);
}

at::Tensor AutogradContext::gradient(const at::Tensor& parameter) const {
  return bridge_of(core_).gradient(id_, parameter);
}

void AutogradContext::set_gradient(const at::Tensor& parameter, const at::Tensor& gradient) const {
  if (!bridge_of(core_).set_gradient(id_, parameter, gradient))
    throw UsageError({"rpc"}, "set_gradient() of a parameter that has no gradient in this context.");
}

void average_gradients(const AutogradContext& context, const std::vector<at::Tensor>& parameters, const comm::Group& group) {
  std::vector<at::Tensor> flat;
  std::vector<bool> has;
  for (const at::Tensor& parameter : parameters) {
    const at::Tensor gradient = context.gradient(parameter);
    has.push_back(gradient.defined());
    flat.push_back((gradient.defined() ? gradient : torch::zeros_like(parameter)).reshape({-1}));
  }
  if (flat.empty()) return;
  const at::NoGradGuard no_grad;
  const at::Tensor all = torch::cat(flat);
  group.all_reduce_(all, comm::ReduceOp::kMean);
  int64_t offset = 0;
  for (size_t i = 0; i < parameters.size(); ++i) {
    const at::Tensor& parameter = parameters[i];
    if (has[i]) context.set_gradient(parameter, all.slice(0, offset, offset + parameter.numel()).reshape(parameter.sizes()).clone());
    offset += parameter.numel();
  }
}

}  // namespace hasten::rpc
