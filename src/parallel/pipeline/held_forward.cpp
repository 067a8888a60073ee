// See held_forward.h.
#include "parallel/pipeline/held_forward.h"

#include <ATen/Parallel.h>
#include <ATen/ThreadLocalState.h>
#include <ATen/autocast_mode.h>

#include <utility>

#include "hasten/process/thread_streams.h"

namespace hasten::parallel::pipeline {

HeldForward::HeldForward(std::function<void()> forward) {
  const at::ThreadLocalState state;
  const int num_threads = at::get_num_threads();
  const auto dtype = at::autocast::get_autocast_dtype(at::kCPU);
  const auto device_dtype = at::autocast::get_autocast_dtype(at::kCUDA);
  thread_ = std::thread([this, state, num_threads, dtype, device_dtype, set_streams = process::streams_for_threads(),
                         forward = std::move(forward)] {
    {
      std::unique_lock lock(mutex_);
      changed_.wait(lock, [this] { return may_run_; });
    }
    if (!is_abandoned_) {
      const at::ThreadLocalStateGuard modes(state);
      at::set_num_threads(num_threads);
      at::autocast::set_autocast_dtype(at::kCPU, dtype);
      at::autocast::set_autocast_dtype(at::kCUDA, device_dtype);
      try {
        set_streams();
        forward();
      } catch (const Abandoned&) {
      } catch (...) {
        error_ = std::current_exception();
      }
    }
    const std::lock_guard lock(mutex_);
    has_ended_ = true;
    may_run_ = false;
    changed_.notify_all();
  });
}

HeldForward::~HeldForward() {
  {
    const std::lock_guard lock(mutex_);
    is_abandoned_ = may_run_ = true;
    changed_.notify_all();
  }
  thread_.join();
}

void HeldForward::run() {
  std::unique_lock lock(mutex_);
  if (has_ended_) return;
  may_run_ = true;
  changed_.notify_all();
  changed_.wait(lock, [this] { return !may_run_; });
  if (error_) std::rethrow_exception(std::exchange(error_, nullptr));
}

void HeldForward::pause() {
  std::unique_lock lock(mutex_);
  may_run_ = false;
  changed_.notify_all();
  changed_.wait(lock, [this] { return may_run_; });
  if (is_abandoned_) throw Abandoned();
}

}  // namespace hasten::parallel::pipeline
