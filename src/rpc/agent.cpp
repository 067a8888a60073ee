// Agent's functions, forwarded to AgentCore; see agent.h.
#include "hasten/rpc/agent.h"

#include <algorithm>
#include <charconv>
#include <utility>

#include "hasten/core/error.h"
#include "hasten/rpc/remote_module.h"
#include "rpc/agent_core.h"
#include "rpc/bridge.h"
#include "rpc/operators.h"

namespace hasten::rpc {

class Agent::Impl {
 public:
  explicit Impl(std::shared_ptr<AgentCore> made) : core(std::move(made)) {}
  std::shared_ptr<AgentCore> core;
};

namespace {

std::shared_ptr<AgentCore> start_core(const process::Process& process, Functions functions, RpcOptions options) {
  auto core = std::make_shared<AgentCore>(process, std::move(functions), std::move(options));
  try {
    core->start(process);
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
    : Calls(start_core(process, std::move(functions), std::move(options)), {}),
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
  for (int rank = 0; rank < impl_->core->world_size(); ++rank) all.push_back(core()->worker(rank));
  return all;
}

void Agent::shutdown(double timeout_s) {
  impl_->core->shutdown(timeout_s);
}

void Agent::on_worker(std::function<void(const WorkerInfo&, WorkerEvent)> fn) const {
  impl_->core->on_worker(std::move(fn));
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
    throw UsageError(core_of(*this).origin(), "autograd() needs the first agent of its process: libtorch has one container of "
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

std::map<std::string, std::string> Agent::all_gather_bytes(const std::string& mine, std::vector<std::string> workers) const {
  return impl_->core->gather(mine, std::move(workers));
}

void Agent::barrier(std::vector<std::string> workers) const {
  impl_->core->gather("", std::move(workers));
}

std::map<std::string, std::string> AgentCore::gather(const std::string& mine, std::vector<std::string> names) {
  if (names.empty()) {
    for (const auto& one : workers_) names.push_back(one.info.name);
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
  using Values = std::map<std::string, std::string>;
  return calls.call<Values>(names[0], "hasten.gather", key, own, mine, static_cast<int64_t>(names.size()));
}

namespace detail {
std::pair<To, std::string> parse_remote_device(const std::string& place) {
  const size_t slash = place.find('/');
  const std::string worker = place.substr(0, slash), device = slash == std::string::npos ? "cpu" : place.substr(slash + 1);
  if (worker.empty() || device.empty() || device.find('/') != std::string::npos)
    throw UsageError({"rpc"}, "'", place, "' is no place of a module; expected a worker and a device: ps/cpu, rank:1/cuda:0.");
  if (!worker.starts_with("rank:")) return {To(worker), device};
  int rank = -1;
  const auto [end, error] = std::from_chars(worker.data() + 5, worker.data() + worker.size(), rank);
  if (error != std::errc() || end != worker.data() + worker.size())
    throw UsageError({"rpc"}, "'", worker, "' names no rank; expected rank:1.");
  return {To(rank), device};
}
}  // namespace detail

Functions own_functions(AgentCore& core) {
  return core.make_own_functions();
}

Functions AgentCore::make_own_functions() {
  using Values = std::map<std::string, std::string>;
  Functions functions;
  functions.add("hasten.gather", [this](const std::string& key, const std::string& name, const std::string& value, int64_t count) {
    const Promise<Values> mine;
    Gathering complete;
    {
      const std::lock_guard lock(gather_mutex_);
      Gathering& gathering = gatherings_[key];
      gathering.values[name] = value;
      gathering.waiting.push_back(mine);
      if (static_cast<int64_t>(gathering.waiting.size()) < count) return mine.future();
      complete = std::move(gathering);
      gatherings_.erase(key);
    }
    for (const auto& one : complete.waiting) one.set(complete.values);
    return mine.future();
  });
  functions.add_raw("hasten.fetch", [](const std::shared_ptr<detail::ServedCall>& call) {
    Reader reader(call->packed(), call->core());
    const std::string wanted = reader.string();
    const detail::Object& object = call->object();
    if (object.encode == nullptr)
      throw UsageError({"rpc"}, "to_here() of a ", object.type, ", which cannot travel. Call its member functions instead.");
    if (object.description != wanted)
      throw UsageError({"rpc"}, "to_here() as ", wanted, " of a value that is ", object.description, ".");
    detail::Packed packed;
    Writer writer(packed);
    object.encode(writer, object.value.get());
    call->reply(std::move(packed));
  });
  add_optimizers(functions);
  if (options_.serve_operators) add_operators(functions);
  return functions;
}

}  // namespace hasten::rpc
