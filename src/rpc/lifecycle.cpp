// AgentCore's life: messages that arrive, losses, timers and the end; see agent_core.h.
#include <algorithm>
#include <sstream>
#include <utility>

#include "hasten/core/error.h"
#include "hasten/core/number.h"
#include "rpc/agent_core.h"
#include "rpc/bridge.h"
#include "rpc/operators.h"
#include "rpc/serving.h"

namespace hasten::rpc {
namespace {

constexpr uint32_t kAsk = 1, kReport = 2, kBye = 3, kProbe = 4;
// A call's message on its way into the tensors' memory.
class Arriving final : public comm::IncomingMessage {
 public:
  Arriving(AgentCore& core, int from, Decoded message) : core_(core), from_(from), message_(std::move(message)) {
    body = std::move(message_.body);
  }
  void complete() override { core_.dispatch(from_, std::move(message_)); }

 private:
  AgentCore& core_;
  const int from_;
  Decoded message_;
};

}  // namespace

AgentCore::AgentCore(AgentPlace place, Functions functions, RpcOptions options)
    : place_(std::move(place)),
      rank_(place_.rank),
      options_(std::move(options)),
      log_("rpc", {rank_, place_.world_size}),
      workers_(place_.world_size) {
  if (options_.name.empty()) options_.name = place_.name;
  if (options_.name.empty() && place_.group) options_.name = text("worker", rank_);
  pool_ = std::make_unique<Pool>(Pool::Options{
      .num_threads = options_.num_threads,
      .max_waiting = options_.max_threads,
      .serve =
          [this] {
            ++detail::current_thread().reading;
            messages_->serve(std::chrono::milliseconds(-1));
            --detail::current_thread().reading;
          },
      .wake =
          [this] {
            if (messages_) messages_->wake();
          },
      .flush =
          [this] {
            for (const int to : std::exchange(detail::current_thread().unflushed, {})) messages_->flush(to);
          },
      .enter =
          [this] { detail::current_thread().executor = std::shared_ptr<detail::Executor>(shared_from_this(), this); }});
  objects_ = std::make_unique<Objects>(*pool_);
  serve_functions(std::move(functions));
}

AgentCore::~AgentCore() = default;

void AgentCore::serve_functions(Functions functions) {
  functions.add_all(own_functions(*this));
  std::map<std::string, std::shared_ptr<Strand>> strands;
  for (const detail::Served& served : functions.served()) {
    auto function = std::make_unique<ServedFunction>();
    function->served = served;
    function->signature = detail::signature_hash(served.signature);
    if (served.options.where == Where::kSerial) {
      const std::string& name = served.options.strand.empty() ? served.name : served.options.strand;
      auto& strand = strands[name];
      if (!strand) strand = std::make_shared<Strand>(*pool_);
      function->strand = strand;
    }
    functions_.push_back(std::move(function));
  }
}

// A child of fork() has neither the threads nor the right to the connections.
void AgentCore::check_process() const {
  if (getpid() == process_) return;
  throw UsageError(origin(),
                   "this process was forked after its parent had made the agent, which stays with the parent. Start "
                   "processes by exec, or fork first.");
}

std::shared_ptr<detail::Executor> AgentCore::executor() const {
  const auto self = std::const_pointer_cast<detail::Core>(shared_from_this());
  return {self, const_cast<AgentCore*>(this)};
}

std::unique_ptr<comm::IncomingMessage> AgentCore::begin(int from, std::string_view head, int64_t body_bytes) {
  Decoded message = decode(head, body_bytes);
  bytes_received_ += static_cast<int64_t>(head.size()) + body_bytes;
  workers_[from].bytes_received += static_cast<int64_t>(head.size()) + body_bytes;
  return std::make_unique<Arriving>(*this, from, std::move(message));
}

void AgentCore::dispatch(int from, Decoded message) {
  const auto kind = static_cast<Kind>(message.head.kind);
  const bool counted =
      kind != Kind::kEnding && kind != Kind::kLost && kind != Kind::kStatus && kind != Kind::kStatusReply;
  if (counted && from != rank_) ++workers_[from].received;
  move_to_devices(message);
  for (const WireReference& wire : message.references) message.packed.references.push_back(received(wire, from));
  switch (kind) {
    case Kind::kCall:
    case Kind::kCreate:
      on_call(from, std::move(message));
      break;
    case Kind::kReply:
    case Kind::kError:
    case Kind::kEngineReply:
    case Kind::kSettled:
      on_reply(from, message);
      break;
    case Kind::kGrant:
    case Kind::kConfirm:
    case Kind::kDrop:
      on_reference(from, message);
      break;
    case Kind::kEngine:
      if (!bridge_) throw DataError(Origin{"rpc"}, "message", "a gradient for an agent without autograd");
      bridge_->on_engine(from, std::move(message));
      break;
    case Kind::kSettle:
      if (!bridge_) throw DataError(Origin{"rpc"}, "message", "a gradient for an agent without autograd");
      bridge_->on_settle(from, message.head);
      break;
    case Kind::kStatus:
      on_status(from, message);
      break;
    case Kind::kStatusReply:
      on_status_reply(message);
      break;
    case Kind::kCancel:
      if (const auto call = served_call(from, message.head.call)) call->cancel();
      break;
    case Kind::kEnding:
      on_ending(from, message);
      break;
    case Kind::kLost: {
      // Another worker has lost one: a message to it shows whether this one has, too.
      const auto rank = static_cast<int>(message.head.function);
      if (workers_.knows(rank) && rank != rank_ && messages_->why_gone(rank).empty()) {
        Head probe;
        probe.kind = static_cast<uint16_t>(Kind::kCancel);
        pool_->submit({[self = self(), rank, probe] { self->send(rank, probe); }, false});
      }
      break;
    }
  }
}

void AgentCore::fail_pending_to(int rank, const std::string& what, const std::string& reason) {
  std::vector<std::pair<uint64_t, std::exception_ptr>> failed;
  {
    const std::lock_guard lock(calls_mutex_);
    for (const auto& [id, pending] : pending_) {
      if (pending.to != rank) continue;
      const double seconds = std::chrono::duration<double>(Clock::now() - pending.started).count();
      failed.emplace_back(id, std::make_exception_ptr(CommError(origin(), "call", described(rank), " ", what,
                                                                " while it ran ", pending.function, "() for ",
                                                                core::fixed_text(seconds, 1), " s: ", reason, ".")));
    }
  }
  for (const auto& [id, error] : failed) {
    if (!wait_for_another(id)) fail_call(id, error);
  }
}

// Null if it has ended. The caller's copy may be the last one, so it must not hold serving_mutex_.
std::shared_ptr<Serving> AgentCore::served_call(int from, uint64_t call) {
  const std::lock_guard lock(serving_mutex_);
  const auto found = serving_.find({from, call});
  return found == serving_.end() ? nullptr : std::static_pointer_cast<Serving>(found->second.lock());
}

// No worker waits for these calls any more. Values that the lost worker has asked for are created: others may hold
// them.
void AgentCore::cancel_served_for(int lost) {
  std::vector<std::shared_ptr<detail::ServedCall>> calls;
  {
    const std::lock_guard lock(serving_mutex_);
    for (auto one = serving_.lower_bound({lost, 0}); one != serving_.end() && one->first.first == lost; ++one) {
      if (auto call = one->second.lock()) calls.push_back(std::move(call));
    }
  }
  for (const auto& call : calls) {
    if (!call->creates()) std::static_pointer_cast<Serving>(call)->cancel();
  }
}

void AgentCore::gone(int rank, bool left, const std::string& reason) {
  std::vector<Listener> listeners;
  bool was_known = false;
  {
    const std::lock_guard lock(ending_mutex_);
    was_known = !(left ? left_ : lost_).insert(rank).second;
    listeners = listeners_;
  }
  if (was_known || !workers_.knows(rank)) return;
  workers_.remove(rank, left ? RemoteWorker::State::kLeft : RemoteWorker::State::kLost);
  fail_pending_to(rank, left ? "has left" : "was lost", reason);
  if (bridge_) bridge_->lost(rank);
  const auto error = std::make_exception_ptr(
      CommError(origin(), "rref", described(rank), " was lost before it had created this value."));
  objects_->lose(rank, error);
  cancel_served_for(rank);
  fail_gatherings(rank);
  // Holders whose grants came from the lost worker notify the owners themselves. Then the worker's own holds end.
  std::vector<std::tuple<Grant, detail::ObjectId, int>> orphaned;
  {
    const std::lock_guard lock(references_mutex_);
    for (const auto& [grant, what] : held_) {
      if (grant.giver == static_cast<uint32_t>(rank) && what.second != rank)
        orphaned.emplace_back(grant, what.first, what.second);
    }
  }
  for (const auto& [grant, id, owner] : orphaned) {
    Head head;
    head.kind = static_cast<uint16_t>(Kind::kConfirm);
    head.object_creator = id.creator;
    head.object_number = id.number;
    detail::Packed packed;
    Writer writer(packed);
    writer.number(grant.giver);
    writer.number(grant.number);
    writer.number(static_cast<int32_t>(rank_));
    send(owner, head, std::move(packed));
  }
  const double grace_s = options_.timeout_s > 0 ? options_.timeout_s : 60;
  later(Clock::now() + std::chrono::duration_cast<Clock::duration>(std::chrono::duration<double>(grace_s)),
        [this, rank] { objects_->forget(rank); });
  if (!left) {
    Head head;
    head.kind = static_cast<uint16_t>(Kind::kLost);
    head.function = static_cast<uint32_t>(rank);
    for (const int other : workers_.ranks()) {
      if (other != rank && other != rank_ && messages_->has_connection(other)) send(other, head);
    }
  }
  for (const auto& listener : listeners) {
    pool_->submit(
        {[listener, info = worker(rank), left] { listener(info, left ? WorkerEvent::kLeft : WorkerEvent::kLost); },
         false});
  }
  if (in_shutdown_) advance_ending();
}

void AgentCore::later(Clock::time_point when, std::function<void()> what) {
  {
    const std::lock_guard lock(ending_mutex_);
    later_.emplace(when, std::move(what));
  }
  messages_->set_timer(when);
}

void AgentCore::timer() {
  std::vector<std::function<void()>> due;
  std::optional<Clock::time_point> next;
  {
    const std::lock_guard lock(ending_mutex_);
    while (!later_.empty() && later_.begin()->first <= Clock::now()) {
      due.push_back(std::move(later_.begin()->second));
      later_.erase(later_.begin());
    }
    if (!later_.empty()) next = later_.begin()->first;
  }
  for (const auto& what : due) what();
  if (next) messages_->set_timer(*next);
  expire_now();
}

// Calls whose time is over: their state is requested from the worker first.
void AgentCore::expire_now() {
  const auto now = Clock::now();
  std::vector<uint64_t> over;
  std::vector<std::pair<uint64_t, int>> to_ask;
  auto next = Clock::time_point::max();
  {
    const std::lock_guard lock(calls_mutex_);
    for (auto& [id, pending] : pending_) {
      if (pending.deadline > now) {
        next = std::min(next, pending.deadline);
      } else if (pending.requested || pending.to == rank_ || pending.to < 0) {
        over.push_back(id);
      } else {
        pending.requested = true;
        pending.deadline = now + std::chrono::milliseconds(500);
        next = std::min(next, pending.deadline);
        to_ask.emplace_back(id, pending.to);
      }
    }
  }
  // At most a hundred polls a second, however the deadlines lie.
  if (next != Clock::time_point::max()) messages_->set_timer(std::max(next, now + std::chrono::milliseconds(10)));
  for (const auto& [id, to] : to_ask) {
    if (const std::string state = messages_->process_state(to); state == "stopped") {
      time_out(id, "its process is stopped");
      continue;
    }
    Head head;
    head.kind = static_cast<uint16_t>(Kind::kStatus);
    head.call = id;
    send(to, head);
  }
  for (const uint64_t id : over) {
    std::string state = "the worker does not answer";
    if (const auto call = served_call(rank_, id)) state = "it is " + call->state();
    if (is_waiting_for_another(id)) state = "it was lost, and no other worker of this name has come";
    time_out(id, state);
  }
}

std::exception_ptr AgentCore::timeout_error(const Pending& pending, const std::string& state) const {
  const double seconds = std::chrono::duration<double>(Clock::now() - pending.started).count();
  return std::make_exception_ptr(CommError(origin(), "call", pending.function, "() at ", described_target(pending),
                                           " did not end within ", core::fixed_text(seconds, 1), " s: ", state,
                                           ". Raise RpcOptions::timeout_s, or with({.timeout_s = …})."));
}

void AgentCore::time_out(uint64_t call, const std::string& state) {
  std::exception_ptr error;
  int to = -1;
  {
    const std::lock_guard lock(calls_mutex_);
    const auto found = pending_.find(call);
    if (found == pending_.end()) return;
    error = timeout_error(found->second, state);
    to = found->second.to;
  }
  fail_call(call, error);
  if (to < 0) return;
  Head head;
  head.kind = static_cast<uint16_t>(Kind::kCancel);
  head.call = call;
  send(to, head);
}

void AgentCore::on_status_reply(Decoded& message) {
  Reader reader(message.packed, nullptr);
  time_out(message.head.call, reader.string());
}

bool AgentCore::is_idle() {
  const std::lock_guard lock(calls_mutex_);
  return pending_.empty() && num_serving_ == 0;
}

EndingReport AgentCore::report_now() {
  EndingReport report;
  for (int rank = 0; rank < workers_.size(); ++rank) {
    const bool lost = workers_[rank].state == RemoteWorker::State::kLost;
    report.sent.push_back(lost ? kLostCount : workers_[rank].sent.load());
    report.received.push_back(lost ? kLostCount : workers_[rank].received.load());
  }
  return report;
}

void AgentCore::maybe_report() {
  Head head;
  int to = 0;
  {
    const std::lock_guard lock(ending_mutex_);
    if (!in_shutdown_ || asked_round_ <= reported_round_ || !is_idle()) return;
    reported_round_ = asked_round_;
    if (!place_.group) {
      ended_->set("");
      return;
    }
    head.call = static_cast<uint64_t>(asked_round_);
    to = asked_by_;
  }
  head.kind = static_cast<uint16_t>(Kind::kEnding);
  head.function = kReport;
  const EndingReport report = report_now();
  detail::Packed packed;
  Writer writer(packed);
  for (const auto* counts : {&report.sent, &report.received}) {
    for (const uint64_t count : *counts) writer.number(count);
  }
  send(to, head, std::move(packed));
}

// With the lock. The lowest rank that is here counts for all. Another takes its place if it is lost.
int AgentCore::coordinator() const {
  int rank = 0;
  while (lost_.contains(rank) || left_.contains(rank)) ++rank;
  return rank;
}

void AgentCore::advance_ending() {
  Head next;
  next.kind = static_cast<uint16_t>(Kind::kEnding);
  std::string lost_ranks;
  int counts = -1;
  {
    const std::lock_guard lock(ending_mutex_);
    if (!in_shutdown_ || ended_->done() || is_dynamic()) return;
    counts = coordinator();
    if (counts == rank_) {
      const bool is_new = !ending_;
      if (is_new) ending_.emplace(workers_.size(), 1 + rank_ * 1'000'000);  // later than all rounds of those before
      for (const int rank : lost_) ending_->lose(rank);
      for (const int rank : left_) ending_->lose(rank);
      if (!is_new && !ending_->advance()) return;
      next.function = ending_->done() ? kBye : kAsk;
      next.call = static_cast<uint64_t>(ending_->round());
      lost_ranks = join(ending_->lost());
    }
  }
  if (counts != rank_) {
    // A connection shows whether the worker that is awaited is lost.
    next.function = kProbe;
    send(counts, next);
    return;
  }
  // This worker last: it closes its connections then.
  const auto tell = [&](int rank) {
    detail::Packed packed;
    Writer(packed).string(lost_ranks);
    send(rank, next, std::move(packed));
  };
  for (int rank = workers_.size() - 1; rank >= 0; --rank) {
    if (rank != rank_) tell(rank);
  }
  tell(rank_);
}

void AgentCore::on_ending(int from, const Decoded& message) {
  Decoded copy = message;
  Reader reader(copy.packed, nullptr);
  if (message.head.function == kAsk) {
    {
      const std::lock_guard lock(ending_mutex_);
      if (static_cast<int>(message.head.call) > asked_round_) asked_by_ = from;
      asked_round_ = std::max(asked_round_, static_cast<int>(message.head.call));
    }
    maybe_report();
  } else if (message.head.function == kReport) {
    EndingReport report;
    for (auto* counts : {&report.sent, &report.received}) {
      for (int i = 0; i < workers_.size(); ++i) counts->push_back(reader.number<uint64_t>());
    }
    {
      const std::lock_guard lock(ending_mutex_);
      if (!ending_) return;
      ending_->report(from, static_cast<int>(message.head.call), std::move(report));
    }
    advance_ending();
  } else if (message.head.function == kBye && ended_) {
    ended_->set(reader.string());
  }
}

// What keeps this worker, or the one that it waits for.
std::string AgentCore::words_of_waits() {
  std::vector<std::string> waits;
  {
    const std::lock_guard lock(calls_mutex_);
    for (const auto& [id, pending] : pending_)
      waits.push_back(text(pending.function, "() at ", described_target(pending)));
  }
  if (!waits.empty()) return "This worker waits for " + join(waits) + ".";
  if (num_serving_ > 0) return text("This worker serves ", num_serving_.load(), " calls.");
  if (is_dynamic()) return "";
  const std::lock_guard lock(ending_mutex_);
  const int counts = coordinator();
  return counts == rank_ ? "This worker waits for the counts of the others."
                         : "This worker waits for " + described(counts) + ".";
}

void AgentCore::shutdown(double timeout_s) {
  if (closed_) return;
  check_process();
  for (const int to : std::exchange(detail::current_thread().unflushed, {})) messages_->flush(to);
  {
    const std::lock_guard lock(ending_mutex_);
    ended_ = std::make_shared<detail::State<std::string>>(nullptr);
    if (is_dynamic()) asked_round_ = 1;  // leaves as soon as nothing runs here
    in_shutdown_ = true;
  }
  maybe_report();
  advance_ending();
  if (timeout_s > 0) {
    ended_->sleep(Clock::now() + std::chrono::duration_cast<Clock::duration>(std::chrono::duration<double>(timeout_s)));
  } else {
    ended_->sleep(std::nullopt);
  }
  const bool ended = ended_->done();
  const std::string under_way = ended ? "" : words_of_waits();
  if (options_.report_leaks) {
    for (const std::string& line : objects_->list())
      log_.warning(text("an RRef's value still exists at shutdown: ", line), {.main_process_only = false});
  }
  // Those that rank 0 has lost, and those that this worker alone has lost.
  std::set<int> gone;
  {
    const std::lock_guard lock(ending_mutex_);
    gone = lost_;
  }
  std::istringstream ranks(ended ? ended_->value() : "");
  for (std::string rank; std::getline(ranks, rank, ',');) gone.insert(core::whole_number<int>(rank).value());
  gone.erase(rank_);
  std::string lost;
  for (const int rank : gone) {
    const std::string why = messages_->why_gone(rank);
    lost += text(lost.empty() ? "" : ", ", described(rank), why.empty() ? "" : " (" + why + ")");
  }
  close(ended);
  if (!ended)
    throw CommError(origin(), "shutdown", "the workers did not all come to shutdown() within ", timeout_s, " s. ",
                    under_way);
  if (!lost.empty()) throw CommError(origin(), "shutdown", "lost before the end: ", lost, ". The others have ended.");
}

void AgentCore::close(bool gracefully) noexcept {
  if (closed_.exchange(true)) return;
  if (getpid() != process_) {
    pool_->abandon();
    return;
  }
  try {
    std::vector<uint64_t> pending;
    {
      const std::lock_guard lock(calls_mutex_);
      for (const auto& [id, one] : pending_) pending.push_back(id);
    }
    const auto error =
        std::make_exception_ptr(CommError(origin(), "call", "the agent was closed before the call had ended."));
    for (const uint64_t id : pending) fail_call(id, error);
    pool_->stop();
    if (bridge_) bridge_->stop();  // none of the pool's threads uses it any more
    if (messages_) messages_->close(true);
    objects_->clear();
  } catch (...) {
    (void)gracefully;
  }
}

void AgentCore::on_worker(Listener fn) {
  const std::lock_guard lock(ending_mutex_);
  listeners_.push_back(std::move(fn));
}

AgentStats AgentCore::stats() {
  AgentStats stats;
  stats.num_calls_sent = num_calls_sent_;
  stats.num_calls_served = num_calls_served_;
  stats.num_waiting = pool_->num_waiting();
  stats.num_running = pool_->num_running();
  stats.num_threads = pool_->num_threads();
  stats.num_objects = static_cast<int64_t>(objects_->size());
  stats.num_contexts = bridge_ ? bridge_->num_contexts() : 0;
  stats.bytes_sent = bytes_sent_;
  stats.bytes_received = bytes_received_;
  {
    const std::lock_guard lock(calls_mutex_);
    stats.num_pending = static_cast<int64_t>(pending_.size());
  }
  {
    const std::lock_guard lock(references_mutex_);
    stats.num_references = static_cast<int64_t>(held_.size());
  }
  for (int rank = 0; rank < workers_.size(); ++rank) {
    if (!workers_.knows(rank)) continue;
    const RemoteWorker& worker = workers_[rank];
    stats.workers[rank] = {worker.info.name, worker.num_calls_sent, worker.num_calls_served, worker.bytes_sent,
                           worker.bytes_received};
  }
  for (const auto& function : functions_) {
    const std::lock_guard lock(function->mutex);
    if (function->num_calls == 0) continue;
    stats.functions[function->served.name] = {function->num_calls, function->queue.quantile(0.5),
                                              function->queue.quantile(0.99), function->run.quantile(0.5),
                                              function->run.quantile(0.99)};
  }
  return stats;
}

}  // namespace hasten::rpc
