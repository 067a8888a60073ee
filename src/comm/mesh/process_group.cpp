// See process_group.h.
#include "hasten/comm/mesh/process_group.h"

#include <torch/types.h>
#include <torch/csrc/distributed/c10d/Backend.hpp>

#include <algorithm>
#include <condition_variable>
#include <iterator>
#include <mutex>
#include <thread>

#include "comm/connecting/serial_executor.h"
#include "comm/store/store_all_gather.h"
#include "comm/types/combined_work.h"
#include "hasten/core/error.h"
#include "hasten/core/log.h"

namespace hasten::comm {
namespace {

using Tensors = std::vector<at::Tensor>;
using NativeWork = c10::intrusive_ptr<c10d::Work>;

ReduceOp from_c10d(const c10d::ReduceOp& op) {
  switch (static_cast<c10d::ReduceOp::RedOpType>(op)) {
    case c10d::ReduceOp::SUM:
      return ReduceOp::kSum;
    case c10d::ReduceOp::AVG:
      return ReduceOp::kMean;
    case c10d::ReduceOp::MIN:
      return ReduceOp::kMin;
    case c10d::ReduceOp::MAX:
      return ReduceOp::kMax;
    case c10d::ReduceOp::PRODUCT:
      return ReduceOp::kProduct;
    default:
      throw UsageError(Origin{"comm"}, "process_group: reductions are sum, mean, min, max and product.");
  }
}

class GroupWork;

/// Completes futures, each when its work ends or, where works do not tell their end, one after the other: a
/// thread that looks at all that are open, started by the first.
class Completer {
 public:
  using Future = c10::intrusive_ptr<c10::ivalue::Future>;

  Completer() = default;
  /// Completes what is open.
  ~Completer();
  Completer(const Completer&) = delete;
  Completer& operator=(const Completer&) = delete;

  void add(c10::intrusive_ptr<GroupWork> work, Future future);

 private:
  using Open = std::vector<std::pair<c10::intrusive_ptr<GroupWork>, Future>>;
  /// The thread's own, since a future's callback may end the last owner of the process group.
  struct State {
    std::mutex mutex;
    std::condition_variable changed;
    Open added;
    bool stopping = false;
  };
  static void serve(State& state);

  std::shared_ptr<State> state_ = std::make_shared<State>();
  std::thread thread_;
};

/// An operation of the group's. c10d may wait for it in several threads, and may ask for futures.
class GroupWork : public c10d::Work {
 public:
  /// `tells_end`: whether work.done() sees every end. Gloo's receives only say so to whoever waits.
  GroupWork(hasten::comm::Work<> work, Tensors results, std::weak_ptr<Completer> completer, bool tells_end)
      : work_(std::move(work)),
        results_(std::move(results)),
        completer_(std::move(completer)),
        tells_end_(tells_end) {}

  bool tells_end() const noexcept { return tells_end_; }

  /// Once it is, the results are there.
  bool isCompleted() override {
    const std::lock_guard lock(mutex_);
    if (!ended_ && !somebody_waits_ && work_.done()) finish();
    return ended_;
  }
  bool isSuccess() const override {
    const std::lock_guard lock(mutex_);
    return ended_ && !error_;
  }
  std::exception_ptr exception() const override {
    const std::lock_guard lock(mutex_);
    return error_;
  }
  Tensors result() override { return results_; }
  void synchronize() override { wait(kNoTimeout); }

  /// Throws: what ended the operation; CommError after a timeout, which the operation outlives.
  bool wait(std::chrono::milliseconds timeout) override {
    if (tells_end_ && timeout > kNoTimeout && !comes_within(timeout)) {
      throw CommError(Origin{"comm"}, "wait", "the operation has not ended within ", timeout.count(),
                      " ms. It goes on; wait for longer.");
    }
    std::unique_lock lock(mutex_);
    has_ended_.wait(lock, [this] { return !somebody_waits_; });
    if (!ended_) {
      somebody_waits_ = true;
      lock.unlock();
      const auto error = error_of(work_);
      lock.lock();
      somebody_waits_ = false;
      end(error);
    }
    if (error_) std::rethrow_exception(error_);
    return true;
  }

  c10::intrusive_ptr<c10::ivalue::Future> getFuture() override {
    auto future = c10::make_intrusive<c10::ivalue::Future>(c10::ListType::ofTensors());
    const auto self = c10::intrusive_ptr<GroupWork>::unsafe_reclaim_from_nonowning(this);
    if (const auto completer = completer_.lock()) {
      completer->add(self, future);
    } else {
      complete(*future);
    }
    return future;
  }

