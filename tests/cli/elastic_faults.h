// Random faults in elastic runs of two or three nodes.
#pragma once

#include "cli/elastic_nodes.h"

namespace hasten::test {

class ElasticFaults : public ElasticNodes {
 protected:
  // `with_machines`: whether make_machines has made three of them.
  std::vector<Kind> elastic_kinds(bool with_machines) {
    with_machines_ = with_machines;
    std::vector<Kind> kinds = {
        {"elastic: a worker is killed", [this] { workers_killed(&Worker::pid); }},
        {"elastic: a shim is killed", [this] { workers_killed(&Worker::shim); }},
        {"elastic: a node's launcher is killed", [this] { lose_node(false, false); }},
        {"elastic: the host's launcher is killed", [this] { lose_node(true, false); }},
        {"elastic: all processes of a node are killed", [this] { lose_node(false, true); }},
        {"elastic: all processes of the host are killed", [this] { lose_node(true, true); }},
        {"elastic: the host and its successor are killed", [this] { lose_two_hosts(); }},
        {"elastic: a node is lost and too few are left", [this] { too_few_left(); }},
        {"elastic: a node is preempted", [this] { preempt_node(); }},
        {"elastic: a launcher is killed while the nodes gather", [this] { kill_early(); }},
        {"elastic: a launcher is stopped", [this] { stop_launcher(); }},
        {"elastic: a worker is stopped and another node is lost", [this] { stop_worker_and_lose_node(); }}};
    if (with_machines) {
      kinds.push_back({"elastic: a node's cable is cut", [this] { cut_node(false); }});
      kinds.push_back({"elastic: a node's cable is cut for good", [this] { cut_node(true); }});
    }
    return kinds;
  }

 private:
  void workers_killed(pid_t Worker::*whom) {
    const int num_nodes = draw(2, 3), max_restarts = draw(0, 1);
    plan_nodes(num_nodes, draw(1, num_nodes), {"--max_restarts", text(max_restarts), "--monitor_interval", "0"});
    start_nodes(num_nodes);

    int rank = 0;
    for (int restart = 0; restart <= max_restarts; ++restart) {
      if (restart > 0) wait_for_round(all(), restart);
      const Node& node = *nodes_[static_cast<size_t>(draw(0, num_nodes - 1))];
      const int victim = draw(0, node.num_workers - 1);
      rank = node.first_rank + victim;
      kill(node.workers[static_cast<size_t>(victim)].*whom, SIGKILL);
    }
    for (const size_t i : all()) expect_end(i, 137);

    for (const size_t i : all()) {
      expect_said(i, text("hasten: the run is over: rank ", rank, " failed: killed by SIGKILL on node "));
      expect_root_cause(nodes_[i]->result, rank, "killed by SIGKILL");
    }
  }

  void lose_node(bool host, bool whole_tree) {
    const int num_nodes = draw(2, 3), least = draw(1, num_nodes - 1);
    const auto victim = static_cast<size_t>(host ? 0 : draw(1, num_nodes - 1));
    plan_nodes(num_nodes, least);
    start_nodes(num_nodes);
    allow(kSearch + kLossTimeout);

    const Nodes others = all_but(victim);
    whole_tree ? kill_tree(nodes_[victim]->run.pid()) : void(kill(nodes_[victim]->run.pid(), SIGKILL));
    wait_for_round(others);
    expect_end(victim, 137);
    if (draw(0, 1) == 1) {
      start_node(victim);
      wait_for_round(all_but(victim));
    }
    end(all_but(victim));

    expect_loss_told(victim, others);
    remove_what_is_left();
  }

  void lose_two_hosts() {
    plan_nodes(3, 1);
    start_nodes(3);
    allow(2 * kSearch);

    kill(nodes_[0]->run.pid(), SIGKILL);
    wait_for_round({1, 2});
    const size_t successor = nodes_[1]->first_rank == 0 ? 1 : 2, last = 3 - successor;
    kill(nodes_[successor]->run.pid(), SIGKILL);
    wait_for_round({last});
    expect_end(0, 137);
    expect_end(successor, 137);
    end({last});

    expect_said(last, "hasten: took the rendezvous over, at ");
    expect_said(last, text(": 2 nodes, world size ", world_of({1, 2}), "; this is node 1 "));
    expect_said(last, text(": 1 node, world size ", world_of({last}), "; this is node 0 "));
  }

