// See hierarchical.h.
#include "comm/hierarchical/hierarchical.h"

#include <torch/types.h>

#include <algorithm>
#include <functional>
#include <future>
#include <map>
#include <thread>

#include "comm/backend/codec.h"
#include "comm/backend/reduction.h"
#include "comm/connecting/counter.h"
#include "comm/connecting/serial_executor.h"
#include "comm/types/call_label.h"
#include "comm/types/collective_fingerprint.h"
#include "hasten/comm/types/wait_check.h"
#include "hasten/core/error.h"

namespace hasten::comm {
namespace {

class Job : public Backend::Transfer {
 public:
  explicit Job(std::future<void> result) : result_(result.share()) {}
  bool done() override { return result_.wait_for(std::chrono::seconds(0)) == std::future_status::ready; }
  void wait() override {
    while (WaitCheck::is_active() && result_.wait_for(shared::kSleep) != std::future_status::ready) WaitCheck::run();
    result_.get();
  }

 private:
  std::shared_future<void> result_;
};

// Where each rank is.
struct Places {
  Hosts hosts;
  std::vector<int> host_of, local_of;

  explicit Places(const Hosts& given, int world_size) : hosts(given), host_of(world_size), local_of(world_size) {
    for (size_t host = 0; host < hosts.size(); ++host) {
      for (size_t local = 0; local < hosts[host].size(); ++local) {
        host_of[hosts[host][local]] = static_cast<int>(host);
        local_of[hosts[host][local]] = static_cast<int>(local);
      }
    }
  }
  size_t most_ranks() const {
    size_t most = 0;
    for (const auto& ranks : hosts) most = std::max(most, ranks.size());
    return most;
  }
};

// A rank that waits for one of another host, or for its own host's first, may wait for one that waits itself. At the
// timeout it leaves this much time to ranks with more information, so that their words are reported.
constexpr auto kPrecedence = std::chrono::milliseconds(500);

/// A level's backends. `local` is missing for a rank that is alone on its host, `leaders` for all but leaders.
struct Levels {
  std::unique_ptr<Backend> world, local, leaders;
};

class Hierarchical : public Backend {
 public:
  Hierarchical(Levels levels, Places places, int rank)
      : levels_(std::move(levels)),
        places_(std::move(places)),
        host_(places_.host_of[rank]),
        local_(places_.local_of[rank]) {}
  ~Hierarchical() override { line_.reset(); }

  const char* name() const override { return "shm+gloo"; }
  c10::DeviceType device_type() const override { return c10::DeviceType::CPU; }
  bool reduces(at::ScalarType dtype) const override { return levels_.world->reduces(dtype); }

  Started all_reduce(at::Tensor tensor, ReduceOp op) override {
    return submit(OpType::kAllReduce, [this, tensor, op] {
      if (levels_.local) levels_.local->reduce(tensor, 0, op)->wait();
      if (levels_.leaders) across(levels_.leaders->all_reduce(tensor, op));
      down(tensor);
    });
  }

  Started reduce(at::Tensor tensor, int root, ReduceOp op) override {
    return submit(OpType::kReduce, [this, tensor, root, op] {
      if (levels_.local) levels_.local->reduce(tensor, 0, op)->wait();
      if (levels_.leaders) across(levels_.leaders->reduce(tensor, places_.host_of[root], op));
      if (places_.host_of[root] == host_ && places_.local_of[root] != 0) down(tensor);
    });
  }

  Started broadcast(at::Tensor bytes, int root) override {
    return submit(OpType::kBroadcast, [this, bytes, root] {
      const bool here = places_.host_of[root] == host_;
      if (here && levels_.local) levels_.local->broadcast(bytes, places_.local_of[root])->wait();
      if (levels_.leaders) across(levels_.leaders->broadcast(bytes, places_.host_of[root]));
      if (!here) down(bytes);
    });
  }

  Started all_gather(at::Tensor output, at::Tensor input) override {
    return submit(OpType::kAllGather, [this, output, input] {
      // Hosts may have different numbers of ranks, leaders exchange parts of one size.
      const auto most = static_cast<int64_t>(places_.most_ranks());
      const auto here = static_cast<int64_t>(places_.hosts[host_].size());
      const at::Tensor part = torch::empty({most, input.numel()}, input.options());
      const at::Tensor mine = part.narrow(0, 0, here);
      if (levels_.local) {
        levels_.local->all_gather(mine.view({-1}), input.view({-1}))->wait();
      } else {
        mine.copy_(input.view({1, -1}));
      }
      if (levels_.leaders) {
        const auto num_hosts = static_cast<int64_t>(places_.hosts.size());
        const at::Tensor parts = torch::empty({num_hosts, most, input.numel()}, input.options());
        across(levels_.leaders->all_gather(parts.view({-1}), part.view({-1})));
        const at::Tensor by_rank = output.view({-1, input.numel()});
        for (size_t rank = 0; rank < places_.host_of.size(); ++rank) {
          by_rank[static_cast<int64_t>(rank)].copy_(parts[places_.host_of[rank]][places_.local_of[rank]]);
        }
      }
      down(output);
    });
  }

