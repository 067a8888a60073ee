// AgentCore: the mechanism of an agent. Its functions are in four sources: calls (the caller's side), serving (the
// callee's), references, and ending (loss, timers, shutdown).
#pragma once

#include <sys/types.h>
#include <unistd.h>

#include <array>
#include <atomic>
#include <chrono>
#include <map>
#include <memory>
#include <mutex>
#include <optional>
#include <set>
#include <string>
#include <unordered_map>
#include <utility>
#include <vector>

#include "hasten/comm/messages/messages.h"
#include "hasten/core/error.h"
#include "hasten/core/log.h"
#include "hasten/rpc/functions.h"
#include "hasten/rpc/future.h"
#include "hasten/rpc/options.h"
#include "rpc/ending.h"
#include "rpc/objects.h"
#include "rpc/pool.h"
#include "rpc/profiling.h"
#include "rpc/thread_state.h"
#include "rpc/wire.h"
#include "rpc/workers.h"

namespace hasten::process {
class Process;
}

namespace hasten::rpc {

class Bridge;
class Serving;
using Clock = std::chrono::steady_clock;

/// Counts of one function, by powers of the fourth root of two of microseconds.
class Histogram {
 public:
  void add(double us);
  double quantile(double q) const;

 private:
  std::array<uint32_t, 128> counts_{};
};

struct ServedFunction {
  detail::Served served;
  uint32_t signature = 0;
  std::shared_ptr<Strand> strand = {};
  std::atomic<int64_t> num_waiting = 0;
  std::atomic<int> num_short = 0;  // successive runs of microseconds
  std::mutex mutex = {};
  int64_t num_calls = 0;
  Histogram queue = {}, run = {};
};

/// The parts of an agent at its construction.
struct AgentPlace {
  int rank = -1, world_size = 0;
  std::string run_key = {};
  /// The names of a worker whose options have none; empty: "worker" and its rank.
  std::string name = {}, second_name = {};
  /// All workers of a run; without it workers join one by one at `store`.
  std::optional<comm::Group> group = {};
  std::optional<comm::Store> store = {};
  comm::GroupOptions where = {};
  static AgentPlace of(const process::Process& process, const RpcOptions& options);
};

/// What all workers have brought, or which one does not come.
struct Gathered {
  std::map<std::string, std::string> values;
  std::string lost;
};

class AgentCore final : public detail::Core, public detail::Executor, public comm::MessageSink {
 public:
  AgentCore(AgentPlace place, Functions functions, RpcOptions options);
  ~AgentCore() override;
  void start();
  void close(bool gracefully) noexcept;

  // ---- detail::Core
  std::shared_ptr<detail::Executor> executor() const override;
  int rank() const override { return rank_; }
  const WorkerInfo& worker(int rank) const override;
  int rank_of(const To& to) const override;
  void call(const detail::CallSpec& spec, detail::Packed packed,
            const std::shared_ptr<detail::ReplyBase>& reply) override;
  std::shared_ptr<detail::Reference> create(const detail::CallSpec& spec, detail::Packed packed) override;
  std::shared_ptr<detail::Reference> adopt(detail::Object object) override;
  detail::Object local_object(const detail::Reference& reference) override;
  std::vector<std::shared_ptr<std::mutex>> locks_of(const std::vector<at::Tensor>& parameters) override;
  void fetch(const detail::Reference& reference, const std::string& description, const CallOptions& options,
             const std::shared_ptr<detail::ReplyBase>& reply) override;

  // ---- detail::Executor
  void run(std::function<void()> task) override;
  void wait(detail::StateBase& state, std::optional<Clock::time_point> until) override;

  // ---- comm::MessageSink
  std::unique_ptr<comm::IncomingMessage> begin(int from, std::string_view head, int64_t body_bytes) override;
  void joined(int rank) override;
  void gone(int rank, bool left, const std::string& reason) override;
  void timer() override;

  void dispatch(int from, Decoded message);
  void shutdown(double timeout_s);
  AgentStats stats();
  std::map<std::string, std::string> gather(const std::string& mine, std::vector<std::string> workers);

  // ---- References.
  std::shared_ptr<detail::Reference> received(const WireReference& wire, int from);
  void let_go(const detail::ObjectId& id, int owner, const Grant& grant) noexcept;

  // ---- Messages of other parts.
  void send(int to, Head head, detail::Packed packed = {}, bool flush = true);
  /// Sends an engine message and calls `answered` with the reply, or with an error.
  using EngineAnswer = std::function<void(std::exception_ptr, Decoded*)>;
  void ask(int to, Head head, detail::Packed packed, EngineAnswer answered);

  /// Asks the maker of an autograd context to notify this worker of its release. `answered` gets false if it has been
  /// released, nothing if the maker cannot be asked.
  void join_context(int maker, int64_t context, std::function<void(std::optional<bool>)> answered);

  Origin origin() const { return {"rpc", rank_, workers_.size()}; }
  Workers& workers() { return workers_; }
  bool is_dynamic() const { return !place_.group.has_value(); }
  std::string described(int rank) const;
  Functions make_own_functions();
  Pool& pool() { return *pool_; }
  Bridge* bridge() const { return bridge_.get(); }
  const RpcOptions& options() const { return options_; }
  /// Returns true if a tensor on `device` can go to a worker, in a reply.
  bool can_reply_from(c10::Device device, int to) const;
  /// While `fn` runs, handlers record for this thread's profiler.
  void profile_server(const std::function<void()>& fn);
  std::shared_ptr<const ProfilerOfThread> server_profiler() const;
  std::shared_ptr<AgentCore> self() { return std::static_pointer_cast<AgentCore>(shared_from_this()); }
  comm::Messages& messages() { return *messages_; }
  using Listener = std::function<void(const WorkerInfo&, WorkerEvent)>;
  void on_worker(Listener fn);

