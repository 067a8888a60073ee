// Agent: this worker's end of remote calls.
//
// A transport of its own carries the calls (comm/messages). libtorch's TensorPipe is not used. The caller's arguments
// are checked by the compiler, and the two signatures are compared before anything is sent. docs/rpc.md shows the
// whole.
#pragma once

#include <ATen/core/Tensor.h>
#include <ATen/core/ivalue.h>
#include <c10/core/Device.h>

#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "hasten/process/process.h"
#include "hasten/rpc/autograd.h"
#include "hasten/rpc/detail/calling.h"
#include "hasten/rpc/functions.h"
#include "hasten/rpc/future.h"
#include "hasten/rpc/options.h"
#include "hasten/rpc/rref.h"

namespace hasten::rpc {

/// The calls of an agent, with settings: what Agent::with returns.
class Calls {
 public:
  Calls(std::shared_ptr<detail::Core> core, CallOptions options) : core_(std::move(core)), options_(options) {}
  Calls with(CallOptions options) const { return Calls(core_, options); }

  /// Calls a function of another worker. Trailing std::optional parameters may be left out.
  /// Blocks: `sync` until the result is there, `async` never. Throws: UsageError before anything is
  /// sent (not served there, other signature); RemoteError, CommError through the future.
  template <auto F, class... A>
  auto async(const To& to, A&&... arguments) const {
    return detail::call_function<F>(*core_, spec(to), std::forward<A>(arguments)...);
  }
  template <auto F, class... A>
  auto sync(const To& to, A&&... arguments) const {
    const detail::WaitedFor waited_for;
    return async<F>(to, std::forward<A>(arguments)...).wait();
  }
  /// Runs the function there and leaves the result with that worker. Returns at once.
  template <auto F, class... A>
  auto remote(const To& to, A&&... arguments) const {
    using R = detail::Answer<typename detail::Signature<decltype(F)>::Result>;
    return RRef<R>(detail::create_by_function<F>(*core_, spec(to), std::forward<A>(arguments)...));
  }
  /// Constructs a T there (Functions::add_class). Returns at once; ready() carries the constructor's error.
  template <class T, class... A>
  RRef<T> remote(const To& to, A&&... arguments) const {
    return RRef<T>(detail::create_object<T>(*core_, spec(to), std::forward<A>(arguments)...));
  }
  /// Calls a function that was added by name. R is its result's type.
  template <class R, class... A>
  Future<R> call_async(const To& to, const std::string& name, A&&... arguments) const {
    return detail::call_named<R>(*core_, spec(to), name, std::forward<A>(arguments)...);
  }
  template <class R, class... A>
  R call(const To& to, const std::string& name, A&&... arguments) const {
    const detail::WaitedFor waited_for;
    return call_async<R>(to, name, std::forward<A>(arguments)...).wait();
  }
  /// Calls an operator of libtorch, "aten::add.Tensor", if RpcOptions::serve_operators is set. Arguments are tensors,
  /// numbers, booleans, strings, none and lists of these. Trailing defaults may be left out.
  std::vector<c10::IValue> call_operator(const To& to, const std::string& name,
                                         std::vector<c10::IValue> arguments) const;

  const std::shared_ptr<detail::Core>& core() const noexcept { return core_; }

 protected:
  detail::CallSpec spec(const To& to) const {
    detail::CallSpec result;
    result.to = core_->rank_of(to);
    result.options = options_;
    return result;
  }

 private:
  std::shared_ptr<detail::Core> core_;
  CallOptions options_;
};

class Agent : public Calls {
 public:
  /// Collective: yes; with RpcOptions::dynamic no. Blocks: until all workers have come; dynamic: until those that are
  /// here have this one's address. Throws: UsageError on all ranks, naming every worker whose options are wrong;
  /// CommError.
  Agent(const process::Process& process, Functions functions, RpcOptions options = {});
  /// A dynamic agent that finds the others at `store`, for processes of several runs. `where`: the address and
  /// interface that other hosts reach; on one machine address 127.0.0.1. `run_key`: Process::run_key() of the run that
  /// it joins, if any.
  /// Blocks, Throws: as above.
  Agent(const comm::Store& store, Functions functions, RpcOptions options,
        const comm::GroupOptions& where = {.address = "127.0.0.1"}, const std::string& run_key = "");
  /// Leaves at once; calls that others make here fail. Blocks: for a handler that still runs.
  ~Agent();
  Agent(const Agent&) = delete;
  Agent& operator=(const Agent&) = delete;

