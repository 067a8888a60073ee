// See bridge.h. libtorch's engine uses an RpcAgent; its messages travel as messages of hasten's agent.
#include "rpc/bridge.h"

#include <torch/csrc/autograd/function.h>
#include <torch/csrc/autograd/function_hook.h>
#include <torch/csrc/distributed/autograd/context/container.h>
#include <torch/csrc/distributed/autograd/engine/dist_engine.h>
#include <torch/csrc/distributed/autograd/rpc_messages/cleanup_autograd_context_req.h>
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
#include "hasten/rpc/agent.h"
#include "rpc/agent_core.h"
#include "rpc/settle.h"

namespace hasten::rpc {
namespace {

namespace trpc = torch::distributed::rpc;
namespace tda = torch::distributed::autograd;
using JitFuturePtr = c10::intrusive_ptr<trpc::JitFuture>;

/// The words of the exception that is being handled, without libtorch's backtrace.
std::string words_of_current() {
  try {
    throw;
  } catch (const c10::Error& error) {
    return error.what_without_backtrace();
  } catch (const std::exception& error) {
    return error.what();
  } catch (...) {
    return "an object that is no std::exception";
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
  std::map<int64_t, int> sent_to;        // send function -> the worker that its gradient comes from
  struct Failed {
    int to;
    int64_t message, reply_message;
  };
  std::vector<Failed> failed;  // calls without an output that needs a gradient
  std::function<void()> plan;  // the settlement of the latest pass, until a function of it runs
  std::set<int64_t> settled;   // notified before they existed
  using Refusal = std::function<void(const std::string& words)>;
  std::map<uint64_t, Refusal> unanswered;  // requests of other workers' engines
  uint64_t next_request = 0;
};
using StatePtr = std::shared_ptr<ContextState>;

/// The worker that made a context, by libtorch's numbering.
int creator_of(int64_t context) {
  return static_cast<int>(context >> 48);
}

bool any_requires_grad(const std::vector<at::Tensor>& tensors) {
  return std::any_of(tensors.begin(), tensors.end(),
                     [](const at::Tensor& t) { return t.defined() && t.requires_grad(); });
}

class EngineBridge;

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
  /// Null if there is none.
  StatePtr known_state(int64_t context) {
    const std::lock_guard lock(mutex_);
    const auto found = states_.find(context);
    return found == states_.end() ? nullptr : found->second;
  }
  /// Null if it was released.
  static tda::ContextPtr find(int64_t context) {
    try {
      return container().retrieveContext(context);
    } catch (const c10::Error&) {
      return nullptr;
    }
  }
  tda::ContextPtr existing(int64_t context) const {
    if (auto found = find(context)) return found;
    throw CommError(core_.origin(), "backward", words_of_release(context));
  }
  std::string words_of_release(int64_t context) const {
    return text(core_.described(core_.rank()), " has released autograd context ", context, " of ",
                core_.described(creator_of(context)), ".");
  }
  /// Drops this worker's data of a context. Ends its pass, which cannot end by itself any more.
  void forget(int64_t id, const tda::ContextPtr& context) {
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
    const std::string words = words_of_release(id);
    if (context && has_unanswered())
      fail_pass(*context, std::make_exception_ptr(CommError(core_.origin(), "backward", words)));
    std::map<uint64_t, ContextState::Refusal> unanswered;
    {
      const std::lock_guard lock(known->mutex);
      unanswered.swap(known->unanswered);
    }
    for (const auto& [number, refuse] : unanswered) refuse(words);
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
    if (any_requires_grad(tensors)) add_send_function(context, head.message, tensors, to);
  }

  void record_arrival(const Head& head, std::vector<at::Tensor>& tensors, const std::vector<bool>& requires_grad,
                      int from) override {
    // Who made the context releases it. What it, or another one for it, sent before its end comes too late.
    const int creator = creator_of(head.context);
    const bool exists = creator == core_.rank() || !core_.messages().why_gone(creator).empty();
    record_received(exists ? find(head.context) : container().getOrCreateContext(head.context), head.message, tensors,
                    requires_grad, from);
  }

  void record_reply(Head& head, std::vector<at::Tensor>& tensors, int to) override {
    const auto context = any_requires_grad(tensors) ? find(head.context) : nullptr;
    if (!context) return;
    context->addKnownWorkerId(static_cast<trpc::worker_id_t>(to));
    add_send_function(context, head.reply_message, tensors, to);
  }

  void record_answer(const Head& head, std::vector<at::Tensor>& tensors, const std::vector<bool>& requires_grad,
                     int from) override {
    if (head.reply_message < 0) return;
    const bool any = std::find(requires_grad.begin(), requires_grad.end(), true) != requires_grad.end();
    if (!any && has_send_function(head)) record_failure(head, from);
    record_received(find(head.context), head.reply_message, tensors, requires_grad, from);
  }

  void record_failure(const Head& head, int to) override {
    if (head.message < 0 || !find(head.context)) return;
    const auto known = state(head.context);
    const std::lock_guard lock(known->mutex);
    known->failed.push_back({to, head.message, head.reply_message});
  }

  void on_engine(int from, Decoded message) override;
  void on_settle(int from, const Head& head) override;
  void lost(int rank) override;
  bool add_member(int64_t id, int worker) override {
    const auto context = find(id);
    if (!context) return false;
    context->addKnownWorkerId(static_cast<trpc::worker_id_t>(worker));
    return find(id) != nullptr;
  }

  int64_t num_contexts() const override { return static_cast<int64_t>(container().numAutogradContexts()); }
  int64_t new_context() override {
    const auto context = container().newContext();
    container().clearCurrentContext();
    return context->contextId();
  }

  // The container first: a request that comes meanwhile either finds no context, or is refused by forget().
  void release(int64_t id) override {
    const auto context = find(id);
    container().releaseContextIfPresent(id);
    forget(id, context);
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

  /// Returns the pass that messages of the current engine thread belong to, and its context.
  Head head_of_pass(const trpc::Message& message, tda::ContextPtr& context) {
    context = tda::ThreadLocalDistAutogradContext::getContextPtr();
    const int64_t id = context
                           ? context->contextId()
                           : tda::PropagateGradientsReq::fromMessage(message)->getAutogradMetadata().autogradContextId;
    if (!context) context = existing(id);
    const auto known = known_state(id);
    if (!known) throw CommError(core_.origin(), "backward", words_of_release(id));
    const std::lock_guard lock(known->mutex);
    Head head;
    head.kind = static_cast<uint16_t>(Kind::kEngine);
    head.context = id;
    head.pass = known->pass;
    head.flags = known->retain_graph ? kRetainGraph : 0;
    return head;
  }

 private:
  // Without a context, which was released, the tensors are plain ones.
  void record_received(const tda::ContextPtr& context, int64_t message, std::vector<at::Tensor>& tensors,
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

  using Reply = std::function<void(trpc::MessageType, detail::Packed)>;
  static void refuse(const Reply& reply, const std::string& words) {
    detail::Packed packed;
    packed.bytes += words;
    reply(trpc::EXCEPTION, std::move(packed));
  }
  static void answer_with(trpc::JitFuture& future, const Reply& reply);
  bool has_send_function(const Head& head) {
    const auto known = known_state(head.context);
    if (!known) return false;
    const std::lock_guard lock(known->mutex);
    return known->sent_to.contains(head.message);
  }
  void run_engine_message(int from, Decoded& message);
  void run_gradients(const Head& head, trpc::Message& request, const Reply& reply);
  void run_settlement(int from, const Head& head);
  void settle_in_pass(int64_t id);
  void add_send_function(const tda::ContextPtr& context, int64_t message, std::vector<at::Tensor>& tensors, int to);
  void join_or_release(int64_t id);

  void execute(int64_t id, const std::vector<at::Tensor>& roots, bool retain_graph);
  void enter_pass(int64_t id, uint32_t pass, bool retain_graph);
  std::function<void()> plan_settlement(int64_t id, uint32_t pass, bool retain_graph,
                                        const std::vector<at::Tensor>& roots);
  JitFuturePtr run_with_zeros(const tda::ContextPtr& context, int64_t message, bool retain_graph);
  JitFuturePtr ask_to_settle(const tda::ContextPtr& context, int to, int64_t message, uint32_t pass, bool retain_graph);
  static void fail_pass(tda::DistAutogradContext& context, const std::exception_ptr& error);
  void fail_if_broken(tda::DistAutogradContext& context, ContextState& known);
  std::exception_ptr lost_error(int rank) const;

  AgentCore& core_;
  std::shared_ptr<EngineAgent> agent_;
  std::mutex mutex_;
  std::map<int64_t, StatePtr> states_;
  std::atomic<bool> any_lost_ = false;
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
  tda::ContextPtr context;  // libtorch's callback on an error uses it
  if (message->type() == trpc::BACKWARD_AUTOGRAD_REQ) head = bridge_.head_of_pass(*message, context);
  head.kind = static_cast<uint16_t>(Kind::kEngine);
  head.function = static_cast<uint32_t>(message->type());
  const auto answered = [future, context, at = bridge_.core().described(to.id_)](std::exception_ptr error,
                                                                                 Decoded* answer) {
    if (error) {
      future->setError(error);
      return;
    }
    auto reply = message_of(*answer);
    if (reply->type() == trpc::EXCEPTION) {
      const std::string words(reply->payload().begin(), reply->payload().end());
      future->setError(std::make_exception_ptr(std::runtime_error(text("at ", at, ": ", words))));
      return;
    }
    auto storages = reply->getStorages();
    future->markCompleted(c10::IValue(std::move(reply)), std::move(storages));
  };
  bridge_.core().ask(to.id_, head, packed_message(*message), answered);
  return future;
}

// Runs in the thread that has the message: graphs are of a few nodes, and the pool's threads may wait for each other.
void EngineBridge::on_engine(int from, Decoded message) {
  auto shared = std::make_shared<Decoded>(std::move(message));
  core_.pool().submit({[this, from, shared] { run_engine_message(from, *shared); }, false});
}

void EngineBridge::run_engine_message(int from, Decoded& message) {
  const Head head = message.head;
  const Reply reply = [core = core_.self(), from, call = head.call](trpc::MessageType type, detail::Packed packed) {
    Head answer;
    answer.kind = static_cast<uint16_t>(Kind::kEngineReply);
    answer.call = call;
    answer.function = static_cast<uint32_t>(type);
    core->send(from, answer, std::move(packed));
  };
  try {
    const auto request = message_of(message);
    if (request->type() == trpc::BACKWARD_AUTOGRAD_REQ) {
      run_gradients(head, *request, reply);
    } else if (request->type() == trpc::CLEANUP_AUTOGRAD_CONTEXT_REQ) {
      const int64_t id = tda::CleanupAutogradContextReq::fromMessage(*request)->getContextId();
      const auto context = find(id);
      const auto done = agent_->run(*request);
      forget(id, context);
      done->addCallback([reply](trpc::JitFuture& future) { answer_with(future, reply); });
    } else {
      throw DataError(Origin{"rpc"}, "message", "an engine message of another type came");
    }
  } catch (...) {
    refuse(reply, words_of_current());
  }
}

// The request is answered once: by the engine, or by forget() if the context is released before.
void EngineBridge::run_gradients(const Head& head, trpc::Message& request, const Reply& reply) {
  const int64_t id = head.context;
  const auto context = existing(id);
  const auto known = state(id);
  uint64_t number = 0;
  {
    const std::lock_guard lock(known->mutex);
    number = known->next_request++;
    known->unanswered.emplace(number, [reply](const std::string& words) { refuse(reply, words); });
  }
  const auto may_answer = [known, number] {
    const std::lock_guard lock(known->mutex);
    return known->unanswered.erase(number) > 0;
  };
  if (!find(id)) {
    forget(id, context);
    return;
  }
  try {
    enter_pass(id, head.pass, (head.flags & kRetainGraph) != 0);
    agent_->run(request)->addCallback([reply, may_answer](trpc::JitFuture& future) {
      if (may_answer()) answer_with(future, reply);
    });
  } catch (...) {
    if (may_answer()) refuse(reply, words_of_current());
  }
}

void EngineBridge::answer_with(trpc::JitFuture& future, const Reply& reply) {
  if (future.hasError()) {
    try {
      std::rethrow_exception(future.exception_ptr());
    } catch (...) {
      refuse(reply, words_of_current());
    }
    return;
  }
  const auto answer = future.value().toCustomClass<trpc::Message>();
  reply(answer->type(), packed_message(*answer));
}

JitFuturePtr EngineBridge::ask_to_settle(const tda::ContextPtr& context, int to, int64_t message, uint32_t pass,
                                         bool retain_graph) {
  auto future = c10::make_intrusive<trpc::JitFuture>(c10::NoneType::get());
  Head head;
  head.kind = static_cast<uint16_t>(Kind::kSettle);
  head.flags = retain_graph ? kRetainGraph : 0;
  head.context = context->contextId();
  head.message = message;
  head.pass = pass;
  core_.ask(to, head, {}, [future, context, at = core_.described(to)](std::exception_ptr error, Decoded* answer) {
    if (!error && static_cast<Kind>(answer->head.kind) == Kind::kError) {
      Reader reader(answer->packed, nullptr);
      error = std::make_exception_ptr(std::runtime_error(text("at ", at, ": ", reader.string())));
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

// The first message of a pass plans the settlement of what no gradient reaches. See settle_in_pass().
void EngineBridge::enter_pass(int64_t id, uint32_t pass, bool retain_graph) {
  const auto known = state(id);
  const std::lock_guard entering(known->entering);
  {
    const std::lock_guard lock(known->mutex);
    if (!known->entered.insert(pass).second) return;
    known->pass = pass;
    known->retain_graph = retain_graph;
  }
  auto plan = plan_settlement(id, pass, retain_graph, {});
  const std::lock_guard lock(known->mutex);
  known->plan = std::move(plan);
}

// Runs in each send function and root. Before the engine has begun a pass, it forgets the answers of settlements, so
// that a pass would neither wait for them nor end with their errors.
void EngineBridge::settle_in_pass(int64_t id) {
  const auto context = find(id);
  const auto known = known_state(id);
  if (!context || !known) return;
  std::function<void()> plan;
  {
    const std::lock_guard lock(known->mutex);
    plan.swap(known->plan);
  }
  if (plan) plan();
  if (any_lost_) fail_if_broken(*context, *known);
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

// Walks the graph now. The returned function sends the settlements.
std::function<void()> EngineBridge::plan_settlement(int64_t id, uint32_t pass, bool retain_graph,
                                                    const std::vector<at::Tensor>& roots) {
  const auto context = existing(id);
  const auto known = state(id);
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
  return [this, pass, retain_graph, context, failed, to_ask] {
    for (const auto& [to, message] : to_ask)
      context->addOutstandingRpc(ask_to_settle(context, to, message, pass, retain_graph));
    for (const auto& one : failed) {
      if (!core_.messages().why_gone(one.to).empty()) {
        if (const auto future = run_with_zeros(context, one.message, retain_graph)) context->addOutstandingRpc(future);
      } else {
        context->addOutstandingRpc(ask_to_settle(context, one.to, one.reply_message, pass, retain_graph));
      }
    }
  };
}

void EngineBridge::on_settle(int from, const Head& head) {
  core_.pool().submit({[this, from, head] { run_settlement(from, head); }, false});
}

void EngineBridge::run_settlement(int from, const Head& head) {
  const auto answer = [core = core_.self(), from, call = head.call](const std::string& error) {
    Head reply;
    reply.kind = static_cast<uint16_t>(error.empty() ? Kind::kSettled : Kind::kError);
    reply.call = call;
    detail::Packed packed;
    Writer(packed).string(error);
    core->send(from, reply, std::move(packed));
  };
  try {
    const auto context = find(head.context);
    if (!context) {  // nothing of the context has come, or it was released
      answer("");
      return;
    }
    const bool retain_graph = (head.flags & kRetainGraph) != 0;
    enter_pass(head.context, head.pass, retain_graph);
    {
      const auto known = state(head.context);
      const std::lock_guard lock(known->mutex);
      known->settled.insert(head.message);
    }
    const auto future = run_with_zeros(context, head.message, retain_graph);
    if (!future) {
      settle_in_pass(head.context);
      answer("");
      return;
    }
    future->addCallback(
        [answer](trpc::JitFuture& done) { answer(done.hasError() ? done.tryRetrieveErrorMessage() : ""); });
  } catch (...) {
    answer(words_of_current());
  }
}

// The engine of this process ends the context's pass with the error, if one runs.
void EngineBridge::fail_pass(tda::DistAutogradContext& context, const std::exception_ptr& error) {
  const auto future = c10::make_intrusive<trpc::JitFuture>(c10::NoneType::get());
  context.addOutstandingRpc(future);
  future->setError(error);
}

// A function whose gradient would come from a lost worker keeps the pass from its end.
void EngineBridge::fail_if_broken(tda::DistAutogradContext& context, ContextState& known) {
  std::map<int64_t, int> awaited;
  {
    const std::lock_guard lock(known.mutex);
    awaited = known.sent_to;
    for (const auto& one : known.failed) awaited.erase(one.message);
  }
  for (const auto& [message, from] : awaited) {
    if (core_.messages().why_gone(from).empty()) continue;
    fail_pass(context, lost_error(from));
    return;
  }
}

std::exception_ptr EngineBridge::lost_error(int rank) const {
  return std::make_exception_ptr(CommError(core_.origin(), "backward", core_.described(rank),
                                           " was lost in the backward pass: ", core_.messages().why_gone(rank), "."));
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
      core_.pool().submit({[this, id = id] { release(id); }, false});
    } else if (creator != core_.rank()) {
      core_.pool().submit({[this, id = id] { join_or_release(id); }, false});
    }
  }
}

// The release of a context travels from worker to worker, perhaps over the lost one. So its creator is notified that
// this worker has it, too.
void EngineBridge::join_or_release(int64_t id) {
  const auto core = core_.self();
  try {
    Calls(core, {})
        .call_async<bool>(creator_of(id), "hasten.join_context", id)
        .add_done_callback([this, core, id](const Future<bool>& joined) {
          if (joined.has_error() || !joined.value()) release(id);
        });
  } catch (const Error&) {
    release(id);  // the agent is being closed
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
  auto plan = plan_settlement(id, pass, retain_graph, roots);
  {
    const auto known = state(id);
    const std::lock_guard lock(known->mutex);
    known->plan = std::move(plan);
  }
  const auto hook = roots[0].register_hook([this, id](const at::Tensor& gradient) {
    settle_in_pass(id);
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
