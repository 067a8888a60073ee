// Work that the main process does before the others, which then find it done: a download, a cache on disk.
//
// Python's peers have a context manager whose end communicates. In C++ that would be a destructor that communicates and
// may throw. So here it takes a callable, and an exception on one rank becomes an exception on all.
#pragma once

#include <functional>
#include <optional>
#include <type_traits>

#include "hasten/process/process.h"

namespace hasten::process {

namespace detail {

/// Runs `body` on the ranks that are `first`, then on the others. Throws on all if it threw on any.
void run_in_order(const Process& process, bool first, const char* name, const std::function<void()>& body);

template <class Fn>
std::invoke_result_t<Fn> value_in_order(const Process& process, bool first, const char* name, Fn&& fn) {
  using Value = std::invoke_result_t<Fn>;
  if constexpr (std::is_void_v<Value>) {
    run_in_order(process, first, name, [&] { fn(); });
  } else {
    std::optional<Value> value;
    run_in_order(process, first, name, [&] { value.emplace(fn()); });
    return std::move(*value);
  }
}

}  // namespace detail

/// Runs `fn` on the main process, then on all others, and gives each rank the value of its own call. `fn` must not
/// communicate. It must end on the main process within the group's timeout, since the others wait for it.
/// Collective: yes. Blocks: until every rank is done. Throws: on the rank where fn threw, its exception; on all others
/// CommError with its words. If it throws on the main process, it does not run on the others.
template <class Fn>
std::invoke_result_t<Fn> main_process_first(const Process& process, Fn&& fn) {
  return detail::value_in_order(process, process.is_main_process(), "main_process_first", std::forward<Fn>(fn));
}

/// Does as main_process_first, but the main process of each machine is first there, all machines at once. For work on a
/// machine's own disk.
/// Collective: yes, over all machines. Blocks and Throws: as main_process_first.
template <class Fn>
std::invoke_result_t<Fn> local_main_process_first(const Process& process, Fn&& fn) {
  return detail::value_in_order(process, process.is_local_main_process(), "local_main_process_first",
                                std::forward<Fn>(fn));
}

}  // namespace hasten::process
