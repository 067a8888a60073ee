// See bridge.h. libtorch's engine uses an RpcAgent; its messages travel as messages of hasten's agent.
#include "rpc/bridge.h"

#include <torch/csrc/autograd/function.h>
#include <torch/csrc/distributed/autograd/context/container.h>
#include <torch/csrc/distributed/autograd/engine/dist_engine.h>
#include <torch/csrc/distributed/autograd/rpc_messages/propagate_gradients_req.h>
#include <torch/csrc/distributed/autograd/utils.h>
#include <torch/csrc/distributed/rpc/request_callback_no_python.h>
#include <torch/csrc/distributed/rpc/rpc_agent.h>
#include <torch/csrc/jit/frontend/script_type_parser.h>
#include <torch/types.h>

#include <algorithm>
#include <map>
#include <mutex>
#include <set>
#include <unordered_set>
#include <utility>

#include "hasten/core/error.h"
#include "rpc/agent_core.h"
#include "rpc/settle.h"

namespace hasten::rpc {
namespace {

namespace trpc = torch::distributed::rpc;
namespace tda = torch::distributed::autograd;
using JitFuturePtr = c10::intrusive_ptr<trpc::JitFuture>;

std::exception_ptr plain_error(trpc::JitFuture& future) {
  try {
    std::rethrow_exception(future.exception_ptr());
  } catch (const c10::Error& error) {
    return std::make_exception_ptr(std::runtime_error(error.what_without_backtrace()));
  } catch (...) {
    return std::current_exception();
  }
}

/// This worker's data of a context beside libtorch's.
struct ContextState {
  std::mutex entering;  // the first message of a pass settles before any runs
  std::mutex mutex;
  uint32_t pass = 0;         // the latest: its starter, and its number there
  uint32_t num_started = 0;  // passes that this worker started
  std::set<uint32_t> entered;
  bool retain_graph = false;
  std::map<int64_t, int> received_from;  // recv function -> the worker that gets its gradient
  struct Failed {
    int to;
    int64_t message, reply_message;
  };
  std::vector<Failed> failed;
  std::set<int64_t> settled;  // notified before they existed
};
using StatePtr = std::shared_ptr<ContextState>;

bool any_requires_grad(const std::vector<at::Tensor>& tensors) {
  return std::any_of(tensors.begin(), tensors.end(),
                     [](const at::Tensor& t) { return t.defined() && t.requires_grad(); });
}

class EngineBridge;

class EngineAgent final : public trpc::RpcAgent {
 public:
  EngineAgent(EngineBridge& bridge, AgentCore& core);
  JitFuturePtr send(const trpc::WorkerInfo& to, c10::intrusive_ptr<trpc::Message> message, float timeout,
                    const trpc::DeviceMap& devices) override;
  JitFuturePtr run(trpc::Message& message) { return (*cb_)(message, {}); }
  void join(bool, float) override {}
  void sync() override {}
  void startImpl() override {}
  void shutdownImpl() override {}
  using RpcAgent::getWorkerInfo;
  const trpc::WorkerInfo& getWorkerInfo(const std::string& name) const override;
  const trpc::WorkerInfo& getWorkerInfo(trpc::worker_id_t id) const override;
  std::vector<trpc::WorkerInfo> getWorkerInfos() const override;
  std::unordered_map<std::string, std::string> getMetrics() override { return {}; }

 private:
  void addGilWaitTime(const std::chrono::microseconds) override {}
  EngineBridge& bridge_;
  mutable std::mutex mutex_;
  mutable std::map<trpc::worker_id_t, trpc::WorkerInfo> infos_;  // of those that were requested
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

class EngineBridge final : public Bridge {
 public:
  explicit EngineBridge(AgentCore& core) : core_(core) {}
  ~EngineBridge() override { stop(); }

