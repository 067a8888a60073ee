// See engine_bridge.h: how calls are recorded in contexts, and how contexts end.
#include "rpc/engine/engine_bridge.h"

#include <torch/csrc/autograd/function.h>
#include <torch/csrc/autograd/function_hook.h>
#include <torch/csrc/distributed/autograd/rpc_messages/cleanup_autograd_context_req.h>
#include <torch/csrc/distributed/autograd/rpc_messages/propagate_gradients_req.h>
#include <torch/csrc/distributed/autograd/utils.h>
#include <torch/csrc/jit/frontend/script_type_parser.h>

#include <algorithm>

#include "hasten/core/error.h"

namespace hasten::rpc {
namespace {

class SettleHook final : public torch::autograd::FunctionPreHook {
 public:
  explicit SettleHook(std::function<void()> settle) : settle_(std::move(settle)) {}
  torch::autograd::variable_list operator()(const torch::autograd::variable_list& gradients) override {
    settle_();
    return gradients;
  }

 private:
  const std::function<void()> settle_;
};

/// libtorch's container has a single rank, for the life of the process.
struct ProcessClaim {
  std::mutex mutex;
  int rank = -1;
  bool taken = false;
  static ProcessClaim& get() {
    static auto* const claim = new ProcessClaim;  // never destroyed: agents may end at the very end
    return *claim;
  }
};

}  // namespace

void EngineBridge::start(const std::shared_ptr<AgentCore>&) {
  agent_ = std::make_shared<EngineAgent>(
      core_, [this](const trpc::Message& message, tda::ContextPtr& context) { return head_of(message, context); });
  tda::DistAutogradContainer::init(core_.rank());
  trpc::RpcAgent::setCurrentRpcAgent(agent_);
  agent_->setTypeResolver(
      std::make_shared<trpc::TypeResolver>([](const c10::QualifiedName& name) -> c10::StrongTypePtr {
        torch::jit::ScriptTypeParser parser;
        return {nullptr, parser.parseType(name.qualifiedName())};
      }));
  agent_->start();
}

void EngineBridge::stop() noexcept {
  const auto agent = std::exchange(agent_, nullptr);
  if (!agent) return;
  try {
    agent->shutdown();
    trpc::RpcAgent::setCurrentRpcAgent(nullptr);
  } catch (...) {
    // Nothing uses it any more.
  }
  const std::lock_guard lock(ProcessClaim::get().mutex);
  ProcessClaim::get().taken = false;
}

void EngineBridge::forget(int64_t id, const tda::ContextPtr& context) {
  StatePtr known;
  {
    const std::lock_guard lock(mutex_);
    const auto found = states_.find(id);
    if (found == states_.end()) return;
    known = found->second;
    states_.erase(found);
  }
  const auto has_unanswered = [&] {
    const std::lock_guard lock(known->mutex);
    return !known->unanswered.empty();
  };
  const std::string reason = words_of_release(id);
  if (context && has_unanswered())
    fail_pass(*context, std::make_exception_ptr(CommError(core_.origin(), "backward", reason)));
  std::map<uint64_t, ContextState::Refusal> unanswered;
  {
    const std::lock_guard lock(known->mutex);
    unanswered.swap(known->unanswered);
  }
  for (const auto& [number, refuse] : unanswered) refuse(reason);
}

void EngineBridge::record_call(Head& head, std::vector<at::Tensor>& tensors, int to) {
  head.context = current();
  if (head.context < 0) return;
  const auto context = existing(head.context);
  if (to == core_.rank()) return;
  auto& all = container();
  context->addKnownWorkerId(static_cast<trpc::worker_id_t>(to));
  head.message = all.newAutogradMessageId();
  head.reply_message = all.newAutogradMessageId();
  if (any_requires_grad(tensors)) add_send_function(context, head.message, tensors, to);
}

void EngineBridge::record_arrival(const Head& head, std::vector<at::Tensor>& tensors,
                                  const std::vector<bool>& requires_grad, int from) {
  // The maker releases the context. A message of another worker may come after the release.
  const int creator = creator_of(head.context);
  const bool exists = creator == core_.rank() || !core_.messages().why_gone(creator).empty();
  record_received(exists ? find(head.context) : container().getOrCreateContext(head.context), head.message, tensors,
                  requires_grad, from);
}

void EngineBridge::record_reply(Head& head, std::vector<at::Tensor>& tensors, int to) {
  const auto context = any_requires_grad(tensors) ? find(head.context) : nullptr;
  if (!context) return;
  context->addKnownWorkerId(static_cast<trpc::worker_id_t>(to));
  add_send_function(context, head.reply_message, tensors, to);
}

void EngineBridge::record_answer(const Head& head, std::vector<at::Tensor>& tensors,
                                 const std::vector<bool>& requires_grad, int from) {
  if (head.reply_message < 0) return;
  const bool any = std::find(requires_grad.begin(), requires_grad.end(), true) != requires_grad.end();
  if (!any && has_send_function(head)) record_failure(head, from);
  record_received(find(head.context), head.reply_message, tensors, requires_grad, from);
}

void EngineBridge::record_failure(const Head& head, int to) {
  if (head.message < 0 || !find(head.context)) return;
  const auto known = state(head.context);
  const std::lock_guard lock(known->mutex);
  known->failed.push_back({to, head.message, head.reply_message});
}

// Without a context, which was released, the tensors are plain ones.
void EngineBridge::record_received(const tda::ContextPtr& context, int64_t message, std::vector<at::Tensor>& tensors,
                                   const std::vector<bool>& requires_grad, int from) {
  if (!context) return;
  const auto mine = state(context->contextId());
  bool any = false;
  for (size_t i = 0; i < tensors.size() && i < requires_grad.size(); ++i) {
    if (!requires_grad[i] || !tensors[i].defined()) continue;
    tensors[i].set_requires_grad(true);
    any = true;
  }
  context->addKnownWorkerId(static_cast<trpc::worker_id_t>(from));
  if (!any) return;
  {
    const std::lock_guard lock(mine->mutex);
    mine->received_from[message] = from;
  }
  tda::addRecvRpcBackward({context->contextId(), message}, tensors, static_cast<trpc::worker_id_t>(from), {});
}

bool EngineBridge::has_send_function(const Head& head) {
  const auto known = known_state(head.context);
  if (!known) return false;
  const std::lock_guard lock(known->mutex);
  return known->sent_to.contains(head.message);
}

void EngineBridge::add_send_function(const tda::ContextPtr& context, int64_t message, std::vector<at::Tensor>& tensors,
                                     int to) {
  const int64_t id = context->contextId();
  const auto known = state(id);
  const std::lock_guard lock(known->mutex);
  if (known->settled.contains(message)) return;
  tda::addSendRpcBackward(context, {id, message}, tensors);
  known->sent_to[message] = to;
  context->retrieveSendFunction(message)->add_pre_hook(
      std::make_unique<SettleHook>([weak = core_.weak_from_this(), id] {
        const auto core = std::static_pointer_cast<AgentCore>(weak.lock());
        if (core && core->bridge()) static_cast<EngineBridge&>(*core->bridge()).settle_in_pass(id);
      }));
}

// The pass that messages of the current engine thread belong to, and its context.
Head EngineBridge::head_of(const trpc::Message& message, tda::ContextPtr& context) {
  Head head;
  head.kind = static_cast<uint16_t>(Kind::kEngine);
  if (message.type() == trpc::CLEANUP_AUTOGRAD_CONTEXT_REQ) {
    head.context = tda::CleanupAutogradContextReq::fromMessage(message)->getContextId();
    const std::lock_guard lock(mutex_);
    if (released_by_loss_.contains(head.context)) head.flags = kByLoss;
    return head;
  }
  context = tda::ThreadLocalDistAutogradContext::getContextPtr();
  const int64_t id = context
                         ? context->contextId()
                         : tda::PropagateGradientsReq::fromMessage(message)->getAutogradMetadata().autogradContextId;
  if (!context) context = existing(id);
  const auto known = known_state(id);
  if (!known) throw CommError(core_.origin(), "backward", words_of_release(id));
  const std::lock_guard lock(known->mutex);
  head.context = id;
  head.pass = known->pass;
  head.flags = known->retain_graph ? kRetainGraph : 0;
  return head;
}

std::vector<std::pair<at::Tensor, at::Tensor>> EngineBridge::gradients(int64_t context) const {
  std::vector<std::pair<at::Tensor, at::Tensor>> all;
  for (const auto& one : existing(context)->getGradients()) all.emplace_back(one.key(), one.value());
  return all;
}

at::Tensor EngineBridge::gradient(int64_t context, const at::Tensor& parameter) const {
  const auto all = existing(context)->getGradients();
  const auto found = all.find(parameter);
  return found == all.end() ? at::Tensor() : found->value();
}

bool EngineBridge::set_gradient(int64_t id, const at::Tensor& parameter, const at::Tensor& gradient) const {
  const auto context = existing(id);
  if (!context->getGradients().contains(parameter)) return false;
  context->runGradCallbackForVariable(parameter, [&](at::Tensor& known) {
    known = gradient;
    return true;
  });
  return true;
}

// The container first: a request that comes meanwhile either finds no context, or is refused by forget().
void EngineBridge::release(int64_t id) {
  const auto context = find(id);
  container().releaseContextIfPresent(id);
  forget(id, context);
}

bool EngineBridge::add_member(int64_t id, int worker) {
  const auto context = find(id);
  if (!context) return false;
  context->addKnownWorkerId(static_cast<trpc::worker_id_t>(worker));
  return find(id) != nullptr;
}

void EngineBridge::lost(int rank) {
  any_lost_ = true;
  std::map<int64_t, StatePtr> all;
  {
    const std::lock_guard lock(mutex_);
    all = states_;
  }
  for (const auto& [id, known] : all) {
    const auto context = find(id);
    if (!context) continue;
    const int creator = creator_of(id);
    if (creator != rank && !context->getKnownWorkerIds().contains(static_cast<trpc::worker_id_t>(rank))) continue;
    bool in_pass = false;
    {
      const std::lock_guard lock(known->mutex);
      in_pass = known->pass != 0;
    }
    if (in_pass) fail_pass(*context, lost_error(rank));
    if (creator == rank) {
      core_.pool().submit({[this, id = id] { release_by_loss(id); }, false});
    } else if (creator != core_.rank()) {
      core_.pool().submit({[this, id = id] { join_or_release(id); }, false});
    }
  }
}

// The release of a context travels from worker to worker, perhaps over the lost one. So its maker is notified that this
// worker has it, too.
void EngineBridge::join_or_release(int64_t id) {
  if (creator_of(id) == core_.rank()) return;
  core_.join_context(creator_of(id), id, [this, core = core_.self(), id](std::optional<bool> joined) {
    if (!joined) release_by_loss(id);
    if (joined == false) release(id);
  });
}

// The others that this worker knows in the context may have its maker still. They join there, or follow.
void EngineBridge::release_by_loss(int64_t id) {
  {
    const std::lock_guard lock(mutex_);
    released_by_loss_.insert(id);
  }
  release(id);
  const std::lock_guard lock(mutex_);
  released_by_loss_.erase(released_by_loss_.find(id));
}

std::unique_ptr<Bridge> Bridge::claim(AgentCore& core) {
  auto& claim = ProcessClaim::get();
  const std::lock_guard lock(claim.mutex);
  if (claim.taken || (claim.rank >= 0 && claim.rank != core.rank())) return nullptr;
  claim.taken = true;
  claim.rank = core.rank();
  return std::make_unique<EngineBridge>(core);
}

}  // namespace hasten::rpc