  void too_few_left() {
    const int num_nodes = draw(2, 3);
    const auto victim = static_cast<size_t>(draw(0, num_nodes - 1));
    plan_nodes(num_nodes, num_nodes, {}, "3");
    start_nodes(num_nodes);
    allow(kSearch + 3);

    kill(nodes_[victim]->run.pid(), SIGKILL);
    expect_end(victim, 137);
    for (const size_t i : all_but(victim)) expect_end(i, 1);

    for (const size_t i : all_but(victim)) {
      expect_said(i, text("hasten: the run is over: only ", num_nodes - 1, num_nodes == 2 ? " node" : " nodes",
                          " of at least ", num_nodes, " came within 3 s (join_timeout)\n"));
    }
  }

  void preempt_node() {
    const int num_nodes = draw(2, 3);
    const auto victim = static_cast<size_t>(draw(0, num_nodes - 1));
    plan_nodes(num_nodes, draw(1, num_nodes - 1));
    start_nodes(num_nodes);
    allow(kSearch);

    kill(nodes_[victim]->run.pid(), SIGTERM);
    expect_end(victim, 143);
    const Nodes others = all_but(victim);
    wait_for_round(others);
    end(others);

    if (victim == 0) return expect_loss_told(victim, others);
    for (const size_t i : others) expect_said(i, " left: its launcher was sent SIGTERM");
  }

  void kill_early() {
    plan_nodes(3, 2);
    // The number of workers of some of these nodes says which they are.
    for (size_t i = 0; i < 3; ++i) start_node(i, 1 << i);
    allow(kLastCall + kSearch + kLossTimeout);
    const auto victim = static_cast<size_t>(draw(0, 2));

    usleep(static_cast<useconds_t>(draw(0, 40000)));  // somewhere between its start and its workers'
    kill(nodes_[victim]->run.pid(), SIGKILL);
    // Before they have a round, nodes know no other place to meet than the endpoint, which may be gone.
    if ((on_machines_ && victim == 0) || draw(0, 1) == 1) start_node(victim, 5);
    wait_for_round(all_but(victim));
    expect_end(victim, 137);
    end(all_but(victim));

    remove_what_is_left();
  }

  void stop_launcher() {
    const int num_nodes = draw(2, 3);
    const auto victim = static_cast<size_t>(draw(0, num_nodes - 1));
    plan_nodes(num_nodes, draw(1, num_nodes - 1));
    start_nodes(num_nodes);
    allow(2 * kSearch + 2 * kLossTimeout);

    const Nodes others = all_but(victim);
    kill(nodes_[victim]->run.pid(), SIGSTOP);
    wait_for_round(others);
    const bool comes_back = draw(0, 1) == 1;
    kill(nodes_[victim]->run.pid(), comes_back ? SIGCONT : SIGKILL);
    if (comes_back) wait_for_round(all());
    if (!comes_back) expect_end(victim, 137);
    end(comes_back ? all() : others);

    expect_loss_told(victim, others, "nothing heard for 1.5 s\n");
  }

  void stop_worker_and_lose_node() {
    const int num_nodes = draw(2, 3);
    const auto victim = static_cast<size_t>(draw(0, num_nodes - 1));
    const size_t other = (victim + 1) % static_cast<size_t>(num_nodes);
    plan_nodes(num_nodes, 1);
    start_nodes(num_nodes);
    allow(kSearch);

    kill(nodes_[other]->workers[0].pid, SIGSTOP);
    kill(nodes_[victim]->run.pid(), SIGKILL);
    const Nodes others = all_but(victim);
    wait_for_round(others);
    expect_end(victim, 137);
    end(others);

    expect_loss_told(victim, others);
  }

  // Three nodes, of which two are enough.
  void cut_node(bool for_good) {
    const auto victim = static_cast<size_t>(draw(0, 2));
    plan_nodes(3, 2, {}, for_good ? "5" : "60");
    on_machines_ = true;
    start_nodes(3);
    allow(for_good ? kLossTimeout + kSearch + 5 : 2 * kLossTimeout + 2 * kSearch);

    const Nodes others = all_but(victim);
    cut_cable(static_cast<int>(victim));
    wait_for_round(others);
    if (for_good) expect_end(victim, 1);
    mend_cable(static_cast<int>(victim));
    if (!for_good) wait_for_round(all());
    end(for_good ? others : all());

    expect_loss_told(victim, others, "nothing heard for 1.5 s\n");
    if (for_good) expect_said(victim, "only 1 node of at least 2 came within 5 s (join_timeout)\n");
  }
};

}  // namespace hasten::test
