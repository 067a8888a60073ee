// EngineBridge: what a worker knows of autograd contexts beside libtorch, and the passes through them. Recording and
// release are in engine_bridge.cpp, passes in backward_passes.cpp.
#pragma once

#include <torch/csrc/distributed/autograd/context/container.h>
#include <torch/types.h>

#include <algorithm>
#include <atomic>
#include <functional>
#include <map>
#include <memory>
#include <mutex>
#include <set>
#include <string>
#include <utility>
#include <vector>

#include "hasten/core/error.h"
#include "rpc/agent_core.h"
#include "rpc/bridge.h"
#include "rpc/engine/engine_agent.h"

namespace hasten::rpc {

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
  using Refusal = std::function<void(const std::string& reason)>;
  std::map<uint64_t, Refusal> unanswered;  // requests of other workers' engines
  uint64_t next_request = 0;
};
using StatePtr = std::shared_ptr<ContextState>;

inline bool any_requires_grad(const std::vector<at::Tensor>& tensors) {
  return std::any_of(tensors.begin(), tensors.end(),
                     [](const at::Tensor& t) { return t.defined() && t.requires_grad(); });
}

class EngineBridge final : public Bridge {
 public:
  explicit EngineBridge(AgentCore& core) : core_(core) {}
  ~EngineBridge() override { stop(); }

  void start(const std::shared_ptr<AgentCore>& core) override;
  void stop() noexcept override;

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
  void forget(int64_t id, const tda::ContextPtr& context);

  int64_t current() const override { return tda::DistAutogradContainer::currentContextId(); }

  void record_call(Head& head, std::vector<at::Tensor>& tensors, int to) override;
  void record_arrival(const Head& head, std::vector<at::Tensor>& tensors, const std::vector<bool>& requires_grad,
                      int from) override;
  void record_reply(Head& head, std::vector<at::Tensor>& tensors, int to) override;
  void record_answer(const Head& head, std::vector<at::Tensor>& tensors, const std::vector<bool>& requires_grad,
                     int from) override;
  void record_failure(const Head& head, int to) override;

  void on_engine(int from, Decoded message) override;
  void on_settle(int from, const Head& head) override;
  void lost(int rank) override;
  bool add_member(int64_t id, int worker) override;

  int64_t num_contexts() const override { return static_cast<int64_t>(container().numAutogradContexts()); }
  int64_t new_context() override {
    const auto context = container().newContext();
    container().clearCurrentContext();
    return context->contextId();
  }

  void release(int64_t id) override;

  void backward(int64_t id, const std::vector<at::Tensor>& roots, bool retain_graph) override;

  std::vector<std::pair<at::Tensor, at::Tensor>> gradients(int64_t context) const override;
  at::Tensor gradient(int64_t context, const at::Tensor& parameter) const override;
  bool set_gradient(int64_t id, const at::Tensor& parameter, const at::Tensor& gradient) const override;

 private:
  Head head_of(const trpc::Message& message, tda::ContextPtr& context);
  void record_received(const tda::ContextPtr& context, int64_t message, std::vector<at::Tensor>& tensors,
                       const std::vector<bool>& requires_grad, int from);

  using Reply = std::function<void(trpc::MessageType, detail::Packed)>;
  static void refuse(const Reply& reply, const std::string& reason);
  static void answer_with(trpc::JitFuture& future, const Reply& reply);
  bool has_send_function(const Head& head);
  void run_engine_message(int from, Decoded& message);
  void run_cleanup(const Head& head, trpc::Message& request, const Reply& reply);
  void run_gradients(const Head& head, trpc::Message& request, const Reply& reply);
  std::function<bool()> note_request(const tda::ContextPtr& context, ContextState::Refusal refusal);
  void run_settlement(int from, const Head& head);
  void settle_in_pass(int64_t id);
  void add_send_function(const tda::ContextPtr& context, int64_t message, std::vector<at::Tensor>& tensors, int to);
  void join_or_release(int64_t id);
  void release_by_loss(int64_t id);

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
  std::multiset<int64_t> released_by_loss_;  // contexts whose release is being spread
  std::atomic<bool> any_lost_ = false;
};

}  // namespace hasten::rpc
