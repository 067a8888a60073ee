// Process: this process in its run. Rank, world, device, and the group that connects it to the others.
//
// Made from the environment (variables: rank_info.h), or from given parts. Tests use given parts to run ranks as
// threads of one process. A value handle over shared state; there is no global one.
#pragma once

#include <c10/core/Device.h>

#include <chrono>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "hasten/comm/group/group.h"
#include "hasten/core/env.h"
#include "hasten/core/log.h"
#include "hasten/process/rank_info.h"

namespace hasten::process {

struct ProcessOptions {
  /// Stay on the CPU even where CUDA is available; ACCELERATE_USE_CPU=1 sets the same.
  bool cpu = false;
  /// How long collectives may take, and how long to wait for the other ranks at the start.
  std::chrono::milliseconds timeout = std::chrono::minutes(30);
  /// As comm::GroupOptions::check.
  std::optional<bool> check = {};
  comm::BackendKind backend = comm::BackendKind::kAuto;
  /// false: no handler of std::terminate is installed, and SIGPIPE is left alone (docs/process.md).
  bool change_process = true;
};

class Process {
 public:
  /// The process that the environment describes, connected to the others. A program started by hand is a world of one.
  /// Also lets an uncaught exception leave its message in the store and in the launcher's error file before the process
  /// ends. Several may exist in one program, one after another or side by side, each with connections of its own. All
  /// ranks make theirs in the same order.
  /// Collective: yes. Blocks: until all ranks have come. Throws: UsageError (half-set environment, busy port),
  /// CommError (a rank did not come within the timeout).
  explicit Process(const ProcessOptions& options = {}, const Environment& environment = Environment::current());

  /// From given parts.
  Process(RankInfo identity, comm::Group group, c10::Device device = c10::Device(c10::kCPU));
  // Moves copy: a handle that was moved from is one still.
  Process(const Process&) = default;
  Process& operator=(const Process&) = default;

  /// The same process with another handle of its group (Group::with_observer).
  Process with_group(comm::Group group) const;

  const RankInfo& identity() const noexcept;
  int rank() const noexcept { return identity().rank; }
  int local_rank() const noexcept { return identity().local_rank; }
  int node_rank() const noexcept { return identity().node_rank; }
  int world_size() const noexcept { return identity().world_size; }
  int local_world_size() const noexcept { return identity().local_world_size; }
  /// Returns this worker's role in the run (`hasten launch --roles ps=1,trainer=2`), "default" without roles.
  const std::string& role() const noexcept { return identity().role; }
  int role_rank() const noexcept { return identity().role_rank; }
  int role_world_size() const noexcept { return identity().role_world_size; }
  /// 32 secret bytes of this run's processes, drawn by `hasten launch`; "" without it. The first Process of a program
  /// takes it from HASTEN_RUN_KEY and removes that variable.
  const std::string& run_key() const noexcept;
  c10::Device device() const noexcept;
  const comm::Group& group() const noexcept;

  bool is_main_process() const noexcept { return rank() == 0; }
  bool is_local_main_process() const noexcept { return local_rank() == 0; }
  bool is_last_process() const noexcept { return rank() == world_size() - 1; }

  /// Runs `fn` on one rank only (the main one, each machine's main one, the last one, the given one).
  /// Throws: the exceptions of fn; UsageError for a rank outside the world.
  void on_main_process(const std::function<void()>& fn) const;
  void on_local_main_process(const std::function<void()>& fn) const;
  void on_last_process(const std::function<void()>& fn) const;
  void on_process(int rank, const std::function<void()>& fn) const;
  void on_local_process(int local_rank, const std::function<void()>& fn) const;

  /// Returns when every rank has called.
  /// Collective: yes. Blocks: yes. Throws: CommError.
  void wait_for_everyone() const;

  /// Returns a logger whose lines carry this process's rank and whose in_order lines wait for the others.
  Logger logger(const std::string& name) const;

 private:
  struct Impl;
  static std::shared_ptr<Impl> from_environment(const ProcessOptions& options, const Environment& environment);
  std::shared_ptr<Impl> impl_;
};

}  // namespace hasten::process
