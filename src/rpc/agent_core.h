// AgentCore: the mechanism of an agent. Its functions stand in four sources: calls (the caller's side), serving (the
// callee's), references, and ending (loss, timers, shutdown).
#pragma once

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
#include "hasten/rpc/agent.h"
#include "rpc/current.h"
#include "rpc/ending.h"
#include "rpc/objects.h"
#include "rpc/pool.h"
#include "rpc/wire.h"

namespace hasten::rpc {

class Bridge;
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

/// What a worker told at the start.
struct RemoteWorker {
  WorkerInfo info;
  struct Function {
    uint32_t index, signature;
    std::string description;
  };
  std::unordered_map<std::string_view, Function> functions;
  std::vector<std::unique_ptr<std::string>> names;
};

class AgentCore final : public detail::Core, public detail::Executor, public comm::MessageSink {
 public:
  AgentCore(const process::Process& process, Functions functions, RpcOptions options);
  ~AgentCore() override;
  void start(const process::Process& process);
  void close(bool gracefully) noexcept;

  // ---- detail::Core
  std::shared_ptr<detail::Executor> executor() const override;
  int rank() const override { return rank_; }
  const WorkerInfo& worker(int rank) const override;
  int rank_of(const To& to) const override;
  void call(const detail::CallSpec& spec, detail::Packed packed, const std::shared_ptr<detail::ReplyBase>& reply) override;
  std::shared_ptr<detail::Reference> create(const detail::CallSpec& spec, detail::Packed packed) override;
  std::shared_ptr<detail::Reference> adopt(detail::Object object) override;
  detail::Object local_object(const detail::Reference& reference) override;
  void fetch(const detail::Reference& reference, const std::string& description, const CallOptions& options,
             const std::shared_ptr<detail::ReplyBase>& reply) override;

  // ---- detail::Executor
  void run(std::function<void()> task) override;
  void wait(detail::StateBase& state, std::optional<Clock::time_point> until) override;

  // ---- comm::MessageSink
  std::unique_ptr<comm::IncomingMessage> begin(int from, std::string_view head, int64_t body_bytes) override;
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

  Origin origin() const { return {"rpc", rank_, world_size_}; }
  int world_size() const { return world_size_; }
  std::string described(int rank) const;
  Functions make_own_functions();
  Pool& pool() { return *pool_; }
  Bridge* bridge() const { return bridge_.get(); }
  const RpcOptions& options() const { return options_; }
  std::shared_ptr<AgentCore> self() { return std::static_pointer_cast<AgentCore>(shared_from_this()); }
  comm::Messages& messages() { return *messages_; }
  void on_worker(std::function<void(const WorkerInfo&, WorkerEvent)> fn);

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
    bool asked = false;
    std::vector<std::shared_ptr<detail::Reference>> kept = {};
  };
  struct Found {
    uint32_t function;
  };

  void check_options(const process::Process& process);
  std::string about() const;
  void read_abouts();
  void serve_functions(Functions functions);
  const RemoteWorker::Function& find(const detail::CallSpec& spec) const;
  uint64_t register_call(Pending pending);
  void complete(uint64_t call, const std::function<void(Pending&)>& finish);
  void fail_call(uint64_t call, const std::exception_ptr& error);
  void start_call(const detail::CallSpec& spec, detail::Packed packed, Pending pending, Kind kind, detail::ObjectId object);
  void set_deadline(Pending& pending, const CallOptions& options) const;
  std::vector<WireReference> pass_on(const detail::Packed& packed, int to);
  void take_back(const std::vector<WireReference>& references);
  void fail_pending_to(int rank, const std::string& what, const std::string& reason);
  void on_reply(int from, Decoded& message);
  void on_reference(int from, const Decoded& message);
  void on_call(int from, Decoded message);
  void on_status(int from, const Decoded& message);
  void on_status_reply(Decoded& message);
  void on_ending(int from, const Decoded& message);
  void expire_now();
  void time_out(uint64_t call, const std::string& state);
  std::exception_ptr timeout_error(const Pending& pending, const std::string& state) const;
  bool is_idle();
  void maybe_report();
  void advance_ending();
  EndingReport report_now();
  void later(Clock::time_point when, std::function<void()> what);
  [[noreturn]] void throw_closed() const;

  const int rank_, world_size_;
  RpcOptions options_;
  Logger log_;
  std::vector<RemoteWorker> workers_;
  std::unordered_map<std::string, int> ranks_;
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
  std::atomic<int64_t> num_serving_ = 0, num_calls_sent_ = 0, num_calls_served_ = 0, bytes_sent_ = 0, bytes_received_ = 0;

  // References of this worker to values elsewhere, by their grant.
  std::mutex references_mutex_;
  std::map<Grant, std::pair<detail::ObjectId, int>> held_;

  std::mutex ending_mutex_;
  std::vector<std::atomic<uint64_t>> sent_, received_;
  std::set<int> lost_, left_;
  std::optional<Ending> ending_;
  int asked_round_ = 0, reported_round_ = 0;
  std::atomic<bool> in_shutdown_ = false;
  std::shared_ptr<detail::State<std::string>> ended_;
  std::multimap<Clock::time_point, std::function<void()>> later_;
  std::vector<std::function<void(const WorkerInfo&, WorkerEvent)>> listeners_;

  struct Gathering {
    std::map<std::string, std::string> values;
    std::vector<Promise<std::map<std::string, std::string>>> waiting;
  };
  std::mutex gather_mutex_;
  std::map<std::string, Gathering> gatherings_;
  std::map<std::string, int64_t> gather_rounds_;
};

/// The words of an error, without this process's own prefix.
std::string words_of(const std::exception_ptr& error, std::string& type);
std::exception_ptr error_of(const Origin& origin, const std::string& type, const std::string& words, const std::string& worker,
                            const std::string& function);

}  // namespace hasten::rpc
