// See engine_bridge.h: backward passes, the settlement of what no gradient reaches, and their errors.
#include <torch/csrc/autograd/function.h>
#include <torch/csrc/distributed/autograd/engine/dist_engine.h>

#include <utility>

#include "compat/exception_message.h"
#include "hasten/core/error.h"
#include "rpc/engine/engine_bridge.h"
#include "rpc/engine/unreached_receives.h"

namespace hasten::rpc {

void EngineBridge::refuse(const Reply& reply, const std::string& reason) {
  detail::Packed packed;
  packed.bytes += reason;
  reply(trpc::EXCEPTION, std::move(packed));
}

// Runs in the thread that has read the message. It is short: libtorch's threads walk the graph.
void EngineBridge::on_engine(int from, Decoded message) {
  auto shared = std::make_shared<Decoded>(std::move(message));
  core_.pool().submit({[this, from, shared] { run_engine_message(from, *shared); }, true});
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
      run_cleanup(head, *request, reply);
    } else {
      throw DataError(Origin{"rpc"}, "message", "an engine message of another type came");
    }
  } catch (...) {
    refuse(reply, compat::message_of_current_exception());
  }
}

// A worker that has lost the context's maker does not decide for those that have it still.
void EngineBridge::run_cleanup(const Head& head, trpc::Message& request, const Reply& reply) {
  const int64_t id = head.context;
  const auto context = find(id);
  if (!context || creator_of(id) == core_.rank() || (head.flags & kByLoss) != 0) {
    reply(trpc::CLEANUP_AUTOGRAD_CONTEXT_RESP, {});
    if (context) join_or_release(id);
    return;
  }
  const auto done = agent_->run(request);
  forget(id, context);
  done->addCallback([reply](trpc::JitFuture& future) { answer_with(future, reply); });
}

// A request is answered once: by the engine, or by forget() if the context is released before. Returns what the engine
// asks. Throws if the context has been released: forget() may have been here before the request was noted.
std::function<bool()> EngineBridge::note_request(const tda::ContextPtr& context, ContextState::Refusal refusal) {
  const int64_t id = context->contextId();
  const auto known = state(id);
  bool is_here = false;
  uint64_t number = 0;
  {
    const std::lock_guard lock(known->mutex);
    is_here = find(id) == context;
    number = known->next_request++;
    if (is_here) known->unanswered.emplace(number, std::move(refusal));
  }
  if (!is_here) {
    if (!find(id)) forget(id, nullptr);
    throw CommError(core_.origin(), "backward", words_of_release(id));
  }
  return [known, number] {
    const std::lock_guard answering(known->mutex);
    return known->unanswered.erase(number) > 0;
  };
}

void EngineBridge::run_gradients(const Head& head, trpc::Message& request, const Reply& reply) {
  const int64_t id = head.context;
  const auto context = existing(id);
  const auto may_answer = note_request(context, [reply](const std::string& reason) { refuse(reply, reason); });
  try {
    enter_pass(id, head.pass, (head.flags & kRetainGraph) != 0);
    agent_->run(request)->addCallback([reply, may_answer](trpc::JitFuture& future) {
      if (may_answer()) answer_with(future, reply);
    });
  } catch (...) {
    if (may_answer()) refuse(reply, compat::message_of_current_exception());
  }
}

void EngineBridge::answer_with(trpc::JitFuture& future, const Reply& reply) {
  if (future.hasError()) {
    try {
      std::rethrow_exception(future.exception_ptr());
    } catch (...) {
      refuse(reply, compat::message_of_current_exception());
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

// Runs in each send function and root, so inside the pass. A pass does not wait for requests that were sent before it
// has begun, and does not end with their errors.
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
  core_.pool().submit({[this, from, head] { run_settlement(from, head); }, true});
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
  const auto context = find(head.context);
  if (!context) {  // nothing of the context has come, or it was released
    answer("");
    return;
  }
  std::function<bool()> may_answer = [] { return true; };
  try {
    may_answer = note_request(context, answer);
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
      if (may_answer()) answer("");
      return;
    }
    future->addCallback([answer, may_answer](trpc::JitFuture& done) {
      if (may_answer()) answer(done.hasError() ? done.tryRetrieveErrorMessage() : "");
    });
  } catch (...) {
    if (may_answer()) answer(compat::message_of_current_exception());
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

}  // namespace hasten::rpc