 private:
  friend class Serving;
  struct Pending {
    std::shared_ptr<detail::ReplyBase> reply;
    EngineAnswer engine;
    int to = -1;
    std::string function;
    Clock::time_point started = Clock::now(), deadline = Clock::time_point::max();
    double timeout_s = 0;
    Head head = {};
    bool requested = false;
    std::vector<std::shared_ptr<detail::Reference>> kept = {};
    /// A call that is sent again when another worker of this name comes (FunctionOptions::idempotent).
    struct Again {
      std::string worker, function;
      uint32_t signature;
      detail::Packed packed;
    };
    std::shared_ptr<const Again> again = {};
  };

  std::string about() const;
  void meet_all();
  void join_one_by_one();
  void check_process() const;
  void serve_functions(Functions functions);
  const RemoteWorker::Function& find(const detail::CallSpec& spec) const;
  void register_call(uint64_t id, Pending pending);
  ProfiledCall profiled(Kind kind, const Head& head, std::string_view function, int from, int to) const;
  void post(int to, comm::OutgoingMessage message, bool flush, bool counted = true);
  void send_call(int to, Head head, detail::Packed packed, const std::string& function);
  void watch_cancel(const std::shared_ptr<detail::ReplyBase>& reply, const Head& head, int to);
  bool wait_for_another(uint64_t call);
  bool is_waiting_for_another(uint64_t call);
  void send_again(int rank);
  DevicePlacement placement(int to, bool is_reply, const std::string& what) const;
  void complete(uint64_t call, const std::function<void(Pending&)>& finish);
  void fail_call(uint64_t call, const std::exception_ptr& error);
  void start_call(const detail::CallSpec& spec, detail::Packed packed, Pending pending, Kind kind, uint64_t created);
  void set_deadline(Pending& pending, const CallOptions& options) const;
  std::vector<WireReference> pass_on(const detail::Packed& packed, int to);
  void take_back(const std::vector<WireReference>& references);
  std::shared_ptr<Serving> served_call(int from, uint64_t call);
  void cancel_served_for(int lost);
  void fail_pending_to(int rank, const std::string& what, const std::string& reason);
  void on_reply(int from, Decoded& message);
  void on_reference(int from, const Decoded& message);
  void on_call(int from, Decoded message);
  void on_status(int from, const Decoded& message);
  void on_status_reply(Decoded& message);
  void on_ending(int from, const Decoded& message);
  void expire_now();
  void time_out(uint64_t call, const std::string& state);
  std::string described_target(const Pending& pending) const;
  std::exception_ptr timeout_error(const Pending& pending, const std::string& state) const;
  bool is_idle();
  void maybe_report();
  int coordinator() const;
  std::string words_of_waits();
  void advance_ending();
  EndingReport report_now();
  void expect_in_gathering(const std::string& name);
  void fail_gatherings(int gone);
  void later(Clock::time_point when, std::function<void()> what);
  [[noreturn]] void throw_closed() const;

  AgentPlace place_;
  int rank_;
  const pid_t process_ = getpid();
  RpcOptions options_;
  Logger log_;
  Workers workers_;
  std::vector<std::unique_ptr<ServedFunction>> functions_;
  std::unique_ptr<comm::Messages> messages_;
  std::unique_ptr<Pool> pool_;
  std::unique_ptr<Objects> objects_;
  std::unique_ptr<Bridge> bridge_;
  std::atomic<bool> closed_ = false;

  std::mutex calls_mutex_;
  std::unordered_map<uint64_t, Pending> pending_;
  std::atomic<uint64_t> next_call_ = 1, next_object_ = 1, next_grant_ = 1;

  std::mutex serving_mutex_;
  std::map<std::pair<int, uint64_t>, std::weak_ptr<detail::ServedCall>> serving_;
  std::atomic<int64_t> num_serving_ = 0, num_calls_sent_ = 0, num_calls_served_ = 0, bytes_sent_ = 0,
                       bytes_received_ = 0;

  // References of this worker to values elsewhere, by their grant.
  std::mutex references_mutex_;
  std::map<Grant, std::pair<detail::ObjectId, int>> held_;

  std::mutex ending_mutex_;
  std::set<int> lost_, left_;
  std::optional<Ending> ending_;
  int asked_round_ = 0, reported_round_ = 0, asked_by_ = 0;
  std::atomic<bool> in_shutdown_ = false;
  std::shared_ptr<detail::State<std::string>> ended_;
  std::multimap<Clock::time_point, std::function<void()>> later_;
  std::vector<Listener> listeners_;

  struct Gathering {
    std::map<std::string, std::string> values;
    std::vector<std::string> awaited;
    std::vector<Promise<Gathered>> waiting;
  };
  std::mutex parameters_mutex_;
  std::map<const c10::TensorImpl*, std::weak_ptr<std::mutex>> parameter_locks_;

  mutable std::mutex profile_mutex_;
  std::shared_ptr<const ProfilerOfThread> server_profiler_;
  std::atomic<bool> profiles_server_ = false;

  std::mutex gather_mutex_;
  std::map<std::string, Gathering> gatherings_;
  std::map<std::string, int64_t> gather_rounds_;
};

/// Returns the words of an error, without this process's own prefix.
std::string words_of(const std::exception_ptr& error, std::string& type);
std::exception_ptr error_of(const Origin& origin, const std::string& type, const std::string& words,
                            const std::string& worker, const std::string& function);

}  // namespace hasten::rpc