  Started reduce_scatter(at::Tensor output, at::Tensor input, ReduceOp op) override {
    return submit(OpType::kReduceScatter, [this, output, input, op] {
      const ScatterPlan plan = plan_scatter(places_.hosts, host_, local_);
      const at::Tensor mine = collect(input.view({-1, output.numel()}), plan, op);
      reduce_from_hosts(output.view({-1}), mine, plan, op);
    });
  }

  Started all_to_all(at::Tensor output, std::vector<int64_t> output_counts, std::vector<at::Tensor> inputs) override {
    return submit(OpType::kAllToAll, [this, output, counts = std::move(output_counts), inputs = std::move(inputs)] {
      levels_.world->all_to_all(output, counts, inputs)->wait();
    });
  }

  Started barrier() override {
    return submit(OpType::kBarrier, [this] {
      if (levels_.local) levels_.local->barrier()->wait();
      if (levels_.leaders) across(levels_.leaders->barrier());
      down(torch::zeros({1}, at::kByte));
    });
  }

  Started send(at::Tensor bytes, int to, int tag) override {
    if (places_.host_of[to] == host_) return levels_.local->send(bytes, places_.local_of[to], tag);
    return levels_.world->send(bytes, to, tag);
  }
  Started receive(at::Tensor bytes, int from, int tag) override {
    if (places_.host_of[from] == host_) return levels_.local->receive(bytes, places_.local_of[from], tag);
    return levels_.world->receive(bytes, from, tag);
  }

  void set_timeout(std::chrono::milliseconds timeout) override {
    for (Backend* level : {levels_.world.get(), levels_.local.get(), levels_.leaders.get()}) {
      if (level != nullptr) level->set_timeout(timeout);
    }
  }

  void close() noexcept override {
    for (Backend* level : {levels_.world.get(), levels_.local.get(), levels_.leaders.get()}) {
      if (level != nullptr) level->close();
    }
  }

 private:
  Started submit(OpType kind, std::function<void()> parts) {
    return std::make_unique<Job>(line_->submit([this, kind, parts = std::move(parts), label = call_label()] {
      set_call_label(label);
      try {
        parts();
      } catch (const Mismatch& error) {
        close();
        throw Mismatch(text("in a part of ", name_of(kind), ", ", error.what()));
      } catch (...) {
        // The ranks of this host, or the other hosts, wait for a part that will not come.
        close();
        throw;
      }
    }));
  }

  /// Returns this host's reduction of the parts that this rank passes on, a part a row.
  at::Tensor collect(const at::Tensor& parts, const ScatterPlan& plan, ReduceOp op) {
    if (!levels_.local) return parts;
    const at::Tensor by_collector =
        torch::zeros({static_cast<int64_t>(plan.order.size()), parts.size(1)}, parts.options());
    for (size_t row = 0; row < plan.order.size(); ++row) {
      if (plan.order[row] >= 0) by_collector[static_cast<int64_t>(row)].copy_(parts[plan.order[row]]);
    }
    const int64_t rows = by_collector.size(0) / static_cast<int64_t>(places_.hosts[host_].size());
    const at::Tensor mine = torch::empty({rows, parts.size(1)}, parts.options());
    levels_.local->reduce_scatter(mine, by_collector, op)->wait();
    return mine;
  }

  /// Each host's collector sends this rank's part of its reduction. The result does not depend on the order of arrival.
  void reduce_from_hosts(const at::Tensor& output, const at::Tensor& mine, const ScatterPlan& plan, ReduceOp op) {
    const size_t world_size = places_.host_of.size();
    const int64_t part_bytes = static_cast<int64_t>(output.nbytes());
    std::vector<at::Tensor> outgoing(world_size, torch::empty({0}, at::kByte));
    for (size_t row = 0; row < plan.collected.size(); ++row) {
      outgoing[static_cast<size_t>(plan.collected[row])] = bytes_of(mine[static_cast<int64_t>(row)]);
    }
    std::vector<int64_t> counts(world_size, 0);
    for (const int sender : plan.senders) counts[static_cast<size_t>(sender)] = part_bytes;
    const auto num_hosts = static_cast<int64_t>(plan.senders.size());
    const at::Tensor received = torch::empty({num_hosts, output.numel()}, output.options());
    levels_.world->all_to_all(bytes_of(received), counts, outgoing)->wait();
    std::vector<const void*> inputs;
    for (int64_t row = 0; row < num_hosts; ++row) inputs.push_back(received[row].const_data_ptr());
    shared::routines(output.scalar_type(), op)
        .reduce(output.mutable_data_ptr(), inputs.data(), static_cast<int>(inputs.size()), output.numel());
  }

