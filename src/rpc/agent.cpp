// Agent's functions, forwarded to AgentCore; see agent.h.
#include "hasten/rpc/agent.h"

#include <algorithm>
#include <utility>

#include "hasten/core/error.h"
#include "rpc/agent_core.h"
#include "rpc/bridge.h"

namespace hasten::rpc {

class Agent::Impl {
 public:
  explicit Impl(std::shared_ptr<AgentCore> made) : core(std::move(made)) {}
  std::shared_ptr<AgentCore> core;
};

namespace {

std::shared_ptr<AgentCore> start_core(AgentPlace place, Functions functions, RpcOptions options) {
  auto core = std::make_shared<AgentCore>(std::move(place), std::move(functions), std::move(options));
  try {
    core->start();
  } catch (...) {
    core->close(false);
    throw;
  }
  return core;
}

AgentCore& core_of(const Calls& calls) {
  return static_cast<AgentCore&>(*calls.core());
}

}  // namespace

Agent::Agent(const process::Process& process, Functions functions, RpcOptions options)
    : Calls(start_core(AgentPlace::of(process, options), std::move(functions), options), {}),
      impl_(std::make_shared<Impl>(std::static_pointer_cast<AgentCore>(core()))) {}

Agent::Agent(const comm::Store& store, Functions functions, RpcOptions options, const comm::GroupOptions& where,
             const std::string& run_key)
    : Calls(start_core({.run_key = run_key, .store = store.scoped("rpc"), .where = where}, std::move(functions),
                       std::move(options)),
            {}),
      impl_(std::make_shared<Impl>(std::static_pointer_cast<AgentCore>(core()))) {}

Agent::~Agent() {
  impl_->core->close(false);
}

const WorkerInfo& Agent::worker() const {
  return core()->worker(core()->rank());
}

const WorkerInfo& Agent::worker(const To& to) const {
  return core()->worker(core()->rank_of(to));
}

std::vector<WorkerInfo> Agent::workers() const {
  std::vector<WorkerInfo> all;
  Workers& workers = impl_->core->workers();
  for (int rank = 0; rank < workers.size(); ++rank) {
    if (workers.is_here(rank) || (!impl_->core->is_dynamic() && workers.knows(rank))) all.push_back(workers[rank].info);
  }
  return all;
}

void Agent::shutdown(double timeout_s) {
  impl_->core->shutdown(timeout_s);
}

void Agent::on_worker(std::function<void(const WorkerInfo&, WorkerEvent)> fn) const {
  impl_->core->on_worker(std::move(fn));
}

void Agent::profile_server(const std::function<void()>& fn) const {
  impl_->core->profile_server(fn);
}

AgentStats Agent::stats() const {
  return impl_->core->stats();
}

void Agent::wait_all(const std::function<void()>& fn) const {
  std::vector<std::shared_ptr<detail::StateBase>> calls;
  auto& scopes = detail::current_thread().scopes;
  scopes.push_back(&calls);
  try {
    fn();
  } catch (...) {
    scopes.pop_back();
    throw;
  }
  scopes.pop_back();
  for (const auto& one : calls) one->wait();
  for (const auto& one : calls) {
    if (one->error()) std::rethrow_exception(one->error());
  }
}

void Agent::autograd(const std::function<void(AutogradContext&)>& fn) const {
  Bridge* const bridge = core_of(*this).bridge();
  if (bridge == nullptr) {
    throw UsageError(core_of(*this).origin(),
                     "autograd() needs the first agent of its process: libtorch has one container of "
                     "autograd contexts a process, with one rank.");
  }
  std::vector<std::shared_ptr<detail::StateBase>> calls;
  auto& scopes = detail::current_thread().scopes;
  AutogradContext context(core(), bridge->new_context());
  scopes.push_back(&calls);
  try {
    const auto scope = context.enter();
    fn(context);
  } catch (...) {
    scopes.pop_back();
    for (const auto& one : calls) one->cancel();
    bridge->release(context.id());
    throw;
  }
  scopes.pop_back();
  for (const auto& one : calls) one->wait();
  bridge->release(context.id());
}

std::map<std::string, std::string> Agent::all_gather_bytes(const std::string& mine,
                                                           std::vector<std::string> workers) const {
  return impl_->core->gather(mine, std::move(workers));
}

void Agent::barrier(std::vector<std::string> workers) const {
  impl_->core->gather("", std::move(workers));
}

std::map<std::string, std::string> AgentCore::gather(const std::string& mine, std::vector<std::string> names) {
  if (names.empty() && is_dynamic()) {
    names = workers_.names();
  } else if (names.empty()) {
    for (int rank = 0; rank < workers_.size(); ++rank) names.push_back(workers_[rank].info.name);
  }
  for (std::string& name : names) {
    if (const auto rank = workers_.find(name)) name = worker(*rank).name;
  }
  std::sort(names.begin(), names.end());
  names.erase(std::unique(names.begin(), names.end()), names.end());
  const std::string& own = worker(rank_).name;
  if (std::find(names.begin(), names.end(), own) == names.end())
    throw UsageError(origin(), "'", own, "' is not one of the workers that it gathers from: ", join(names), ".");
  const std::string all = join(names);
  std::string key;
  {
    const std::lock_guard lock(gather_mutex_);
    key = text(all, " #", ++gather_rounds_[all]);
  }
  const Calls calls(shared_from_this(), {});
  const auto gathered = calls.call<Gathered>(names[0], "hasten.gather", key, own, mine, names);
  if (!gathered.lost.empty())
    throw CommError(origin(), "gather", "not all of ", all, " come to barrier() or all_gather(): ", gathered.lost, ".");
  return gathered.values;
}

}  // namespace hasten::rpc
