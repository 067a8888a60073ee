// A thread's present work for an agent: the call it serves, whether it reads messages.
#pragma once

#include <ATen/record_function.h>

#include <chrono>
#include <memory>
#include <optional>
#include <vector>

#include "hasten/rpc/detail/state.h"

namespace hasten::rpc::detail {

class ServedCall;

struct CurrentThread {
  std::weak_ptr<Executor> executor;
  /// The call whose handler this thread runs.
  std::shared_ptr<ServedCall> served;
  /// This thread reads messages now, so that it must not wait.
  int reading = 0;
  /// This thread is its pool's leader and handles messages.
  bool leading = false;
  /// This thread belongs to a pool.
  bool in_pool = false;
  /// Ranks with replies that have been queued and not written.
  std::vector<int> unflushed;
  /// Futures of the calls of agent.wait_all() scopes, innermost last.
  std::vector<std::vector<std::shared_ptr<StateBase>>*> scopes;
  /// This thread waits at once for the call that it makes. Its scope in a profile ends with the wait.
  int waited_for = 0;
  std::unique_ptr<at::RecordFunction> waited_scope;
};

CurrentThread& current_thread();

}  // namespace hasten::rpc::detail