  static void across(const Started& transfer) {
    try {
      transfer->wait();
    } catch (const TimedOut&) {
      std::this_thread::sleep_for(kPrecedence);
      throw;
    }
  }

  /// From the leader to the other ranks of this host.
  void down(const at::Tensor& tensor) {
    if (!levels_.local) return;
    try {
      levels_.local->broadcast(bytes_of(tensor), 0)->wait();
    } catch (const TimedOut&) {
      std::this_thread::sleep_for(2 * kPrecedence);
      throw TimedOut(text("timed out: not there yet: rank ", places_.hosts[host_][0],
                          ", or a rank of another host that it waits for"));
    }
  }

  Levels levels_;
  Places places_;
  int host_;
  int local_;
  std::unique_ptr<SerialExecutor> line_ = std::make_unique<SerialExecutor>();
};

// The group's names for the ranks of a host.
RankNames names_on(const std::vector<int>& host) {
  RankNames names;
  for (const int rank : host) names.shown.push_back(std::to_string(rank));
  return names;
}

// The group's names for the hosts' leaders. A leader that has not come may be waiting for another rank of its host.
RankNames names_of(const Hosts& hosts) {
  RankNames names;
  for (const auto& host : hosts) {
    const std::vector<int> others(host.begin() + 1, host.end());
    names.shown.push_back(others.empty() ? std::to_string(host[0])
                                         : text(host[0], " (or ", join(others), " of its host)"));
  }
  return names;
}

// Returns true if `mine` is true on all ranks.
bool on_all(Backend& world, bool mine) {
  const at::Tensor count = torch::tensor({mine ? 0 : 1}, at::kInt);
  world.all_reduce(count, ReduceOp::kSum)->wait();
  return count[0].item<int>() == 0;
}

}  // namespace

ScatterPlan plan_scatter(const Hosts& hosts, int host, int local) {
  // The rank with local number l on any host goes to the collector l % (ranks of this host).
  const size_t here = hosts[static_cast<size_t>(host)].size();
  std::vector<std::vector<int>> by_collector(here);
  for (const auto& ranks : hosts) {
    for (size_t l = 0; l < ranks.size(); ++l) by_collector[l % here].push_back(ranks[l]);
  }
  size_t rows = 0;
  for (auto& parts : by_collector) {
    std::sort(parts.begin(), parts.end());
    rows = std::max(rows, parts.size());
  }
  ScatterPlan plan;
  for (const auto& parts : by_collector) {
    for (size_t row = 0; row < rows; ++row) plan.order.push_back(row < parts.size() ? parts[row] : -1);
  }
  plan.collected = by_collector[static_cast<size_t>(local)];
  for (const auto& ranks : hosts) plan.senders.push_back(ranks[static_cast<size_t>(local) % ranks.size()]);
  // The ranks' data lies in the order of their numbers.
  std::sort(plan.senders.begin(), plan.senders.end());
  return plan;
}

Hosts group_by_host(const std::vector<std::string>& names) {
  Hosts hosts;
  std::map<std::string, size_t> known;
  for (size_t rank = 0; rank < names.size(); ++rank) {
    const auto [place, is_new] = known.try_emplace(names[rank], hosts.size());
    if (is_new || names[rank].empty()) {
      hosts.push_back({static_cast<int>(rank)});
    } else {
      hosts[place->second].push_back(static_cast<int>(rank));
    }
  }
  return hosts;
}

std::unique_ptr<Backend> make_hierarchical(const BackendSetup& setup, const Hosts& hosts) {
  const Places places(hosts, setup.world_size);
  const int host = places.host_of[setup.rank], local = places.local_of[setup.rank];
  const auto level = [&](const std::string& name, int rank, size_t size, const RankNames& names) {
    return BackendSetup{setup.store.scoped(name), rank, static_cast<int>(size), setup.options, names};
  };
  Levels levels;
  levels.world = make_gloo(level("world", setup.rank, places.host_of.size(), setup.names));
  std::string reason;
  try {
    const size_t here = hosts[host].size();
    if (here > 1) {
      levels.local = make_shared_memory(level(text("host/", host), local, here, names_on(hosts[host])));
    }
  } catch (const std::exception& error) {
    reason = error.what();
  }
  if (!on_all(*levels.world, reason.empty())) {
    throw std::runtime_error(reason.empty() ? "the ranks of another host cannot share memory" : reason);
  }
  if (local == 0) levels.leaders = make_gloo(level("leaders", host, hosts.size(), names_of(hosts)));
  return std::make_unique<Hierarchical>(std::move(levels), places, setup.rank);
}

}  // namespace hasten::comm
