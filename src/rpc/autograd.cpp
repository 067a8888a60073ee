// AutogradContext, forwarded to the bridge; see autograd.h.
#include "hasten/rpc/autograd.h"

#include <torch/csrc/distributed/autograd/context/container.h>
#include <torch/types.h>

#include "hasten/core/error.h"
#include "rpc/agent_core.h"
#include "rpc/bridge.h"

namespace hasten::rpc {

AutogradContext::Scope::Scope(int64_t id)
    : before_(torch::distributed::autograd::DistAutogradContainer::currentContextId()) {
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

// Calls of a thread outside the context were not recorded, so that a pass would miss what they computed.
void require_entered(const AutogradContext& context, const char* what) {
  const int64_t current = torch::distributed::autograd::DistAutogradContainer::currentContextId();
  if (current == context.id()) return;
  throw UsageError(static_cast<AgentCore&>(*context.core()).origin(), what, "() of autograd context ", context.id(),
                   " in a thread that ",
                   current < 0 ? std::string("is in no context") : text("is in context ", current),
                   ": the calls that it makes are not recorded. Keep `auto scope = context.enter();` around them.");
}
}  // namespace

namespace detail {
void backward_from(const Reference& root, const AutogradContext& context, const BackwardOptions& options) {
  bridge_of(context.core());
  require_entered(context, "backward");
  CallSpec spec;
  spec.to = root.owner;
  spec.function = "hasten.backward";
  spec.signature = signature_hash(spec.function);
  spec.object = root.id;
  Packed packed;
  Writer writer(packed);
  write(writer, context);
  write(writer, options.retain_graph);
  auto reply = std::make_shared<ReplyState<void>>(root.core->executor());
  root.core->call(spec, std::move(packed), reply);
  Future<void>(reply).wait();
}
}  // namespace detail

void AutogradContext::backward(const std::vector<at::Tensor>& roots, const BackwardOptions& options) const {
  require_entered(*this, "backward");
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

void average_gradients(const AutogradContext& context, const std::vector<at::Tensor>& parameters,
                       const comm::Group& group) {
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
    if (has[i])
      context.set_gradient(parameter,
                           all.slice(0, offset, offset + parameter.numel()).reshape(parameter.sizes()).clone());
    offset += parameter.numel();
  }
}

}  // namespace hasten::rpc
