// The way of an agent to the other workers: all at once over a group, or one by one at a store. See agent_core.h.
#include <torch/cuda.h>

#include <utility>

#include "hasten/comm/group/rejoin.h"
#include "hasten/core/error.h"
#include "hasten/process/process.h"
#include "hasten/rpc/agent.h"
#include "rpc/agent_core.h"
#include "rpc/bridge.h"

namespace hasten::rpc {

AgentPlace AgentPlace::of(const process::Process& process, const RpcOptions& options) {
  if (comm::meetings_of(process.group())) {
    throw UsageError(Origin{"rpc", process.rank(), process.world_size()},
                     "an agent under hasten launch --survive: references and calls of a rank that ends are lost. Start "
                     "the program without --survive.");
  }
  AgentPlace place{.run_key = process.run_key(), .where = process.group().options()};
  // Where `hasten launch` has given roles, a worker without a name has its role's and its number in it. It is still
  // found by the name that it has without roles.
  if (options.name.empty() && process.role() != "default") {
    place.name = text(process.role(), process.role_rank());
    if (!options.dynamic) place.second_name = text("worker", process.rank());
  }
  if (!options.dynamic) {
    place.rank = process.rank();
    place.world_size = process.world_size();
    place.group = process.group();
    return place;
  }
  place.store = process.group().store();
  if (place.store) place.store = place.store->scoped("rpc");
  return place;
}

std::string AgentCore::about() const {
  const WorkerDevices devices{
      .name = options_.name,
      .second_name = place_.second_name,
      .num_cuda = torch::cuda::is_available() ? static_cast<int>(torch::cuda::device_count()) : 0,
      .maps = options_.device_maps,
      .devices = options_.devices};
  std::vector<AboutFunction> functions;
  for (const auto& function : functions_)
    functions.push_back({function->served.name, function->served.signature, function->served.options.idempotent});
  return about_worker(devices, functions);
}

void AgentCore::start() {
  if (options_.num_threads < 1 || options_.max_threads < 1 || options_.timeout_s < 0) {
    throw UsageError(origin(), "RpcOptions: num_threads ", options_.num_threads, ", max_threads ", options_.max_threads,
                     ", timeout_s ", options_.timeout_s, "; expected at least 1, 1 and 0.");
  }
  if (place_.group) {
    meet_all();
  } else {
    join_one_by_one();
  }
}

// All ranks see all names and maps, so all throw the same.
void AgentCore::meet_all() {
  const comm::Group& group = *place_.group;
  messages_ = std::make_unique<comm::Messages>(group, *this,
                                               comm::MessagesOptions{.run_key = place_.run_key,
                                                                     .lost_after_s = options_.lost_after_s,
                                                                     .max_message_bytes = options_.max_message_bytes,
                                                                     .about = about()});
  for (int rank = 0; rank < group.world_size(); ++rank) workers_.add(rank, messages_->about(rank));
  if (const std::string problems = workers_.problems(); !problems.empty())
    throw UsageError(origin(), "the workers' options do not fit:", problems);
  bridge_ = Bridge::claim(*this);
  if (bridge_) bridge_->start(self());
  // No message is read before the threads start, and no worker sends before all are here.
  pool_->start();
  group.with_check(false).barrier();
}

// The workers that came before are notified of this one by a call. Then all have each other's addresses.
void AgentCore::join_one_by_one() {
  if (!place_.store) {
    throw UsageError(
        {"rpc"},
        "RpcOptions::dynamic needs a store at which the workers meet, and a process that was started alone "
        "has none. Start it by hasten launch, or use the constructor that takes a Store.");
  }
  if (options_.name.empty())
    throw UsageError({"rpc"}, "a worker of a dynamic agent needs a name. Set RpcOptions::name.");
  messages_ = comm::Messages::join(*place_.store, place_.where, *this,
                                   {.run_key = place_.run_key,
                                    .lost_after_s = options_.lost_after_s,
                                    .max_message_bytes = options_.max_message_bytes,
                                    .about = about()});
  rank_ = messages_->rank();
  for (int rank = 0; rank <= rank_; ++rank) {
    if (messages_->why_gone(rank).empty()) {
      workers_.add(rank, messages_->about(rank));
    } else {
      workers_.remove(rank, RemoteWorker::State::kLeft);
    }
  }
  bridge_ = Bridge::claim(*this);
  if (bridge_) bridge_->start(self());
  pool_->start();
  const Calls calls(shared_from_this(), {});
  std::vector<Future<void>> joins;
  for (const int rank : workers_.ranks()) {
    if (rank != rank_) joins.push_back(calls.call_async<void>(rank, "hasten.join"));
  }
  for (const auto& one : joins) {
    try {
      one.wait();
    } catch (const CommError&) {
      // It has died or left without being marked: it is no worker of this agent's.
    }
  }
  if (const std::string problems = workers_.problems(); !problems.empty())
    throw UsageError(origin(), "this worker cannot join:", problems);
}

void AgentCore::joined(int rank) {
  workers_.add(rank, messages_->about(rank));
  std::vector<Listener> listeners;
  {
    const std::lock_guard lock(ending_mutex_);
    listeners = listeners_;
  }
  for (const auto& listener : listeners)
    pool_->submit({[listener, info = worker(rank)] { listener(info, WorkerEvent::kJoined); }, false});
  pool_->submit({[self = self(), rank] { self->send_again(rank); }, false});
}

}  // namespace hasten::rpc
