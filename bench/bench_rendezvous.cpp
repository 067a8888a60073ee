// 256 nodes of an elastic run in one process, over real connections on loopback: how long until all have
// their ranks, how long the next round takes when one is lost, and what memory the nodes take.
//
// The nodes have no workers. They take turns in one loop, so the time is that of all nodes' work together,
// which on 256 machines is shared out.
#include <sys/resource.h>
#include <unistd.h>

#include <iostream>
#include <memory>
#include <nlohmann/json.hpp>

#include "hasten/core/hmac.h"
#include "hasten/launch/base/port.h"
#include "launch/rendezvous/rendezvous_node.h"
#include "support.h"

namespace {

using namespace hasten::launcher;

constexpr int kNumNodes = 256;

class Nodes {
 public:
  Nodes() : endpoint_{"127.0.0.1", free_port()} {
    for (int i = 0; i < kNumNodes; ++i) {
      nodes_.push_back(std::make_unique<RendezvousNode>(
          RendezvousNodeOptions{.settings = {.min_nodes = kNumNodes - 1, .max_nodes = kNumNodes},
                                .run_key = key_,
                                .name = "node" + std::to_string(i),
                                .num_workers = 8,
                                .endpoint = endpoint_},
          std::make_unique<EndpointFinder>(endpoint_, key_), std::chrono::steady_clock::now()));
    }
  }

  // Until `round` has started on all nodes.
  void run_until_started(int round) {
    std::vector<bool> started(nodes_.size());
    for (size_t num_started = 0; num_started < nodes_.size();) {
      turn();
      for (size_t i = 0; i < nodes_.size(); ++i) {
        const auto now = std::chrono::steady_clock::now();
        if (nodes_[i]->take_stop()) nodes_[i]->workers_gone(143, "", now);
        const auto start = nodes_[i]->take_start();
        if (!start || start->round != round) continue;
        if (start->num_nodes != static_cast<int>(nodes_.size())) throw std::runtime_error("the world is wrong");
        num_started += started[i] ? 0 : 1;
        started[i] = true;
      }
    }
  }

  void lose_one() { nodes_.pop_back(); }

 private:
  void turn() {
    std::vector<pollfd> sources;
    for (const auto& node : nodes_) node->add_sources(sources);
    poll(sources.data(), sources.size(), 1);
    for (const auto& node : nodes_) node->pump(std::chrono::steady_clock::now());
  }

  const hasten::Bytes key_ = hasten::Bytes(hasten::kHashBytes, 'k');
  const Endpoint endpoint_;
  std::vector<std::unique_ptr<RendezvousNode>> nodes_;
};

}  // namespace

int main() {
  rlimit files = {};
  getrlimit(RLIMIT_NOFILE, &files);
  files.rlim_cur = files.rlim_max;
  setrlimit(RLIMIT_NOFILE, &files);
  const double before_mb = bench::memory_mb("VmRSS");
  std::unique_ptr<Nodes> nodes;
  const double first_ms = bench::time_ms([&] {
    nodes = std::make_unique<Nodes>();
    nodes->run_until_started(1);
  });
  const double next_ms = bench::time_ms([&] {
    nodes->lose_one();
    nodes->run_until_started(2);
  });
  nlohmann::json line;
  line["first_round_ms"] = first_ms;
  line["next_round_ms"] = next_ms;
  line["memory_mb"] = bench::memory_mb("VmHWM") - before_mb;
  std::cout << line << std::endl;
}
