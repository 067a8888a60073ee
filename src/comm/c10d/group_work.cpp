// See group_work.h.
#include "comm/c10d/group_work.h"

#include <ATen/core/ivalue.h>
#include <c10/core/DeviceGuard.h>
#include <c10/core/StreamGuard.h>
#include <c10/core/impl/VirtualGuardImpl.h>
#include <torch/csrc/autograd/engine.h>
#include <torch/csrc/autograd/graph_task.h>

#include <algorithm>
#include <thread>
#include <utility>

#include "hasten/comm/types/wait_check.h"
#include "hasten/core/error.h"

namespace hasten::comm {
namespace {

// How long a future is left to the thread of backward.
constexpr std::chrono::milliseconds kLinger{20};

bool in_backward() {
  return torch::autograd::get_current_graph_task_id() != -1;
}

// The end of an operation without a handle: its last step writes the results.
void finish_dropped(const std::shared_ptr<Work<>>& work) noexcept {
  try {
    work->wait();
  } catch (const std::exception&) {
    // Nothing waits for it. Later operations of the group report what ended this one.
  }
}

}  // namespace

GroupWork::Place::Place(const std::vector<at::Tensor>& outputs) {
  for (const at::Tensor& output : outputs) {
    const c10::Device device = output.device();
    if (device.is_cpu() || std::find(devices.begin(), devices.end(), device) != devices.end()) continue;
    devices.push_back(device);
    streams.push_back(c10::impl::VirtualGuardImpl(device.type()).getStream(device));
  }
}

template <class Fn>
void GroupWork::Place::run(const Fn& fn) const {
  if (devices.empty()) return fn();
  const c10::DeviceGuard on_device(devices.front());
  const c10::MultiStreamGuard in_streams(streams);
  fn();
}

GroupWork::GroupWork(const Setup& setup, comm::Work<> work, std::shared_ptr<FutureCompleter> completer)
    : c10d::Work(setup.rank, setup.type, setup.title, setup.inputs),
      work_(std::move(work)),
      outputs_(setup.outputs),
      place_(outputs_),
      limit_(setup.limit),
      from_(setup.from),
      completer_(std::move(completer)) {}

GroupWork::~GroupWork() {
  if (!work_) return;
  auto dropped = std::make_shared<comm::Work<>>(std::move(*work_));
  completer_->post([dropped, place = place_] { place.run([&] { finish_dropped(dropped); }); },
                   std::chrono::milliseconds(0));
}

void GroupWork::carry_out_locked() {
  if (!work_) return;
  try {
    work_->wait();
    finish();
  } catch (...) {
    finish(std::current_exception());
  }
  work_.reset();
}

void GroupWork::carry_out() {
  const std::lock_guard lock(turn_);
  carry_out_locked();
}

bool GroupWork::isCompleted() {
  const std::unique_lock lock(turn_, std::try_to_lock);
  if (!lock) return false;
  // Results are written by the last step, which takes no waiting.
  if (work_ && work_->done()) carry_out_locked();
  return !work_;
}

void GroupWork::wait_until_done(std::chrono::milliseconds limit) {
  const auto end = std::chrono::steady_clock::now() + limit;
  auto pause = std::chrono::microseconds(50);
  while (!isCompleted()) {
    if (std::chrono::steady_clock::now() > end) {
      throw CommError(Origin{"comm"}, "wait", "Operation timed out! Rank ", rank_, " waited for ",
                      c10d::opTypeToString(opType_), " for ", limit.count(),
                      " ms. The operation goes on. Raise the timeout, or look at what the other ranks do.");
    }
    WaitCheck::run();
    std::this_thread::sleep_for(pause);
    pause = std::min(2 * pause, std::chrono::microseconds(2000));
  }
}

bool GroupWork::wait(std::chrono::milliseconds timeout) {
  if (timeout > kNoTimeout) {
    wait_until_done(timeout);
  } else if (limit_) {
    wait_until_done(*limit_);
  } else {
    carry_out();
  }
  if (const auto error = exception()) std::rethrow_exception(error);
  return true;
}

std::vector<at::Tensor> GroupWork::result() {
  wait(kNoTimeout);
  return outputs_;
}

int GroupWork::sourceRank() const {
  if (from_) return *from_;
  return c10d::Work::sourceRank();
}

void GroupWork::complete_future() {
  carry_out();
  std::call_once(future_completed_, [this] {
    if (const auto error = exception()) {
      future_->setError(error);
    } else {
      future_->markCompleted(c10::IValue(outputs_));
    }
  });
}

c10::intrusive_ptr<c10::ivalue::Future> GroupWork::getFuture() {
  {
    const std::lock_guard lock(turn_);
    if (future_) return future_;
    future_ = c10::make_intrusive<c10::ivalue::Future>(c10::ListType::create(c10::TensorType::get()), place_.devices);
  }
  const auto job = [self = c10::intrusive_ptr<GroupWork>::reclaim_copy(this)] {
    self->place_.run([&] { self->complete_future(); });
  };
  const bool has_thread = in_backward();
  if (has_thread) torch::autograd::Engine::get_default_engine().queue_callback(job);
  completer_->post(job, has_thread ? kLinger : std::chrono::milliseconds(0));
  return future_;
}

}  // namespace hasten::comm
