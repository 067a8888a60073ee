// Ties a node of the rendezvous to the workers; see elastic_run.h.
#include "hasten/launch/run/elastic_run.h"

#include <unistd.h>

#include <algorithm>
#include <csignal>
#include <cstring>
#include <iostream>

#include "hasten/core/error.h"
#include "launch/base/endpoint.h"
#include "launch/base/print_notice.h"
#include "launch/rendezvous/etcd_finder.h"
#include "launch/rendezvous/rendezvous_node.h"
#include "launch/rendezvous/rendezvous_secret.h"
#include "launch/run/elastic_rounds.h"

namespace hasten::launcher {
namespace {

constexpr int kDefaultPort = 29400;  // torchrun's
constexpr int kEtcdPort = 2379;

// Connects the supervisor and the workers. The rendezvous's decisions come to the supervisor as a signal, and the
// workers' events go to the rendezvous.
class NodeRounds final : public ElasticRounds, private WorkerProcesses {
 public:
  explicit NodeRounds(RendezvousNode& node) : node_(node) {}

  void add_sources(std::vector<pollfd>& sources) const override { node_.add_sources(sources); }

  std::optional<Assignment> next(WorkerProcesses& processes) override {
    while (true) {
      node_.pump(processes.now());
      if (const auto code = node_.exit_code(processes.now())) {
        exit_code_ = *code;
        return std::nullopt;
      }
      if (const auto start = node_.take_start()) {
        stopping_ = false;
        first_rank_ = start->first_rank;
        return start;
      }
      const Event event = processes.wait(node_.deadline());
      if (event.kind == Event::Kind::kSignal && ends_run(event.value)) node_.end_signal(event.value, processes.now());
    }
  }

  WorkerProcesses& supervised(WorkerProcesses& processes) override {
    workers_ = &processes;
    return *this;
  }

  void ended(const Outcome& outcome, const std::string& report) override {
    node_.workers_gone(outcome.exit_code, report, now());
  }

  std::string report() const override { return node_.report(); }
  int exit_code() const override { return exit_code_; }

 private:
  std::vector<pid_t> start(int num_workers) override { return workers_->start(num_workers); }
  pid_t start_one(int local_rank) override { return workers_->start_one(local_rank); }
  void signal(int local_rank, int signal) override { workers_->signal(local_rank, signal); }
  TimePoint now() const override { return workers_->now(); }

  Event wait(std::optional<TimePoint> deadline) override {
    while (true) {
      node_.pump(now());
      if (node_.take_stop() && !std::exchange(stopping_, true)) return {.kind = Event::Kind::kSignal, .value = SIGTERM};
      const Event event = workers_->wait(earlier(deadline, node_.deadline()));
      const bool passed = deadline && now() >= *deadline;
      if (event.kind == Event::Kind::kOther || (event.kind == Event::Kind::kDeadline && !passed)) continue;
      tell(event);
      return event;
    }
  }

  void tell(const Event& event) {
    if (event.kind == Event::Kind::kSignal && ends_run(event.value)) {
      stopping_ = true;
      node_.end_signal(event.value, now());
    }
    if (event.kind == Event::Kind::kExited && event.value != 0 && !std::exchange(stopping_, true)) {
      node_.worker_failed(text("rank ", first_rank_ + event.local_rank, " failed: ", describe_end(event.value)),
                          exit_code_of(event.value), now());
    }
  }

  static std::optional<TimePoint> earlier(std::optional<TimePoint> a, std::optional<TimePoint> b) {
    if (!a || !b) return a ? a : b;
    return std::min(*a, *b);
  }

  RendezvousNode& node_;
  WorkerProcesses* workers_ = nullptr;
  bool stopping_ = false;  // the workers are being stopped, or were signalled to end
  int first_rank_ = 0;
  int exit_code_ = 0;
};

// This launcher listens where etcd is reached from, should it become the host.
std::unique_ptr<HostFinder> etcd_finder(const ElasticOptions& elastic, const Endpoint& server,
                                        const std::string& run_id, const std::string& user, Seconds loss_timeout,
                                        const Bytes& run_key) {
  const std::string address = elastic.local_addr.empty() ? address_towards(server) : elastic.local_addr;
  auto [listener, why] = listen_at({address, 0});
  if (listener.handle() < 0) {
    throw UsageError({"launch"}, "cannot listen at '", address, "': ", why,
                     ". Give an address of this machine with --local_addr.");
  }
  return std::make_unique<EtcdFinder>(
      EtcdFinderOptions{.url = (elastic.etcd.tls ? "https://" : "http://") + shown(server),
                        .access = elastic.etcd,
                        .user = user,
                        .key = "/hasten/" + run_id + "/host",
                        .run_key = run_key,
                        .listener = std::move(listener),
                        .loss_timeout = loss_timeout,
                        .notice = print_notice});
}

EnvironmentPlan without_secrets(EnvironmentPlan environment) {
  for (const char* name : kSecretVariables) environment.withheld.emplace_back(name);
  return environment;
}

}  // namespace

int run_elastic(int num_workers, const LaunchOptions& options, const ElasticOptions& elastic,
                const EnvironmentPlan& environment, const WorkerBody& body) {
  const Environment& inherited = environment.inherited;
  const bool by_etcd = elastic.backend != "c10d";
  Endpoint endpoint = parse_endpoint(elastic.endpoint, by_etcd ? kEtcdPort : kDefaultPort);
  // A single machine by its own name. No other machine has to reach it or to share a secret with it.
  if (!by_etcd && elastic.settings.max_nodes == 1 && is_this_machine(endpoint.host)) endpoint.host = "localhost";
  RendezvousSettings settings = elastic.settings;
  const RunSecret secret(inherited, options.run.run_id, endpoint.port, is_loopback(endpoint.host));
  settings.max_restarts = options.run.max_restarts;
  settings.restart_delay = Seconds(options.monitor_interval_s);
  const std::string host = host_name();
  RendezvousNodeOptions node_options{.settings = settings,
                                     .run_key = secret.run_key(),
                                     .name = host.empty() ? "unknown" : host,
                                     .num_workers = num_workers,
                                     .local_addr = elastic.local_addr,
                                     .notice = print_notice};
  std::unique_ptr<HostFinder> finder;
  if (by_etcd) {
    finder = etcd_finder(elastic, endpoint, options.run.run_id, inherited.text("HASTEN_ETCD_USER").value_or(""),
                         settings.loss_timeout(), secret.run_key());
  } else {
    node_options.endpoint = endpoint;
    finder = std::make_unique<EndpointFinder>(endpoint, secret.run_key());
  }
  RendezvousNode node(node_options, std::move(finder), std::chrono::steady_clock::now());
  NodeRounds rounds(node);
  const int exit_code = run_in_rounds(num_workers, options, without_secrets(environment), body, rounds);
  if (node.is_last()) secret.remove();
  return exit_code;
}

}  // namespace hasten::launcher
