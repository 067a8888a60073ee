// See serving.h; and AgentCore's functions of the callee's side.
#include "rpc/serving.h"

#include <algorithm>
#include <cmath>
#include <utility>

#include "hasten/core/error.h"
#include "hasten/core/number.h"
#include "hasten/rpc/agent.h"
#include "hasten/rpc/errors.h"
#include "rpc/bridge.h"

namespace hasten::rpc {
namespace {

constexpr double kShortUs = 50;
constexpr int kShortRuns = 8;

double seconds_between(Clock::time_point from, Clock::time_point to) {
  return std::chrono::duration<double>(to - from).count();
}

std::string shown_seconds(double seconds) {
  return core::fixed_text(seconds, 1) + " s";
}

}  // namespace

void Histogram::add(double us) {
  const double place = us <= 1 ? 0 : 4 * std::log2(us);
  ++counts_[static_cast<size_t>(std::clamp(place, 0.0, 127.0))];
}

double Histogram::quantile(double q) const {
  uint64_t all = 0, seen = 0;
  for (const uint32_t count : counts_) all += count;
  if (all == 0) return 0;
  for (size_t i = 0; i < counts_.size(); ++i) {
    seen += counts_[i];
    if (static_cast<double>(seen) >= q * static_cast<double>(all)) return std::exp2((static_cast<double>(i) + 0.5) / 4);
  }
  return 0;
}

namespace detail {
void throw_wrong_object(const Object& object, const std::string& expected) {
  throw UsageError({"rpc"}, "the value of this RRef is a ", object.type, ", which is no ", expected,
                   ". Call a member function of its class or of a public base.");
}
}  // namespace detail

Serving::Serving(std::shared_ptr<AgentCore> core, int from, Decoded message)
    : agent_(std::move(core)),
      base_core_(agent_),
      from_(from),
      message_(std::move(message)),
      head_(message_.head),
      function_(*agent_->functions_[head_.function]),
      creates_(static_cast<Kind>(head_.kind) == Kind::kCreate) {
  if (head_.left_us > 0) deadline_ = arrived_ + std::chrono::microseconds(head_.left_us);
  ++agent_->num_serving_;
}

Serving::~Serving() {
  if (!answered_) fail(detail::unanswered_error());
  if (holds_) agent_->objects_->let_go({head_.object_creator, head_.object_number});
}

std::string Serving::state() const {
  const auto now = Clock::now();
  const auto started = started_.load();
  if (started != Clock::time_point::max()) return "running for " + shown_seconds(seconds_between(started, now));
  if (parked_) return text("waiting for its value to be created for ", shown_seconds(seconds_between(arrived_, now)));
  const auto behind = agent_->pool_->queue_length();
  return text("in the queue behind ",
              std::max<size_t>(behind, 1) - 1 + static_cast<size_t>(agent_->pool_->num_running()), " others for ",
              shown_seconds(seconds_between(arrived_, now)));
}

void Serving::cancel() {
  cancelled_ = true;
  if (parked_ || returned_) fail(detail::cancelled_error());
}

void Serving::schedule() {
  const bool on_object = function_.served.of_object || head_.object_number != 0;
  if (!on_object) {
    place();
    return;
  }
  const detail::ObjectId id{head_.object_creator, head_.object_number};
  agent_->objects_->hold(id);
  holds_ = true;
  const auto self = std::static_pointer_cast<Serving>(shared_from_this());
  parked_ = true;
  agent_->objects_->when_ready(id, [self](const Objects::Found& found) {
    self->parked_ = false;
    if (found.error) {
      self->fail(found.error);
      return;
    }
    self->object_ = found.object;
    self->place();
  });
}

void Serving::place() {
  const auto self = std::static_pointer_cast<Serving>(shared_from_this());
  PoolTask task{[self] { self->run(); }, function_.num_short >= kShortRuns};
  const auto where = function_.served.options.where;
  if (where == Where::kInline && !agent_->closed_) {
    ++detail::current_thread().reading;
    run();
    --detail::current_thread().reading;
    return;
  }
  ++function_.num_waiting;
  if (where == Where::kSerial) {
    function_.strand->submit(std::move(task));
  } else if (where == Where::kPerObject && holds_) {
    agent_->objects_->strand({head_.object_creator, head_.object_number})->submit(std::move(task));
  } else {
    agent_->pool_->submit(std::move(task));
  }
}

void Serving::run() {
  if (function_.served.options.where != Where::kInline) --function_.num_waiting;
  started_ = Clock::now();
  if (cancelled_) {
    fail(detail::cancelled_error());
    return;
  }
  auto& current = detail::current_thread();
  const auto before = std::exchange(current.served, shared_from_this());
  std::optional<ProfilerLoan> loan;
  if (const auto profiler = agent_->server_profiler()) loan.emplace(*profiler);
  const auto recorded = from_ != agent_->rank() && at::hasCallbacks()
                            ? open_scope(agent_->profiled(static_cast<Kind>(head_.kind), head_, function_.served.name,
                                                          from_, agent_->rank()))
                            : nullptr;
  try {
    std::optional<AutogradContext::Scope> scope;
    if (head_.context >= 0) {
      if (!agent_->bridge()) {
        throw UsageError(agent_->origin(),
                         "a call in an autograd context came to an agent that is not the first of its process; "
                         "libtorch has one autograd container a process.");
      }
      scope.emplace(head_.context);
    }
    function_.served.thunk(shared_from_this());
  } catch (...) {
    fail(std::current_exception());
  }
  current.served = before;
  finish_stats(Clock::now());
  returned_ = true;
  if (cancelled_) fail(detail::cancelled_error());
}

void Serving::finish_stats(Clock::time_point ended) {
  const double run_us = 1e6 * seconds_between(started_, ended);
  if (run_us <= kShortUs) {
    if (function_.num_short < kShortRuns) ++function_.num_short;
  } else {
    function_.num_short = 0;
  }
  const std::lock_guard lock(function_.mutex);
  ++function_.num_calls;
  function_.run.add(run_us);
  function_.queue.add(1e6 * seconds_between(arrived_, started_));
}

void Serving::add_nested(std::shared_ptr<detail::StateBase> call) {
  const std::lock_guard lock(nested_mutex_);
  nested_.push_back(std::move(call));
}

void Serving::store(detail::Object object) {
  if (!creates_) {
    // A constructor that was called without wanting an RRef: nothing keeps the value.
    reply({});
    return;
  }
  if (answered_) return;
  agent_->objects_->store(created_id(), std::move(object));
  answer_after_nested(Kind::kReply, {});
}

void Serving::reply(detail::Packed packed) {
  answer_after_nested(Kind::kReply, std::move(packed));
}

void Serving::fail(std::exception_ptr error) noexcept {
  try {
    if (creates_) agent_->objects_->fail(created_id(), error);
    answer(Kind::kError, error_values(error));
  } catch (...) {
    // No reply is possible; the caller's timeout ends the call.
  }
}

// In a recorded call the graph must be complete before the caller goes on: calls that the handler did not wait for end
// first.
void Serving::answer_after_nested(Kind kind, detail::Packed packed) {
  std::vector<std::shared_ptr<detail::StateBase>> nested;
  {
    const std::lock_guard lock(nested_mutex_);
    nested.swap(nested_);
  }
  std::erase_if(nested, [](const auto& one) { return one->done(); });
  if (nested.empty()) {
    answer(kind, std::move(packed));
    return;
  }
  struct Rest {
    std::atomic<size_t> left;
    detail::Packed packed;
  };
  auto rest = std::make_shared<Rest>(nested.size(), std::move(packed));
  for (const auto& one : nested) {
    one->on_done([self = std::static_pointer_cast<Serving>(shared_from_this()), rest, kind] {
      if (--rest->left == 0) self->answer(kind, std::move(rest->packed));
    });
  }
}

void Serving::answer(Kind kind, detail::Packed packed) {
  if (answered_.exchange(true)) return;
  Head head;
  head.kind = static_cast<uint16_t>(kind);
  head.call = head_.call;
  head.context = head_.context;
  head.reply_message = head_.reply_message;
  if (kind == Kind::kReply && head_.context >= 0 && from_ != agent_->rank() && agent_->bridge())
    agent_->bridge()->record_reply(head, packed.tensors, from_);
  {
    const std::lock_guard lock(agent_->serving_mutex_);
    agent_->serving_.erase({from_, head_.call});
  }
  ++agent_->num_calls_served_;
  ++agent_->workers_[from_].num_calls_served;
  // Where a short call comes next, its reply goes along in one write.
  const bool flush = from_ == agent_->rank() || !agent_->pool_->has_short_next();
  try {
    agent_->send(from_, head, std::move(packed), flush);
  } catch (const UsageError&) {
    // A result that cannot travel: a tensor of an unknown kind, on a device without a place.
    head.kind = static_cast<uint16_t>(Kind::kError);
    agent_->send(from_, head, error_values(std::current_exception()), true);
  }
  --agent_->num_serving_;
  if (agent_->in_shutdown_) agent_->maybe_report();
}

detail::Packed Serving::error_values(const std::exception_ptr& error) const {
  std::string type;
  const std::string reason = words_of(error, type);
  detail::Packed packed;
  Writer writer(packed);
  writer.string(type);
  writer.string(reason);
  writer.string(function_.served.name);
  return packed;
}

void AgentCore::on_call(int from, Decoded message) {
  const auto refuse = [&](const std::string& why) {
    Head head;
    head.kind = static_cast<uint16_t>(Kind::kError);
    head.call = message.head.call;
    detail::Packed packed;
    Writer writer(packed);
    writer.string("hasten::UsageError");
    writer.string(why);
    writer.string("?");
    send(from, head, std::move(packed));
  };
  const uint32_t index = message.head.function;
  if (index >= functions_.size() || functions_[index]->signature != message.head.signature) {
    refuse(text(message_prefix(origin()), "a call of function ", index,
                " with another signature came. Start all workers from one build."));
    return;
  }
  ServedFunction& function = *functions_[index];
  const bool creates = static_cast<Kind>(message.head.kind) == Kind::kCreate;
  if (creates && !objects_->expect({static_cast<uint32_t>(from), message.head.created})) {
    refuse(text(message_prefix(origin()), "a value was created twice."));
    return;
  }
  // In the order of arrival, so that a settlement that comes later finds it.
  if (message.head.context >= 0 && bridge_ && from != rank_)
    bridge_->record_arrival(message.head, message.packed.tensors, message.requires_grad, from);
  const auto call = message.head.call;
  const auto serving = std::make_shared<Serving>(self(), from, std::move(message));
  {
    const std::lock_guard lock(serving_mutex_);
    serving_.emplace(std::pair{from, call}, serving);
  }
  if (function.num_waiting >= function.served.options.most_waiting) {
    serving->fail(std::make_exception_ptr(CommError(origin(), "call", function.num_waiting.load(), " calls of ",
                                                    function.served.name,
                                                    " wait already (most_waiting); this one was refused.")));
    return;
  }
  serving->schedule();
}

void AgentCore::on_status(int from, const Decoded& message) {
  const auto call = served_call(from, message.head.call);
  const std::string state = call ? "it is " + call->state() : "it never arrived there";
  Head head;
  head.kind = static_cast<uint16_t>(Kind::kStatusReply);
  head.call = message.head.call;
  detail::Packed packed;
  Writer(packed).string(state);
  send(from, head, std::move(packed));
}

void AgentCore::profile_server(const std::function<void()>& fn) {
  const auto set = [this](std::shared_ptr<const ProfilerOfThread> profiler) {
    const std::lock_guard lock(profile_mutex_);
    server_profiler_ = std::move(profiler);
    profiles_server_ = server_profiler_ != nullptr;
  };
  set(std::make_shared<const ProfilerOfThread>(ProfilerOfThread::current()));
  try {
    fn();
  } catch (...) {
    set(nullptr);
    throw;
  }
  set(nullptr);
}

std::shared_ptr<const ProfilerOfThread> AgentCore::server_profiler() const {
  if (!profiles_server_) return nullptr;
  const std::lock_guard lock(profile_mutex_);
  return server_profiler_;
}

bool CallInfo::can_carry(c10::Device device) const {
  return static_cast<AgentCore&>(*served->core()).can_reply_from(device, caller.id);
}

bool CallInfo::cancelled() const {
  return static_cast<const Serving&>(*served).cancelled();
}

CallInfo call() {
  const auto& served = detail::current_thread().served;
  if (!served) throw UsageError({"rpc"}, "rpc::call() was used outside a handler; there is no call here.");
  return {served->core()->worker(static_cast<const Serving&>(*served).caller()), served};
}

}  // namespace hasten::rpc
