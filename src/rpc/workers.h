// Workers: this agent's data of all workers, by rank and by name.
//
// Workers of a dynamic agent come and go while other threads make calls. An element never moves, and its fields are set
// before its state announces it.
#pragma once

#include <atomic>
#include <cstdint>
#include <map>
#include <memory>
#include <optional>
#include <shared_mutex>
#include <string>
#include <string_view>
#include <unordered_map>
#include <vector>

#include "hasten/rpc/detail/core.h"
#include "rpc/device_maps.h"
#include "rpc/growing_table.h"

namespace hasten::rpc {

struct RemoteWorker {
  enum class State { kUnknown, kHere, kLeft, kLost };
  struct Function {
    uint32_t index, signature;
    std::string description;
    bool idempotent;
  };
  std::atomic<State> state = State::kUnknown;
  WorkerInfo info = {};
  std::unordered_map<std::string_view, Function> functions = {};
  std::vector<std::unique_ptr<std::string>> names = {};
  WorkerDevices devices = {};
  /// Messages that count for the end of the run.
  std::atomic<uint64_t> sent = 0, received = 0;
  std::atomic<int64_t> num_calls_sent = 0, num_calls_served = 0, bytes_sent = 0, bytes_received = 0;
};

class Workers {
 public:
  explicit Workers(int count) : table_(static_cast<size_t>(count)) {}
  RemoteWorker& operator[](int rank) const { return table_[static_cast<size_t>(rank)]; }
  /// How many ranks have been used, also by workers that are gone.
  int size() const noexcept { return static_cast<int>(table_.size()); }
  bool knows(int rank) const;
  bool is_here(int rank) const { return knows(rank) && (*this)[rank].state == RemoteWorker::State::kHere; }
  /// Takes a worker's facts about itself. Returns false if another one here has its name.
  bool add(int rank, const std::string& about);
  /// A worker that has left, was lost, or left before this agent came.
  void remove(int rank, RemoteWorker::State state);
  /// By name, or by the second name of a worker where none has it as its own.
  std::optional<int> find(const std::string& name) const;
  /// Ranks and names of those that are here.
  std::vector<int> ranks() const;
  std::vector<std::string> names() const;
  /// Returns all faults of names and device maps, "" if there are none.
  std::string problems() const;

 private:
  GrowingTable<RemoteWorker> table_;
  mutable std::shared_mutex mutex_;
  std::unordered_map<std::string, int> by_name_, by_second_name_;
};

/// The text that add() takes: names, devices, and functions with their signatures.
struct AboutFunction {
  std::string name, signature;
  bool idempotent = false;
};
std::string about_worker(const WorkerDevices& devices, const std::vector<AboutFunction>& functions);

}  // namespace hasten::rpc