  /// Gives the future what the operation gives, after its end.
  void complete(c10::ivalue::Future& future) {
    std::exception_ptr error;
    try {
      wait(kNoTimeout);
    } catch (...) {
      error = std::current_exception();
    }
    try {
      if (error) {
        future.setError(error);
      } else {
        future.markCompleted(c10::IValue(results_));
      }
    } catch (const std::exception& words) {
      Logger("comm").error(text("a callback of a future threw: ", words.what()),
                           {.main_process_only = false});
    }
  }

 private:
  static std::exception_ptr error_of(hasten::comm::Work<>& work) {
    try {
      work.wait();
    } catch (...) {
      return std::current_exception();
    }
    return nullptr;
  }
  void finish() { end(error_of(work_)); }
  void end(std::exception_ptr error) {
    error_ = std::move(error);
    ended_ = true;
    has_ended_.notify_all();
  }
  bool comes_within(std::chrono::milliseconds timeout) {
    constexpr std::chrono::milliseconds kLongest = std::chrono::hours(24 * 365);  // no clock goes further
    const auto end = std::chrono::steady_clock::now() + std::min(timeout, kLongest);
    return poll_until(end, [this] { return isCompleted(); });
  }

  mutable std::mutex mutex_;
  std::condition_variable has_ended_;
  hasten::comm::Work<> work_;
  Tensors results_;
  std::weak_ptr<Completer> completer_;
  const bool tells_end_;
  /// Without the lock; the work is his.
  bool somebody_waits_ = false;
  bool ended_ = false;
  std::exception_ptr error_;
};

Completer::~Completer() {
  {
    const std::lock_guard lock(state_->mutex);
    state_->stopping = true;
  }
  state_->changed.notify_all();
  if (!thread_.joinable()) return;
  if (thread_.get_id() == std::this_thread::get_id()) {
    thread_.detach();
  } else {
    thread_.join();
  }
}

void Completer::add(c10::intrusive_ptr<GroupWork> work, Future future) {
  {
    const std::lock_guard lock(state_->mutex);
    state_->added.emplace_back(std::move(work), std::move(future));
    if (!thread_.joinable()) thread_ = start_without_signals([state = state_] { serve(*state); });
  }
  state_->changed.notify_all();
}

void Completer::serve(State& state) {
  constexpr std::chrono::microseconds kLeast(20), kMost(500);
  Open open;
  auto pause = kLeast;
  const auto complete = [&](const auto& entry) {
    if (entry.first->tells_end() && !entry.first->isCompleted()) return false;
    entry.first->complete(*entry.second);
    pause = kLeast;
    return true;
  };
  std::unique_lock lock(state.mutex);
  for (;;) {
    const auto is_called = [&] { return state.stopping || !state.added.empty(); };
    if (open.empty()) {
      state.changed.wait(lock, is_called);
    } else {
      state.changed.wait_for(lock, pause);
    }
    pause = state.added.empty() ? std::min(2 * pause, kMost) : kLeast;
    std::move(state.added.begin(), state.added.end(), std::back_inserter(open));
    state.added.clear();
    if (open.empty() && state.stopping) return;
    lock.unlock();
    std::erase_if(open, complete);
    lock.lock();
  }
}

void check_length(const Tensors& list, int world_size) {
  if (static_cast<int>(list.size()) == world_size) return;
  throw UsageError(Origin{"comm"}, "process_group: a list of ", list.size(), " tensors for ", world_size,
                   " ranks; give one for each.");
}

void copy_all(const Tensors& from, const Tensors& to) {
  for (size_t i = 0; i < to.size(); ++i) to[i].copy_(from[i].view_as(to[i]));
}

class GroupBackend : public c10d::Backend {
 public:
  explicit GroupBackend(const Group& group)
      : c10d::Backend(group.rank(), group.world_size()), group_(group) {}

  const std::string getBackendName() const override { return "hasten"; }

