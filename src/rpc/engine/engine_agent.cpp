// See engine_agent.h.
#include "rpc/engine/engine_agent.h"

#include <torch/csrc/distributed/autograd/rpc_messages/cleanup_autograd_context_resp.h>
#include <torch/csrc/distributed/rpc/request_callback_no_python.h>

#include <stdexcept>
#include <utility>

#include "hasten/core/error.h"
#include "rpc/agent_core.h"

namespace hasten::rpc {

EngineAgent::EngineAgent(AgentCore& core, HeadOf head_of)
    : RpcAgent(trpc::WorkerInfo(core.worker(core.rank()).name, static_cast<int64_t>(core.rank())),
               std::make_unique<trpc::RequestCallbackNoPython>(), std::chrono::milliseconds(0)),
      core_(core),
      head_of_(std::move(head_of)) {}

const trpc::WorkerInfo& EngineAgent::getWorkerInfo(const std::string& name) const {
  return getWorkerInfo(static_cast<trpc::worker_id_t>(core_.rank_of(name)));
}

const trpc::WorkerInfo& EngineAgent::getWorkerInfo(trpc::worker_id_t id) const {
  const std::lock_guard lock(mutex_);
  const auto known = infos_.find(id);
  if (known != infos_.end()) return known->second;
  return infos_.emplace(id, trpc::WorkerInfo(core_.worker(id).name, id)).first->second;
}

std::vector<trpc::WorkerInfo> EngineAgent::getWorkerInfos() const {
  std::vector<trpc::WorkerInfo> all;
  for (const int rank : core_.workers().ranks()) all.push_back(getWorkerInfo(static_cast<trpc::worker_id_t>(rank)));
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
  tda::ContextPtr context;  // libtorch's callback on an error uses it
  Head head = head_of_(*message, context);
  head.kind = static_cast<uint16_t>(Kind::kEngine);
  head.function = static_cast<uint32_t>(message->type());
  // libtorch would notify the maker of the release, too, which has begun it.
  const bool is_release = message->type() == trpc::CLEANUP_AUTOGRAD_CONTEXT_REQ;
  if (is_release && (head.flags & kByLoss) == 0 && creator_of(head.context) == static_cast<int>(to.id_)) {
    future->markCompleted(c10::IValue(tda::CleanupAutogradContextResp().toMessage()));
    return future;
  }
  const auto answered = [future, context, at = core_.described(to.id_)](std::exception_ptr error, Decoded* answer) {
    if (error) {
      future->setError(error);
      return;
    }
    auto reply = message_of(*answer);
    if (reply->type() == trpc::EXCEPTION) {
      const std::string reason(reply->payload().begin(), reply->payload().end());
      future->setError(std::make_exception_ptr(std::runtime_error(text("at ", at, ": ", reason))));
      return;
    }
    auto storages = reply->getStorages();
    future->markCompleted(c10::IValue(std::move(reply)), std::move(storages));
  };
  core_.ask(to.id_, head, packed_message(*message), answered);
  return future;
}

}  // namespace hasten::rpc