  void start(const std::shared_ptr<AgentCore>&) override {
    agent_ = std::make_shared<EngineAgent>(*this, core_);
    tda::DistAutogradContainer::init(core_.rank());
    trpc::RpcAgent::setCurrentRpcAgent(agent_);
    agent_->setTypeResolver(
        std::make_shared<trpc::TypeResolver>([](const c10::QualifiedName& name) -> c10::StrongTypePtr {
          torch::jit::ScriptTypeParser parser;
          return {nullptr, parser.parseType(name.qualifiedName())};
        }));
    agent_->start();
  }

  void stop() noexcept override {
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

  AgentCore& core() { return core_; }
  static tda::DistAutogradContainer& container() { return tda::DistAutogradContainer::getInstance(); }

  StatePtr state(int64_t context) {
    const std::lock_guard lock(mutex_);
    auto& known = states_[context];
    if (!known) known = std::make_shared<ContextState>();
    return known;
  }
  void forget(int64_t context) {
    const std::lock_guard lock(mutex_);
    states_.erase(context);
  }

  int64_t current() const override { return tda::DistAutogradContainer::currentContextId(); }

  void record_call(Head& head, std::vector<at::Tensor>& tensors, int to) override {
    auto& all = container();
    if (!all.hasValidContext()) return;
    const auto context = all.currentContext();
    head.context = context->contextId();
    if (to == core_.rank()) return;
    context->addKnownWorkerId(static_cast<trpc::worker_id_t>(to));
    head.message = all.newAutogradMessageId();
    head.reply_message = all.newAutogradMessageId();
    if (any_requires_grad(tensors)) tda::addSendRpcBackward(context, {head.context, head.message}, tensors);
  }

  void record_arrival(const Head& head, std::vector<at::Tensor>& tensors, const std::vector<bool>& requires_grad,
                      int from) override {
    record_received(head.context, head.message, tensors, requires_grad, from);
  }

  void record_reply(Head& head, std::vector<at::Tensor>& tensors, int to) override {
    const auto known = state(head.context);
    const std::lock_guard lock(known->mutex);
    if (known->settled.contains(head.reply_message) || !any_requires_grad(tensors)) return;
    const auto context = container().getOrCreateContext(head.context);
    context->addKnownWorkerId(static_cast<trpc::worker_id_t>(to));
    tda::addSendRpcBackward(context, {head.context, head.reply_message}, tensors);
  }

  void record_answer(const Head& head, std::vector<at::Tensor>& tensors, const std::vector<bool>& requires_grad,
                     int from) override {
    if (head.reply_message >= 0) record_received(head.context, head.reply_message, tensors, requires_grad, from);
  }

  void record_failure(const Head& head, int to) override {
    if (head.message < 0) return;
    const auto known = state(head.context);
    const std::lock_guard lock(known->mutex);
    known->failed.push_back({to, head.message, head.reply_message});
  }

  void on_engine(int from, Decoded message) override;
  void on_settle(int from, const Head& head) override;
  void lost(int rank) override;

  int64_t new_context() override {
    const auto context = container().newContext();
    container().clearCurrentContext();
    return context->contextId();
  }

  void release(int64_t context) override {
    forget(context);
    container().releaseContextIfPresent(context);
  }

  void backward(int64_t id, const std::vector<at::Tensor>& roots, bool retain_graph) override;

  std::vector<std::pair<at::Tensor, at::Tensor>> gradients(int64_t context) const override {
    std::vector<std::pair<at::Tensor, at::Tensor>> all;
    for (const auto& one : container().retrieveContext(context)->getGradients())
      all.emplace_back(one.key(), one.value());
    return all;
  }
  at::Tensor gradient(int64_t context, const at::Tensor& parameter) const override {
    const auto all = container().retrieveContext(context)->getGradients();
    const auto found = all.find(parameter);
    return found == all.end() ? at::Tensor() : found->value();
  }
  bool set_gradient(int64_t id, const at::Tensor& parameter, const at::Tensor& gradient) const override {
    const auto context = container().retrieveContext(id);
    if (!context->getGradients().contains(parameter)) return false;
    context->runGradCallbackForVariable(parameter, [&](at::Tensor& known) {
      known = gradient;
      return true;
    });
    return true;
  }

  /// Returns the pass that messages of the current engine thread belong to.
  Head head_of_pass(const trpc::Message& message) {
    const auto context = tda::ThreadLocalDistAutogradContext::getContextPtr();
    const int64_t id = context
                           ? context->contextId()
                           : tda::PropagateGradientsReq::fromMessage(message)->getAutogradMetadata().autogradContextId;
    const auto known = state(id);
    const std::lock_guard lock(known->mutex);
    Head head;
    head.kind = static_cast<uint16_t>(Kind::kEngine);
    head.context = id;
    head.pass = known->pass;
    head.flags = known->retain_graph ? kRetainGraph : 0;
    return head;
  }

 private:
  void record_received(int64_t context, int64_t message, std::vector<at::Tensor>& tensors,
                       const std::vector<bool>& requires_grad, int from) {
    bool any = false;
    for (size_t i = 0; i < tensors.size() && i < requires_grad.size(); ++i) {
      if (!requires_grad[i] || !tensors[i].defined()) continue;
      tensors[i].set_requires_grad(true);
      any = true;
    }
    const auto known = container().getOrCreateContext(context);
    known->addKnownWorkerId(static_cast<trpc::worker_id_t>(from));
    if (!any) return;
    {
      const auto mine = state(context);
      const std::lock_guard lock(mine->mutex);
      mine->received_from[message] = from;
    }
    tda::addRecvRpcBackward({context, message}, tensors, static_cast<trpc::worker_id_t>(from), {});
  }

  void execute(int64_t id, const std::vector<at::Tensor>& roots, bool retain_graph);
  void enter_pass(int64_t id, uint32_t pass, bool retain_graph);
  std::function<void()> plan_settlement(int64_t id, uint32_t pass, bool retain_graph,
                                        const std::vector<at::Tensor>& roots);
  JitFuturePtr run_with_zeros(const tda::ContextPtr& context, int64_t message, bool retain_graph);
  JitFuturePtr ask_to_settle(int to, int64_t context, int64_t message, uint32_t pass, bool retain_graph);

  AgentCore& core_;
  std::shared_ptr<EngineAgent> agent_;
  std::mutex mutex_;
  std::map<int64_t, StatePtr> states_;
};

EngineAgent::EngineAgent(EngineBridge& bridge, AgentCore& core)
    : RpcAgent(trpc::WorkerInfo(core.worker(core.rank()).name, static_cast<int64_t>(core.rank())),
               std::make_unique<trpc::RequestCallbackNoPython>(), std::chrono::milliseconds(0)),
      bridge_(bridge) {}

const trpc::WorkerInfo& EngineAgent::getWorkerInfo(const std::string& name) const {
  return getWorkerInfo(static_cast<trpc::worker_id_t>(bridge_.core().rank_of(name)));
}

const trpc::WorkerInfo& EngineAgent::getWorkerInfo(trpc::worker_id_t id) const {
  const std::lock_guard lock(mutex_);
  const auto known = infos_.find(id);
  if (known != infos_.end()) return known->second;
  return infos_.emplace(id, trpc::WorkerInfo(bridge_.core().worker(id).name, id)).first->second;
}

std::vector<trpc::WorkerInfo> EngineAgent::getWorkerInfos() const {
  std::vector<trpc::WorkerInfo> all;
  for (const int rank : bridge_.core().workers().ranks())
    all.push_back(getWorkerInfo(static_cast<trpc::worker_id_t>(rank)));
  return all;
}

detail::Packed packed_message(const trpc::Message& message) {
  detail::Packed packed;
  packed.bytes.append(message.payload().data(), message.payload().size());
  packed.tensors = message.tensors();
  return packed;
}

c10::intrusive_ptr<trpc::Message> message_of(Decoded& decoded) {
  const std::string& bytes = decoded.packed.bytes;
  std::vector<char> payload(bytes.begin() + static_cast<std::ptrdiff_t>(decoded.packed.begin), bytes.end());
  return c10::make_intrusive<trpc::Message>(std::move(payload), std::move(decoded.packed.tensors),
                                            static_cast<trpc::MessageType>(decoded.head.function));
}

JitFuturePtr EngineAgent::send(const trpc::WorkerInfo& to, c10::intrusive_ptr<trpc::Message> message, float,
                               const trpc::DeviceMap&) {
  if (to.id_ == getWorkerInfo().id_) return run(*message);
  auto future = c10::make_intrusive<trpc::JitFuture>(c10::AnyClassType::get());
  Head head;
  if (message->type() == trpc::BACKWARD_AUTOGRAD_REQ) head = bridge_.head_of_pass(*message);
  head.kind = static_cast<uint16_t>(Kind::kEngine);
  head.function = static_cast<uint32_t>(message->type());
  bridge_.core().ask(to.id_, head, packed_message(*message), [future](std::exception_ptr error, Decoded* answer) {
    if (error) {
      future->setError(error);
      return;
    }
    auto reply = message_of(*answer);
    if (reply->type() == trpc::EXCEPTION) {
      future->setError(
          std::make_exception_ptr(std::runtime_error(std::string(reply->payload().begin(), reply->payload().end()))));
      return;
    }
    auto storages = reply->getStorages();
    future->markCompleted(c10::IValue(std::move(reply)), std::move(storages));
  });
  return future;
}

// Graphs of a few nodes run in the thread that has them. The pool's threads may wait for each other otherwise.
void EngineBridge::on_engine(int from, Decoded message) {
  auto shared = std::make_shared<Decoded>(std::move(message));
  core_.pool().submit({[this, from, shared] {
                         const Head head = shared->head;
                         const auto reply = [this, from, call = head.call](trpc::MessageType type,
                                                                           detail::Packed packed) {
                           Head answer;
                           answer.kind = static_cast<uint16_t>(Kind::kEngineReply);
                           answer.call = call;
                           answer.function = static_cast<uint32_t>(type);
                           core_.send(from, answer, std::move(packed));
                         };
                         const auto fail = [reply](const std::string& words) {
                           detail::Packed packed;
                           packed.bytes += words;
                           reply(trpc::EXCEPTION, std::move(packed));
                         };
                         try {
                           auto request = message_of(*shared);
                           if (request->type() == trpc::BACKWARD_AUTOGRAD_REQ) {
                             enter_pass(head.context, head.pass, (head.flags & kRetainGraph) != 0);
                           } else if (request->type() == trpc::CLEANUP_AUTOGRAD_CONTEXT_REQ) {
                             if (head.context >= 0) forget(head.context);
                           } else {
                             throw DataError(Origin{"rpc"}, "message", "an engine message of another type came");
                           }
                           agent_->run(*request)->addCallback([reply, fail](trpc::JitFuture& future) {
                             if (future.hasError()) {
                               try {
                                 std::rethrow_exception(plain_error(future));
                               } catch (const std::exception& error) {
                                 fail(error.what());
                               }
                               return;
                             }
                             const auto answer = future.value().toCustomClass<trpc::Message>();
                             reply(answer->type(), packed_message(*answer));
                           });
                         } catch (const c10::Error& error) {
                           fail(error.what_without_backtrace());
                         } catch (const std::exception& error) {
                           fail(error.what());
                         }
                       },
                       false});
}

JitFuturePtr EngineBridge::ask_to_settle(int to, int64_t context, int64_t message, uint32_t pass, bool retain_graph) {
  auto future = c10::make_intrusive<trpc::JitFuture>(c10::NoneType::get());
  Head head;
  head.kind = static_cast<uint16_t>(Kind::kSettle);
  head.flags = retain_graph ? kRetainGraph : 0;
  head.context = context;
  head.message = message;
  head.pass = pass;
  core_.ask(to, head, {}, [future](std::exception_ptr error, Decoded* answer) {
    if (!error && static_cast<Kind>(answer->head.kind) == Kind::kError) {
      Reader reader(answer->packed, nullptr);
      error = std::make_exception_ptr(std::runtime_error(reader.string()));
    }
    if (error) {
      future->setError(error);
    } else {
      future->markCompleted(c10::IValue());
    }
  });
  return future;
}

// Runs a send function whose gradients are not computed.
JitFuturePtr EngineBridge::run_with_zeros(const tda::ContextPtr& context, int64_t message, bool retain_graph) {
  const auto functions = context->sendFunctions();
  const auto found = functions.find(message);
  if (found == functions.end()) return {};
  torch::autograd::variable_list zeros;
  for (uint32_t i = 0; i < found->second->num_inputs(); ++i)
    zeros.push_back(found->second->input_metadata(i).zeros_like());
  found->second->setGrads(zeros);
  return tda::DistEngine::getInstance().executeSendFunctionAsync(context, found->second, retain_graph);
}

// The first message of a pass settles what no gradient reaches, before any message of it runs.
void EngineBridge::enter_pass(int64_t id, uint32_t pass, bool retain_graph) {
  const auto known = state(id);
  const std::lock_guard entering(known->entering);
  {
    const std::lock_guard lock(known->mutex);
    if (!known->entered.insert(pass).second) return;
    known->pass = pass;
    known->retain_graph = retain_graph;
  }
  plan_settlement(id, pass, retain_graph, {})();
}

// Walks the graph now. The returned function sends the settlements.
std::function<void()> EngineBridge::plan_settlement(int64_t id, uint32_t pass, bool retain_graph,
                                                    const std::vector<at::Tensor>& roots) {
  const auto known = state(id);
  const auto context = container().getOrCreateContext(id);
  std::vector<ContextState::Failed> failed;
  std::map<int64_t, int> received_from;
  {
    const std::lock_guard lock(known->mutex);
    failed = known->failed;
    received_from = known->received_from;
  }
  std::vector<torch::autograd::Node*> starts;
  for (const at::Tensor& root : roots) starts.push_back(root.grad_fn().get());
  const auto sends = context->sendFunctions();
  for (const auto& [message, function] : sends) starts.push_back(function.get());
  const auto receives = context->recvFunctions();
  std::map<torch::autograd::Node*, int64_t> awaited;
  for (const auto& [message, function] : receives) awaited.emplace(function.get(), message);
  const auto next_of = [](torch::autograd::Node* node) {
    std::vector<torch::autograd::Node*> next;
    for (const auto& edge : node->next_edges()) {
      if (edge.function) next.push_back(edge.function.get());
    }
    return next;
  };
  std::vector<std::pair<int, int64_t>> to_ask;
  for (const int64_t message : unreached(starts, awaited, next_of)) {
    const auto from = received_from.find(message);
    if (from != received_from.end()) to_ask.emplace_back(from->second, message);
  }
  return [this, id, pass, retain_graph, context, failed, to_ask] {
    for (const auto& [to, message] : to_ask)
      context->addOutstandingRpc(ask_to_settle(to, id, message, pass, retain_graph));
    for (const auto& one : failed) {
      if (!core_.messages().why_gone(one.to).empty()) {
        if (const auto future = run_with_zeros(context, one.message, retain_graph)) context->addOutstandingRpc(future);
      } else {
        context->addOutstandingRpc(ask_to_settle(one.to, id, one.reply_message, pass, retain_graph));
      }
    }
  };
}

void EngineBridge::on_settle(int from, const Head& head) {
  core_.pool().submit({[this, from, head] {
                         const auto answer = [this, from, call = head.call](const std::string& error) {
                           Head reply;
                           reply.kind = static_cast<uint16_t>(error.empty() ? Kind::kSettled : Kind::kError);
                           reply.call = call;
                           detail::Packed packed;
                           Writer(packed).string(error);
                           core_.send(from, reply, std::move(packed));
                         };
                         try {
                           const bool retain_graph = (head.flags & kRetainGraph) != 0;
                           enter_pass(head.context, head.pass, retain_graph);
                           {
                             const auto known = state(head.context);
                             const std::lock_guard lock(known->mutex);
                             known->settled.insert(head.message);
                           }
                           const auto future =
                               run_with_zeros(container().getOrCreateContext(head.context), head.message, retain_graph);
                           if (!future) {
                             answer("");
                             return;
                           }
                           future->addCallback([answer](trpc::JitFuture& done) {
                             answer(done.hasError() ? done.tryRetrieveErrorMessage() : "");
                           });
                         } catch (const std::exception& error) {
                           answer(error.what());
                         }
                       },
                       false});
}

// A pass that waits for gradients of the lost worker ends with an error.
void EngineBridge::lost(int rank) {
  std::vector<int64_t> contexts;
  {
    const std::lock_guard lock(mutex_);
    for (const auto& [id, known] : states_) contexts.push_back(id);
  }
  for (const int64_t id : contexts) {
    const auto context = container().getOrCreateContext(id);
    const auto known = context->getKnownWorkerIds();
    if (!known.contains(static_cast<trpc::worker_id_t>(rank))) continue;
    auto future = c10::make_intrusive<trpc::JitFuture>(c10::NoneType::get());
    const auto state_of = state(id);
    {
      const std::lock_guard lock(state_of->mutex);
      if (state_of->pass == 0) continue;
    }
    context->addOutstandingRpc(future);
    future->setError(
        std::make_exception_ptr(CommError(core_.origin(), "backward", core_.described(rank),
                                          " was lost in the backward pass: ", core_.messages().why_gone(rank), ".")));
  }
}

// In a handler another thread takes this one's place: the pass needs threads for the messages of its partners.
void EngineBridge::execute(int64_t id, const std::vector<at::Tensor>& roots, bool retain_graph) {
  std::exception_ptr error;
  const auto run = [&] {
    try {
      tda::DistEngine::getInstance().execute(id, roots, retain_graph);
    } catch (...) {
      error = std::current_exception();
    }
  };
  if (!detail::current_thread().in_pool || !core_.pool().replaced_while(run)) run();
  if (error) std::rethrow_exception(error);
}

void EngineBridge::backward(int64_t id, const std::vector<at::Tensor>& roots, bool retain_graph) {
  for (size_t i = 0; i < roots.size(); ++i) {
    const at::Tensor& root = roots[i];
    if (root.defined() && root.requires_grad() && root.numel() == 1) continue;
    throw UsageError(core_.origin(), "root ", i, " of backward() is ",
                     !root.defined()     ? "undefined"
                     : root.numel() != 1 ? "no scalar"
                                         : "a tensor that needs no gradient",
                     "; expected scalars that were computed from parameters in this context.");
  }
  if (roots.empty()) throw UsageError(core_.origin(), "backward() has no roots; expected at least one scalar.");
  uint32_t pass = 0;
  {
    const auto known = state(id);
    const std::lock_guard lock(known->mutex);
    pass = known->pass = (static_cast<uint32_t>(core_.rank()) + 1) << 16 | (++known->num_started & 0xffff);
    known->entered.insert(pass);
    known->retain_graph = retain_graph;
  }
  // Partners answer a settlement with gradients at once, and the engine must have this pass before they come. So the
  // settlements are sent when the first root's function runs.
  const auto settle = plan_settlement(id, pass, retain_graph, roots);
  const auto hook = roots[0].register_hook([settle](const at::Tensor& gradient) {
    settle();
    return gradient;
  });
  struct Unhook {
    const at::Tensor& root;
    unsigned hook;
    ~Unhook() { root.remove_hook(hook); }
  } const unhook{roots[0], hook};
  try {
    execute(id, roots, retain_graph);
  } catch (const hasten::Error&) {
    throw;
  } catch (const c10::Error& error) {
    throw CommError(core_.origin(), "backward", "the backward pass failed: ", error.what_without_backtrace());
  } catch (const std::exception& error) {
    throw CommError(core_.origin(), "backward", "the backward pass failed: ", error.what());
  }
}

}  // namespace

std::unique_ptr<Bridge> Bridge::claim(AgentCore& core) {
  auto& claim = ProcessClaim::get();
  const std::lock_guard lock(claim.mutex);
  if (claim.taken || (claim.rank >= 0 && claim.rank != core.rank())) return nullptr;
  claim.taken = true;
  claim.rank = core.rank();
  return std::make_unique<EngineBridge>(core);
}

}  // namespace hasten::rpc