  const WorkerInfo& worker() const;
  /// Throws: UsageError with "did you mean".
  const WorkerInfo& worker(const To& to) const;
  /// Returns all workers; of a dynamic agent those that are here.
  std::vector<WorkerInfo> workers() const;

  /// Dynamic: leaves once the calls made and served here have ended, and is not collective. Else ends when all workers
  /// have called, and no call and no message of a reference is under way. Collective: yes. Blocks: yes, never for a
  /// lost worker. Throws: CommError that names lost workers, after all others have ended; CommError after `timeout_s`
  /// (0: none).
  void shutdown(double timeout_s = 0);

  /// Returns a reference to a value of this worker's own.
  template <class T>
  RRef<std::remove_cvref_t<T>> rref(T&& value) const {
    using V = std::remove_cvref_t<T>;
    return RRef<V>(core()->adopt(detail::make_object(std::make_shared<V>(std::forward<T>(value)))));
  }
  template <class T>
  RRef<T> rref(std::shared_ptr<T> value) const {
    return RRef<T>(core()->adopt(detail::make_object(std::move(value))));
  }

  /// Runs `fn` in an autograd context: calls in it are recorded, on all workers that they reach. The context is
  /// released everywhere afterwards, also if fn throws. Calls of fn that have not ended are waited for, or cancelled if
  /// it throws.
  /// Blocks: as fn. Throws: the exceptions of fn; UsageError if this is not the process's first agent.
  void autograd(const std::function<void(AutogradContext&)>& fn) const;

  /// Runs `fn` and waits for all calls that this thread makes in it. Throws: what fn throws, else the first call's
  /// error.
  void wait_all(const std::function<void()>& fn) const;
  /// Values of all `workers` (default: all), by name; each of them calls. Collective: over the workers named.
  std::map<std::string, std::string> all_gather_bytes(const std::string& mine,
                                                      std::vector<std::string> workers = {}) const;
  template <class T>
  std::map<std::string, T> all_gather(const T& value, std::vector<std::string> workers = {}) const;
  /// Returns when all `workers` (default: all) have called. Collective: over the workers named.
  void barrier(std::vector<std::string> workers = {}) const;

  /// Calls `fn` in the pool when a worker has joined, has left or was lost, from now on.
  void on_worker(std::function<void(const WorkerInfo&, WorkerEvent)> fn) const;
  AgentStats stats() const;
  /// Runs `fn`. Handlers of this worker that start meanwhile record for the profiler that runs in this thread,
  /// whichever thread they run in. Blocks: as fn. Throws: what fn throws.
  void profile_server(const std::function<void()>& fn) const;

 private:
  class Impl;
  std::shared_ptr<Impl> impl_;
};

/// The call that the current thread serves.
struct CallInfo {
  WorkerInfo caller;
  /// True once the caller has given it up (cancel, timeout, loss). A long handler polls it now and then and returns
  /// early.
  bool cancelled() const;
  /// Returns true if a tensor on this device may be the result: on the CPU, or mapped (RpcOptions::device_maps).
  bool can_carry(c10::Device device) const;
  /// Returns a reference to a value of this worker's own, for a handler's result.
  template <class T>
  RRef<T> rref(std::shared_ptr<T> value) const {
    return RRef<T>(served->core()->adopt(detail::make_object(std::move(value))));
  }
  RRef<at::Tensor> rref(const at::Tensor& value) const { return rref(std::make_shared<at::Tensor>(value)); }
  std::shared_ptr<detail::ServedCall> served;
};
/// Throws: UsageError outside a handler.
CallInfo call();

template <class T>
std::map<std::string, T> Agent::all_gather(const T& value, std::vector<std::string> workers) const {
  detail::Packed packed;
  Writer writer(packed);
  detail::write(writer, value);
  std::map<std::string, T> result;
  for (auto& [name, bytes] : all_gather_bytes(packed.bytes.substr(packed.begin), std::move(workers))) {
    detail::Packed one;
    one.bytes += bytes;
    Reader reader(one, core());
    result.emplace(name, detail::read<T>(reader));
  }
  return result;
}

}  // namespace hasten::rpc
