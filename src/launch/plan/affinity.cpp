// Dealing CPUs out; see affinity.h.
#include "hasten/launch/plan/affinity.h"

#include <sched.h>

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <map>

#include "hasten/core/count_text.h"
#include "hasten/core/error.h"

namespace hasten::launcher {
namespace {

using Cpus = std::set<int>;

std::vector<int> homes(const Machine& machine, int num_workers) {
  std::set<int> unique;
  for (const Cpu& cpu : machine.cpus) unique.insert(cpu.node);
  const std::vector<int> nodes(unique.begin(), unique.end());
  std::vector<int> result;
  for (int worker = 0; worker < num_workers; ++worker) {
    const auto index = static_cast<size_t>(worker);
    const int of_gpu = index < machine.gpu_nodes.size() ? machine.gpu_nodes[index] : -1;
    const size_t dealt = index * nodes.size() / static_cast<size_t>(num_workers);
    result.push_back(unique.count(of_gpu) ? of_gpu : nodes[dealt]);
  }
  return result;
}

template <class Filter>
Cpus cpus_where(const Machine& machine, const Filter& filter) {
  Cpus cpus;
  for (const Cpu& cpu : machine.cpus) {
    if (filter(cpu)) cpus.insert(cpu.number);
  }
  return cpus;
}

// The node's CPUs in groups of one key, in the order of the keys.
std::vector<Cpus> grouped(const Machine& machine, int node, int Cpu::*key) {
  std::map<int, Cpus> groups;
  for (const Cpu& cpu : machine.cpus) {
    if (cpu.node == node) groups[cpu.*key].insert(cpu.number);
  }
  std::vector<Cpus> result;
  for (auto& [number, cpus] : groups) result.push_back(std::move(cpus));
  return result;
}

// The `index`-th of `count` shares of the node's cores. If they cannot be equal, the first shares are a core larger.
Cpus own_cores(const Machine& machine, int node, size_t index, size_t count) {
  const std::vector<Cpus> cores = grouped(machine, node, &Cpu::core);
  const size_t each = cores.size() / count, larger = cores.size() % count;
  const size_t begin = index * each + std::min(index, larger);
  Cpus own;
  for (size_t core = begin; core < begin + each + (index < larger ? 1 : 0); ++core) {
    own.insert(cores[core].begin(), cores[core].end());
  }
  return own;
}

Cpus own_complex(const Machine& machine, int node, size_t index) {
  std::vector<Cpus> complexes = grouped(machine, node, &Cpu::cache);
  std::stable_sort(complexes.begin(), complexes.end(),
                   [](const Cpus& a, const Cpus& b) { return a.size() > b.size(); });
  return complexes[index % complexes.size()];
}

Cpus of_socket(const Machine& machine, int node) {
  std::set<int> sockets;
  for (const Cpu& cpu : machine.cpus) {
    if (cpu.node == node) sockets.insert(cpu.socket);
  }
  return cpus_where(machine, [&](const Cpu& cpu) { return sockets.count(cpu.socket) != 0; });
}

}  // namespace

std::vector<std::string> problems_of_exclusive_binding(const Machine& machine, int num_workers) {
  std::map<int, size_t> workers_of;
  for (const int node : homes(machine, num_workers)) ++workers_of[node];
  std::vector<std::string> problems;
  for (const auto& [node, count] : workers_of) {
    const size_t num_cores = grouped(machine, node, &Cpu::core).size();
    if (num_cores >= count) continue;
    problems.push_back(text("--numa_binding exclusive: NUMA node ", node, " has ", num_cores,
                            num_cores == 1 ? " core" : " cores", " for ", count_text(count, "worker"),
                            ". Start fewer, or choose --numa_binding node."));
  }
  return problems;
}

std::vector<std::set<int>> bound_cpus(const Machine& machine, const std::string& mode, int num_workers) {
  if (mode == "exclusive") {
    const auto problems = problems_of_exclusive_binding(machine, num_workers);
    if (!problems.empty()) throw UsageError({"launch"}, problems.front());
  }
  const std::vector<int> home = homes(machine, num_workers);
  std::vector<Cpus> result;
  for (size_t worker = 0; worker < home.size(); ++worker) {
    const int node = home[worker];
    const auto before = home.begin() + static_cast<std::ptrdiff_t>(worker);
    const auto index = static_cast<size_t>(std::count(home.begin(), before, node));
    if (mode == "exclusive") {
      result.push_back(
          own_cores(machine, node, index, static_cast<size_t>(std::count(home.begin(), home.end(), node))));
    } else if (mode == "core-complex") {
      result.push_back(own_complex(machine, node, index));
    } else if (mode == "socket") {
      result.push_back(of_socket(machine, node));
    } else {
      result.push_back(cpus_where(machine, [=](const Cpu& cpu) { return cpu.node == node; }));
    }
  }
  return result;
}

void bind_to(const std::set<int>& cpus) {
  cpu_set_t set;
  CPU_ZERO(&set);
  for (const int cpu : cpus) CPU_SET(cpu, &set);
  if (sched_setaffinity(0, sizeof set, &set) != 0) {
    throw UsageError({"launch"}, "cannot bind a worker to CPUs ", join(cpus), ": ", std::strerror(errno),
                     ". Leave --numa_binding out.");
  }
}

}  // namespace hasten::launcher
