// `hasten::launch(n, fn)`: the same program, n times, from inside (the peers' notebook_launcher).
//
// The workers are forks of this process, so the function can use everything its caller has built. A fork copies one
// thread only: after libtorch has run, its thread pools' locks may be held by threads that the copy does not have.
// Therefore this refuses to fork a process with more than one thread. Supervision is that of `hasten launch`. The
// room's other types are in namespace hasten::launcher: docs/decisions/0001-launch-is-a-function.md.
#pragma once

#include <functional>
#include <type_traits>
#include <utility>

#include "hasten/launch/run/local_run.h"

namespace hasten {
namespace launcher {

/// launch() for a function that takes the rank and returns the worker's exit code.
int launch_function(int num_processes, const std::function<int(int rank)>& function, const LaunchOptions& options);

}  // namespace launcher

/// Runs `function()`, or `function(rank)` if it takes a number, in `num_processes` processes, each with torchrun's
/// environment (compose_environment.h), and waits for them. `function` returns nothing, or the process's exit code. It
/// may throw: the process then reports it, and ends with 2 for a UsageError and 1 for anything else. Nothing after the
/// call runs in a worker: it ends with _exit once its standard streams are flushed, without destructors or atexit
/// functions. Returns 0 if all went well, else the first failing process's exit code (128 + s for signal s). If signal
/// s stopped this process, returns 128 + s. Standard error has the report of a failure by then. While it runs,
/// options.signals_to_handle are handled here and not by the caller's handlers. Blocks: until no worker and none
/// of its children is left. Throws: UsageError if this process has more than one thread, or as
/// launcher::run_local does.
template <class Function>
int launch(int num_processes, Function&& function, const LaunchOptions& options = {}) {
  const auto called = [&function]([[maybe_unused]] int rank) {
    if constexpr (std::is_invocable_v<Function&, int>) {
      return function(rank);
    } else {
      return function();
    }
  };
  if constexpr (std::is_void_v<decltype(called(0))>) {
    return launcher::launch_function(
        num_processes, [&called](int rank) { return called(rank), 0; }, options);
  } else {
    return launcher::launch_function(num_processes, called, options);
  }
}

/// launch() on the CPU in full precision, to try a function on a small machine (the peers' debug_launcher).
/// Collective, Blocks, Throws: as launch.
template <class Function>
int debug_launch(Function&& function, int num_processes = 2) {
  return launch(num_processes, std::forward<Function>(function), {.mixed_precision = "no", .cpu = true});
}

}  // namespace hasten
