// EngineAgent: the agent that libtorch's distributed engine sends its messages through. They travel as messages of
// hasten's agent.
#pragma once

#include <torch/csrc/distributed/autograd/context/container.h>
#include <torch/csrc/distributed/rpc/rpc_agent.h>

#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <mutex>
#include <string>
#include <unordered_map>
#include <vector>

#include "rpc/wire.h"

namespace hasten::rpc {

class AgentCore;
namespace trpc = torch::distributed::rpc;
namespace tda = torch::distributed::autograd;
using JitFuturePtr = c10::intrusive_ptr<trpc::JitFuture>;

/// The worker that made a context, by libtorch's numbering.
inline int creator_of(int64_t context) {
  return static_cast<int>(context >> 48);
}

detail::Packed packed_message(const trpc::Message& message);
c10::intrusive_ptr<trpc::Message> message_of(Decoded& decoded);

class EngineAgent final : public trpc::RpcAgent {
 public:
  /// Returns the head of a message, and the context that it is of, if any.
  using HeadOf = std::function<Head(const trpc::Message& message, tda::ContextPtr& context)>;
  EngineAgent(AgentCore& core, HeadOf head_of);
  JitFuturePtr send(const trpc::WorkerInfo& to, c10::intrusive_ptr<trpc::Message> message, float timeout,
                    const trpc::DeviceMap& devices) override;
  /// Lets libtorch handle a message.
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
  AgentCore& core_;
  const HeadOf head_of_;
  mutable std::mutex mutex_;
  mutable std::map<trpc::worker_id_t, trpc::WorkerInfo> infos_;  // of those that were requested
};

}  // namespace hasten::rpc
