// FailureWatch: a thread that looks whether another rank has left its words, and acts on them once.
//
// Operations of a GPU end without a host thread that waits for them, so a failed peer would show as a hang of the
// device.
#pragma once

#include <c10/core/Device.h>

#include <condition_variable>
#include <functional>
#include <mutex>
#include <optional>
#include <string>
#include <thread>

namespace hasten::comm {

class FailureWatch {
 public:
  /// Calls `look` in a thread of its own, which has the device, until it returns words, or until the watch ends; then
  /// `act`, once.
  FailureWatch(c10::Device device, std::function<std::optional<std::string>()> look, std::function<void()> act);
  /// Ends the thread.
  ~FailureWatch();
  FailureWatch(const FailureWatch&) = delete;
  FailureWatch& operator=(const FailureWatch&) = delete;

 private:
  std::mutex mutex_;
  std::condition_variable changed_;
  bool is_ending_ = false;
  std::thread thread_;
};

}  // namespace hasten::comm
