// The caller's side of AgentCore; see agent_core.h.
#include <cxxabi.h>
#include <torch/types.h>

#include <algorithm>
#include <cmath>
#include <utility>

#include "hasten/core/error.h"
#include "hasten/core/sentence.h"
#include "hasten/rpc/errors.h"
#include "rpc/agent_core.h"
#include "rpc/bridge.h"
#include "rpc/serving.h"

namespace hasten::rpc {
namespace {

bool has_other_devices(const detail::Packed& packed) {
  return std::any_of(packed.tensors.begin(), packed.tensors.end(),
                     [](const at::Tensor& one) { return one.defined() && !one.is_cpu(); });
}

}  // namespace

namespace detail {

CurrentThread& current_thread() {
  static thread_local CurrentThread thread;
  return thread;
}

uint32_t signature_hash(std::string_view text) {
  uint32_t hash = 2166136261u;
  for (const char c : text) hash = (hash ^ static_cast<unsigned char>(c)) * 16777619u;
  return hash;
}

void throw_empty_rref(const std::string& type) {
  throw UsageError({"rpc"}, "an empty RRef<", type, "> was used. It refers to no value.");
}

}  // namespace detail

std::string words_of(const std::exception_ptr& error, std::string& type) {
  try {
    std::rethrow_exception(error);
  } catch (const RemoteError& remote) {
    type = remote.type();
    const std::string reason = remote.what();
    const size_t end = reason.find(": worker '");  // each hop is named once, without this process's prefix
    return end == std::string::npos ? reason : reason.substr(end + 2);
  } catch (const UsageError& usage) {
    type = "hasten::UsageError";
    return usage.what();
  } catch (const DataError& data) {
    type = "hasten::DataError";
    return data.what();
  } catch (const std::exception& other) {
    int status = 0;
    const std::unique_ptr<char, void (*)(void*)> name(
        abi::__cxa_demangle(typeid(other).name(), nullptr, nullptr, &status), std::free);
    type = status == 0 ? name.get() : typeid(other).name();
    return other.what();
  } catch (...) {
    type = "an object that is no std::exception";
    return "";
  }
}

std::exception_ptr error_of(const Origin& origin, const std::string& type, const std::string& reason,
                            const std::string& worker, const std::string& function) {
  if (type == "hasten::UsageError") return std::make_exception_ptr(UsageError(reason));
  if (type == "hasten::DataError")
    return std::make_exception_ptr(DataError(origin, "", "worker '", worker, "', ", function, ": ", reason));
  const std::string message =
      reason.rfind("worker '", 0) == 0
          ? text(message_prefix(origin), "worker '", worker, "', ", function, ": ", reason)
          : text(message_prefix(origin), "worker '", worker, "', ", function, ": ", type, ": ", reason);
  return std::make_exception_ptr(RemoteError(message, type, worker, function));
}

std::string AgentCore::described(int rank) const {
  return text("rank ", rank, " '", worker(rank).name, "'");
}

std::string AgentCore::described_target(const Pending& pending) const {
  return pending.to >= 0 ? described(pending.to) : pending.again ? text("'", pending.again->worker, "'") : "?";
}

const WorkerInfo& AgentCore::worker(int rank) const {
  if (!workers_.knows(rank)) {
    throw UsageError(origin(), "worker ", rank, " does not exist; ranks go from 0 to ", workers_.size() - 1, ".");
  }
  return workers_[rank].info;
}

int AgentCore::rank_of(const To& to) const {
  if (to.name().empty()) return worker(to.rank()).id;
  if (const auto found = workers_.find(to.name())) return *found;
  const auto names = workers_.names();
  const std::string nearest = did_you_mean(to.name(), names);
  throw UsageError(origin(), "no worker is named '", to.name(), "'", nearest.empty() ? "." : nearest,
                   " The workers are ", join(names), ".");
}

void AgentCore::throw_closed() const {
  throw UsageError(origin(), "the agent of '", worker(rank_).name,
                   "' has been shut down; no call can be made any more.");
}

const RemoteWorker::Function& AgentCore::find(const detail::CallSpec& spec) const {
  const RemoteWorker& callee = workers_[spec.to];
  const auto found = callee.functions.find(spec.function);
  if (found == callee.functions.end()) {
    std::vector<std::string> names;
    for (const auto& [name, function] : callee.functions) {
      if (!name.starts_with("hasten.")) names.emplace_back(name);
    }
    throw UsageError(origin(), "worker '", callee.info.name, "' does not serve '", spec.function, "'",
                     guess_end(std::string(spec.function), names), " Add it to the Functions of that worker's Agent.");
  }
  if (found->second.signature != spec.signature) {
    throw UsageError(origin(), "'", spec.function, "' is called as ", spec.describe ? spec.describe() : "?",
                     ", but worker '", callee.info.name, "' serves it as ", found->second.description,
                     ". Build both from one source, or correct the arguments' types.");
  }
  return found->second;
}

void AgentCore::set_deadline(Pending& pending, const CallOptions& options) const {
  pending.timeout_s = options.timeout_s < 0 ? options_.timeout_s : options.timeout_s;
  if (pending.timeout_s > 0)
    pending.deadline =
        pending.started + std::chrono::duration_cast<Clock::duration>(std::chrono::duration<double>(pending.timeout_s));
  // A call inside a handler has no more time than the call that is served.
  if (const auto& served = detail::current_thread().served) {
    const auto limit = static_cast<Serving&>(*served).deadline();
    pending.deadline = std::min(pending.deadline, limit);
  }
}

void AgentCore::register_call(uint64_t id, Pending pending) {
  const auto deadline = pending.deadline;
  {
    const std::lock_guard lock(calls_mutex_);
    pending_.emplace(id, std::move(pending));
  }
  if (deadline != Clock::time_point::max()) messages_->set_timer(deadline);
  ++num_calls_sent_;
}

void AgentCore::complete(uint64_t call, const std::function<void(Pending&)>& finish) {
  std::optional<Pending> pending;
  {
    const std::lock_guard lock(calls_mutex_);
    const auto found = pending_.find(call);
    if (found == pending_.end()) return;  // timed out or cancelled
    pending = std::move(found->second);
    pending_.erase(found);
  }
  finish(*pending);
  if (in_shutdown_) maybe_report();
}

void AgentCore::fail_call(uint64_t call, const std::exception_ptr& error) {
  complete(call, [&](Pending& pending) {
    if (pending.head.context >= 0 && bridge_) bridge_->record_failure(pending.head, pending.to);
    if (pending.reply) pending.reply->state().fail(error);
    if (pending.engine) pending.engine(error, nullptr);
  });
}

void AgentCore::call(const detail::CallSpec& spec, detail::Packed packed,
                     const std::shared_ptr<detail::ReplyBase>& reply) {
  Pending pending;
  pending.reply = reply;
  auto& state = reply->state();
  state.awaited_rank = spec.to == rank_ ? -1 : spec.to;
  start_call(spec, std::move(packed), std::move(pending), Kind::kCall, 0);
}

void AgentCore::start_call(const detail::CallSpec& spec, detail::Packed packed, Pending pending, Kind kind,
                           uint64_t created) {
  if (closed_) throw_closed();
  check_process();
  const auto& function = find(spec);
  pending.to = spec.to;
  pending.function = spec.function;
  pending.kept = packed.references;
  set_deadline(pending, spec.options);
  Head head;
  head.kind = static_cast<uint16_t>(kind);
  head.function = function.index;
  head.signature = function.signature;
  head.object_creator = spec.object.creator;
  head.object_number = spec.object.number;
  head.created = created;
  if (pending.deadline != Clock::time_point::max()) {
    const auto left = std::chrono::duration_cast<std::chrono::microseconds>(pending.deadline - Clock::now()).count();
    head.left_us = std::max<int64_t>(left, 1);
  }
  auto& current = detail::current_thread();
  if (current.waited_for > 0) head.flags |= kWaitedFor;
  const uint64_t id = head.call = next_call_++;
  auto scope = at::hasCallbacks() ? open_scope(profiled(kind, head, spec.function, rank_, spec.to)) : nullptr;
  if (scope && current.waited_for > 0 && !current.waited_scope) current.waited_scope = std::move(scope);
  if (bridge_) bridge_->record_call(head, packed.tensors, spec.to);
  pending.head = head;
  const bool repeats =
      function.idempotent && !place_.group && kind == Kind::kCall && head.context < 0 && head.object_number == 0;
  if (repeats) {
    pending.again = std::make_shared<const Pending::Again>(
        Pending::Again{workers_[spec.to].info.name, std::string(spec.function), spec.signature, packed});
  }
  const auto reply = pending.reply;
  register_call(id, std::move(pending));
  ++workers_[spec.to].num_calls_sent;
  if (reply) watch_cancel(reply, head, spec.to);
  if (spec.to == rank_) {
    Decoded local{head, std::move(packed), {}, {}, {}};
    on_call(rank_, std::move(local));
    return;
  }
  send_call(spec.to, head, std::move(packed), std::string(spec.function));
}

ProfiledCall AgentCore::profiled(Kind kind, const Head& head, std::string_view function, int from, int to) const {
  const char* const word = kind == Kind::kCreate            ? "rpc_remote"
                           : (head.flags & kWaitedFor) != 0 ? "rpc_sync"
                                                            : "rpc_async";
  return {word, function, workers_[from].info.name, workers_[to].info.name,
          (int64_t{from} << 40) | static_cast<int64_t>(head.call & ((uint64_t{1} << 40) - 1))};
}

void AgentCore::watch_cancel(const std::shared_ptr<detail::ReplyBase>& reply, const Head& head, int to) {
  auto& current = detail::current_thread();
  for (auto* scope : current.scopes) scope->push_back({reply, &reply->state()});
  if (current.served && head.context >= 0) static_cast<Serving&>(*current.served).add_nested({reply, &reply->state()});
  reply->state().on_cancel = [weak = weak_from_this(), id = head.call, to] {
    const auto core = std::static_pointer_cast<AgentCore>(weak.lock());
    if (!core) return;
    core->fail_call(id, detail::cancelled_error());
    Head cancel;
    cancel.kind = static_cast<uint16_t>(Kind::kCancel);
    cancel.call = id;
    core->send(to, cancel);
  };
}

void AgentCore::send_call(int to, Head head, detail::Packed packed, const std::string& function) {
  const uint64_t id = head.call;
  std::vector<WireReference> references;
  try {
    references = pass_on(packed, to);
    const auto changed = [weak = weak_from_this(), id, function](size_t i) {
      const auto core = std::static_pointer_cast<AgentCore>(weak.lock());
      if (!core) return;
      core->fail_call(id, std::make_exception_ptr(UsageError(
                              core->origin(), "tensor ", i, " of the call of '", function,
                              "' was changed in place before it was sent. Pass a clone, or wait for the call first.")));
    };
    const auto place = has_other_devices(packed) ? placement(to, false, function) : DevicePlacement();
    post(to, encode(head, std::move(packed), references, place, changed), true);
  } catch (const CommError&) {
    take_back(references);
    if (wait_for_another(id)) return;
    fail_call(id, std::make_exception_ptr(CommError(origin(), "call", described(to), " cannot be reached for ",
                                                    function, "(): ", messages_->why_gone(to), ".")));
  } catch (...) {
    take_back(references);
    complete(id, [](Pending&) {});
    throw;
  }
}

void AgentCore::post(int to, comm::OutgoingMessage message, bool flush, bool counted) {
  int64_t num_bytes = static_cast<int64_t>(message.head.size());
  for (const auto& part : message.body) num_bytes += static_cast<int64_t>(part.size());
  bytes_sent_ += num_bytes;
  workers_[to].bytes_sent += num_bytes;
  if (counted) ++workers_[to].sent;
  messages_->send(to, std::move(message), flush);
}

DevicePlacement AgentCore::placement(int to, bool is_reply, const std::string& what) const {
  return [this, to, is_reply, what](size_t i, c10::Device device) {
    const auto mapped = mapped_device(workers_[rank_].devices, workers_[to].devices, device, is_reply);
    if (mapped) return *mapped;
    throw UsageError(origin(), "tensor ", i, " of ", what, is_reply ? "'s result" : "()", " is on ", device.str(),
                     ", which has no place at ", described(to),
                     ". Give it one in RpcOptions::device_maps, or send x.cpu().");
  };
}

bool AgentCore::can_reply_from(c10::Device device, int to) const {
  return device.is_cpu() || to == rank_ ||
         mapped_device(workers_[rank_].devices, workers_[to].devices, device, true).has_value();
}

// A call of an idempotent function whose worker is gone waits for another worker of that name.
bool AgentCore::wait_for_another(uint64_t call) {
  int next = -1;
  {
    const std::lock_guard lock(calls_mutex_);
    const auto found = pending_.find(call);
    if (found == pending_.end() || !found->second.again || closed_) return false;
    Pending& pending = found->second;
    pending.to = -1;
    pending.requested = false;
    if (pending.reply) pending.reply->state().awaited_rank = -1;
    // It may have come already.
    const auto other = workers_.find(pending.again->worker);
    if (other && workers_.is_here(*other)) next = *other;
  }
  if (next >= 0) pool_->submit({[self = self(), next] { self->send_again(next); }, false});
  return true;
}

bool AgentCore::is_waiting_for_another(uint64_t call) {
  const std::lock_guard lock(calls_mutex_);
  const auto found = pending_.find(call);
  return found != pending_.end() && found->second.to < 0;
}

void AgentCore::send_again(int rank) {
  std::vector<std::pair<Head, std::shared_ptr<const Pending::Again>>> calls;
  {
    const std::lock_guard lock(calls_mutex_);
    for (auto& [id, pending] : pending_) {
      if (pending.to >= 0 || !pending.again || pending.again->worker != workers_[rank].info.name) continue;
      pending.to = rank;
      calls.emplace_back(pending.head, pending.again);
    }
  }
  for (auto& [head, again] : calls) {
    const auto& served = workers_[rank].functions;
    const auto function = served.find(again->function);
    if (function == served.end() || function->second.signature != again->signature) {
      fail_call(head.call, std::make_exception_ptr(UsageError(origin(), "the worker that has come in the place of '",
                                                              again->worker, "' does not serve '", again->function,
                                                              "' with the same signature.")));
      continue;
    }
    head.function = function->second.index;
    try {
      send_call(rank, head, again->packed, again->function);
    } catch (...) {
      fail_call(head.call, std::current_exception());
    }
  }
}

void AgentCore::send(int to, Head head, detail::Packed packed, bool flush) {
  if (to == rank_) {
    dispatch(rank_, {head, std::move(packed), {}, {}, {}});
    return;
  }
  const auto kind = static_cast<Kind>(head.kind);
  const bool counted =
      kind != Kind::kEnding && kind != Kind::kLost && kind != Kind::kStatus && kind != Kind::kStatusReply;
  try {
    const auto references = pass_on(packed, to);
    const bool is_reply = kind == Kind::kReply;
    const auto place = has_other_devices(packed) ? placement(to, is_reply, is_reply ? "the handler" : "a gradient")
                                                 : DevicePlacement();
    auto message = encode(head, std::move(packed), references, place);
    if (!flush) detail::current_thread().unflushed.push_back(to);
    post(to, std::move(message), flush, counted);
  } catch (const CommError&) {
    // The loss is reported by gone(); one-way messages and replies have no other receiver.
  }
}

void AgentCore::ask(int to, Head head, detail::Packed packed, EngineAnswer answered) {
  Pending pending;
  pending.engine = std::move(answered);
  pending.to = to;
  pending.function = "the backward pass";
  pending.head.context = -1;
  const uint64_t id = head.call = next_call_++;
  register_call(id, std::move(pending));
  if (to != rank_ && !messages_->why_gone(to).empty()) {
    fail_call(id, std::make_exception_ptr(
                      CommError(origin(), "backward", described(to), " was lost: ", messages_->why_gone(to), ".")));
    return;
  }
  send(to, head, std::move(packed));
  if (to != rank_ && !messages_->why_gone(to).empty())
    fail_call(id, std::make_exception_ptr(
                      CommError(origin(), "backward", described(to), " was lost: ", messages_->why_gone(to), ".")));
}

void AgentCore::on_reply(int from, Decoded& message) {
  const auto kind = static_cast<Kind>(message.head.kind);
  complete(message.head.call, [&](Pending& pending) {
    if (pending.engine) {
      pending.engine(nullptr, &message);
      return;
    }
    if (!pending.reply) return;
    auto& state = pending.reply->state();
    if (kind == Kind::kError) {
      if (pending.head.context >= 0 && bridge_) bridge_->record_failure(pending.head, pending.to);
      Reader reader(message.packed, self());
      const std::string type = reader.string(), reason = reader.string();
      const std::string function = reader.string();
      state.fail(error_of(origin(), type, reason, worker(from).name, function));
      return;
    }
    if (!state.claim()) return;
    try {
      if (pending.head.context >= 0 && bridge_)
        bridge_->record_answer(pending.head, message.packed.tensors, message.requires_grad, from);
      Reader reader(message.packed, self());
      pending.reply->decode(reader);
      state.finish();
    } catch (...) {
      state.finish_with(std::current_exception());
    }
  });
}

void AgentCore::run(std::function<void()> task) {
  if (closed_) {
    task();
    return;
  }
  pool_->submit({std::move(task), false});
}

void AgentCore::wait(detail::StateBase& state, std::optional<Clock::time_point> until) {
  auto& current = detail::current_thread();
  if (state.done()) return;
  if (current.reading > 0) {
    throw UsageError(origin(),
                     "wait() was called in a thread that reads messages (a handler of Where::kInline). It would wait "
                     "for ever. Use then(), or serve the function with Where::kPool.");
  }
  for (const int to : std::exchange(current.unflushed, {})) messages_->flush(to);
  const auto sleep = [&] {
    // The answer is read by this thread if no other reads that connection already.
    if (state.awaited_rank >= 0 && !until && !closed_) {
      ++current.reading;
      messages_->read_from(state.awaited_rank, [&] { return state.done(); });
      --current.reading;
    }
    if (!state.done()) state.sleep(until);
  };
  if (!current.in_pool) {
    sleep();
    return;
  }
  const auto served = std::exchange(current.served, nullptr);
  const bool waited = pool_->replaced_while(sleep);
  current.served = served;
  if (waited) return;
  std::map<std::string, int> waits;
  {
    const std::lock_guard lock(calls_mutex_);
    for (const auto& [id, pending] : pending_) ++waits[text(pending.function, "() at ", described_target(pending))];
  }
  std::string list;
  for (const auto& [what, count] : waits) list += text(list.empty() ? "" : ", ", count, " for ", what);
  if (current.waited_for > 0) state.cancel();  // sync(): no other place has the future
  throw UsageError(origin(), options_.max_threads, " handlers wait already (max_threads): ", list,
                   ". Calls that wait for each other in a ring never end; return a Future instead of waiting.");
}

}  // namespace hasten::rpc
