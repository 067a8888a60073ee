// The nodes of an elastic run that is to be hurt (elastic_faults.h): each a launcher on this machine or,
// where there are machines (network namespaces), on one of its own. Node 0 is the first host of the
// rendezvous.
#pragma once

#include <csignal>
#include <memory>
#include <set>

#include "cli/machine_faults.h"
#include "hasten/launch/base/port.h"

namespace hasten::test {

class ElasticNodes : public MachineFaults {
 protected:
  // A Command waits for all children when it is destroyed, so none may be left of the others.
  ~ElasticNodes() override {
    for (const auto& node : nodes_) kill(node->run.pid(), SIGKILL);
  }

  struct Node {
    Node(const std::vector<std::string>& words, const std::map<std::string, std::string>& variables, int num)
        : run(words, variables), num_workers(num) {}

    Command run;
    int num_workers;
    std::vector<Worker> workers = {};  // of the last round, by local rank
    int first_rank = 0;
    CommandResult result = {};
  };
  using Nodes = std::set<size_t>;

  // As --rdzv_conf has them below.
  static constexpr double kLossTimeout = 1.5, kLastCall = 1;
  static constexpr double kSearch = 2;  // how long a node waits for the answers of those that may be the host

  // --nnodes least:num_nodes
  void plan_nodes(int num_nodes, int least, std::vector<std::string> options = {},
                  const std::string& join_timeout = "60") {
    nodes_.clear();
    on_machines_ = with_machines_ && draw(0, 1) == 1;
    options_ = {"--nnodes",
                text(least, ":", num_nodes),
                "--rdzv_backend",
                "c10d",
                "--rdzv_conf",
                "last_call_timeout=1,keep_alive_interval=0.3,keep_alive_max_attempt=5,join_timeout=" + join_timeout,
                "--shutdown_timeout",
                "0.1"};
    options_.insert(options_.end(), options.begin(), options.end());
    port_ = launcher::free_port();
  }

  // On the machine of its number, which a node that comes later has in common with one before.
  void start_node(size_t machine) { start_node(machine, draw(1, 2)); }
  void start_node(size_t machine, int num_workers) {
    auto options = options_;
    options.insert(options.end(), {"--rdzv_endpoint", text(on_machines_ ? address(0) : "127.0.0.1", ':', port_),
                                   "--nproc_per_node", text(num_workers)});
    auto variables = environment();
    variables["HASTEN_RDZV_SECRET"] = "a secret of all the nodes";
    const auto words = script_words(options, worker_script("while :; do sleep 0.01; done"));
    nodes_.push_back(std::make_unique<Node>(on_machines_ ? on_machine(static_cast<int>(machine), words) : words,
                                            variables, num_workers));
  }

  // All nodes, and node 0 before the others.
  void start_nodes(int num_nodes) {
    start_node(0);
    EXPECT_THAT(nodes_[0]->run.read_error_line(), ::testing::HasSubstr("hosting the rendezvous at "));
    for (int i = 1; i < num_nodes; ++i) start_node(static_cast<size_t>(i));
    wait_for_round(all());
  }

  Nodes all() const {
    Nodes nodes;
    for (size_t i = 0; i < nodes_.size(); ++i) nodes.insert(i);
    return nodes;
  }
  Nodes all_but(size_t one) const {
    Nodes nodes = all();
    nodes.erase(one);
    return nodes;
  }
  int world_of(const Nodes& members) const {
    int world = 0;
    for (const size_t i : members) world += nodes_[i]->num_workers;
    return world;
  }

  // Blocks until the workers of these nodes are ready, as a world without others.
  void wait_for_round(const Nodes& members, int restart = 0) {
    const int world = world_of(members);
    std::set<size_t> ranks;
    for (const size_t i : members) {
      Node& node = *nodes_[i];
      node.workers.assign(static_cast<size_t>(node.num_workers), {});
      for (int num_ready = 0; num_ready < node.num_workers;) {
        const auto [rank, worker] = read_worker_of(node);
        if (worker.world_size != world || worker.restart != restart) continue;
        node.workers.at(static_cast<size_t>(worker.local_rank)) = worker;
        node.first_rank = static_cast<int>(rank) - worker.local_rank;
        ranks.insert(rank);
        ++num_ready;
      }
    }
    EXPECT_EQ(ranks.size(), static_cast<size_t>(world));
    EXPECT_EQ(*ranks.rbegin() + 1, static_cast<size_t>(world));
  }

  // The error tells what all nodes have said.
  std::pair<size_t, Worker> read_worker_of(const Node& node) {
    try {
      return read_worker(node.run);
    } catch (const std::runtime_error& error) {
      std::string all_said = error.what();
      for (const auto& one : nodes_) kill(one->run.pid(), SIGKILL);
      for (const auto& one : nodes_) {
        all_said += text("\n", one.get() == &node ? "It said:\n" : "Another:\n", one->run.finish().err);
      }
      throw std::runtime_error(all_said);
    }
  }

  void expect_end(size_t i, int exit_code) {
    nodes_[i]->result = nodes_[i]->run.finish();
    EXPECT_EQ(nodes_[i]->result.exit_code, exit_code) << nodes_[i]->result.err;
  }
  void expect_said(size_t i, const std::string& words) const {
    EXPECT_THAT(nodes_[i]->result.err, ::testing::HasSubstr(words));
  }
  void end(const Nodes& members) {
    for (const size_t i : members) kill(nodes_[i]->run.pid(), SIGTERM);
    for (const size_t i : members) expect_end(i, 143);
  }

  // What these nodes have said about the loss of node `lost`, and about what followed.
  void expect_loss_told(size_t lost, const Nodes& members, const std::string& how = "") const {
    bool has_host = lost != 0;
    for (const size_t i : members) {
      expect_said(i, lost == 0 ? "hasten: lost the host of the rendezvous: " + how : " was lost: " + how);
      expect_said(i, text(": ", members.size(), members.size() == 1 ? " node" : " nodes", ", world size ",
                          world_of(members), "; this is node "));
      has_host |= nodes_[i]->result.err.find("took the rendezvous over, at ") != std::string::npos;
    }
    EXPECT_TRUE(has_host);
  }

  static void collect_tree(pid_t root, std::vector<pid_t>& tree) {
    kill(root, SIGSTOP);  // so that it makes no more
    tree.push_back(root);
    std::ifstream children(text("/proc/", root, "/task/", root, "/children"));
    for (pid_t child = 0; children >> child;) collect_tree(child, tree);
  }
  static void kill_tree(pid_t root) {
    std::vector<pid_t> tree;
    collect_tree(root, tree);
    for (const pid_t process : tree) kill(process, SIGKILL);
  }

  bool with_machines_ = false;  // whether make_machines has made three of them
  bool on_machines_ = false;    // in the run that is being made
  std::vector<std::string> options_;
  int port_ = 0;
  std::vector<std::unique_ptr<Node>> nodes_;
};

}  // namespace hasten::test