  NativeWork allreduce(Tensors& tensors, const c10d::AllreduceOptions& options) override {
    return started(group_.all_reduce_async_(one(tensors), from_c10d(options.reduceOp)), tensors);
  }
  NativeWork allreduce_coalesced(Tensors& tensors, const c10d::AllreduceCoalescedOptions& options) override {
    std::vector<Work<>> works;
    for (const auto& tensor : tensors)
      works.push_back(group_.all_reduce_async_(tensor, from_c10d(options.reduceOp)));
    return started(when_all(std::move(works)), tensors);
  }
  NativeWork broadcast(Tensors& tensors, const c10d::BroadcastOptions& options) override {
    return started(group_.broadcast_async_(one(tensors), static_cast<int>(options.rootRank)), tensors);
  }
  NativeWork reduce(Tensors& tensors, const c10d::ReduceOptions& options) override {
    return started(
        group_.reduce_async_(one(tensors), static_cast<int>(options.rootRank), from_c10d(options.reduceOp)),
        tensors);
  }
  NativeWork allgather(std::vector<Tensors>& outputs, Tensors& inputs,
                       const c10d::AllgatherOptions&) override {
    const Tensors output = one(outputs);
    check_length(output, getSize());
    return started(
        group_.all_gather_async(one(inputs)).then([output](const Tensors& all) { copy_all(all, output); }),
        output);
  }
  NativeWork _allgather_base(at::Tensor& output, at::Tensor& input, const c10d::AllgatherOptions&) override {
    return started(group_.all_gather_into_async_(output, input), {output});
  }
  NativeWork gather(std::vector<Tensors>& outputs, Tensors& inputs,
                    const c10d::GatherOptions& options) override {
    const Tensors output = outputs.empty() ? Tensors{} : outputs[0];
    if (options.rootRank == getRank()) check_length(output, getSize());
    auto work = group_.gather_async(one(inputs), static_cast<int>(options.rootRank));
    return started(std::move(work).then([output](const Tensors& all) { copy_all(all, output); }), output);
  }
  NativeWork scatter(Tensors& outputs, std::vector<Tensors>& inputs,
                     const c10d::ScatterOptions& options) override {
    const at::Tensor output = one(outputs);
    auto work =
        group_.scatter_async(inputs.empty() ? Tensors{} : inputs[0], static_cast<int>(options.rootRank));
    return started(std::move(work).then([output](const at::Tensor& part) { copy_all({part}, {output}); }),
                   outputs);
  }
  NativeWork reduce_scatter(Tensors& outputs, std::vector<Tensors>& inputs,
                            const c10d::ReduceScatterOptions& options) override {
    at::Tensor output = one(outputs), input = at::stack(one(inputs));
    return _reduce_scatter_base(output, input, options);
  }
  NativeWork _reduce_scatter_base(at::Tensor& output, at::Tensor& input,
                                  const c10d::ReduceScatterOptions& options) override {
    return started(group_.reduce_scatter_into_async_(output, input, from_c10d(options.reduceOp)), {output});
  }
  NativeWork alltoall_base(at::Tensor& output, at::Tensor& input, std::vector<int64_t>& output_sizes,
                           std::vector<int64_t>& input_sizes, const c10d::AllToAllOptions&) override {
    return started(
        group_.all_to_all_into_async_(output, input, {.input = input_sizes, .output = output_sizes}),
        {output});
  }
  NativeWork alltoall(Tensors& outputs, Tensors& inputs, const c10d::AllToAllOptions&) override {
    check_length(outputs, getSize());
    auto work = group_.all_to_all_async(inputs);
    return started(std::move(work).then([outputs](const Tensors& parts) { copy_all(parts, outputs); }),
                   outputs);
  }
  NativeWork send(Tensors& tensors, int to, int tag) override {
    return started(group_.send_async(one(tensors), to, tag), tensors);
  }
  NativeWork recv(Tensors& tensors, int from, int tag) override {
    return started(group_.receive_async_(one(tensors), from, tag), tensors);
  }
  NativeWork barrier(const c10d::BarrierOptions&) override { return started(group_.barrier_async(), {}); }

 private:
  template <class T>
  static const T& one(const std::vector<T>& list) {
    if (list.size() == 1) return list[0];
    throw UsageError(Origin{"comm"}, "process_group: ", list.size(), " tensors in one call; give one.");
  }

  NativeWork started(Work<> work, const Tensors& results) {
    return c10::make_intrusive<GroupWork>(std::move(work), results, completer_,
                                          group_.backend_name() == "shm");
  }

  Group group_;
  std::shared_ptr<Completer> completer_ = std::make_shared<Completer>();
};

}  // namespace

c10::intrusive_ptr<c10d::ProcessGroup> process_group(const Group& group) {
  auto result = c10::make_intrusive<c10d::ProcessGroup>(group.rank(), group.world_size());
  const auto custom = c10d::ProcessGroup::BackendType::CUSTOM;
  result->setBackend(c10::DeviceType::CPU, custom, c10::make_intrusive<GroupBackend>(group));
  result->setDefaultBackend(custom);
  return result;
}

}  // namespace hasten::comm
