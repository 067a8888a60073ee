// See failure_watch.h.
#include "comm/group/failure_watch.h"

#include <c10/core/DeviceGuard.h>

#include <chrono>
#include <utility>

namespace hasten::comm {
namespace {

constexpr auto kInterval = std::chrono::milliseconds(500);

}  // namespace

FailureWatch::FailureWatch(c10::Device device, std::function<std::optional<std::string>()> look,
                           std::function<void()> act)
    : thread_([this, device, look = std::move(look), act = std::move(act)] {
        const c10::DeviceGuard on_device(device);
        std::unique_lock lock(mutex_);
        while (!is_ending_) {
          lock.unlock();
          if (look()) return act();
          lock.lock();
          changed_.wait_for(lock, kInterval, [this] { return is_ending_; });
        }
      }) {}

FailureWatch::~FailureWatch() {
  {
    const std::lock_guard lock(mutex_);
    is_ending_ = true;
  }
  changed_.notify_all();
  thread_.join();
}

}  // namespace hasten::comm
