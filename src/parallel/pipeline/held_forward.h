// HeldForward: a forward on a thread of its own, which an order lets run from stage to stage.
//
// One of them runs at a time, and the caller waits meanwhile. So a program's forward can stop inside any module, and no
// interface of stages is needed. The thread has the caller's modes of libtorch; other thread-local variables of the
// program it has not.
#pragma once

#include <condition_variable>
#include <exception>
#include <functional>
#include <mutex>
#include <thread>

namespace hasten::parallel::pipeline {

class HeldForward {
 public:
  /// Starts the thread, which waits for run().
  explicit HeldForward(std::function<void()> forward);
  /// Ends the forward where it stands: pause() throws there.
  ~HeldForward();
  HeldForward(const HeldForward&) = delete;
  HeldForward& operator=(const HeldForward&) = delete;

  /// Lets the forward run until it pauses or has ended. Throws: the exceptions of the forward.
  void run();
  /// Called by the forward: lets the caller of run() go on, and waits for the next run().
  void pause();
  bool has_ended() const noexcept { return has_ended_; }

 private:
  struct Abandoned {};

  std::mutex mutex_;
  std::condition_variable changed_;
  bool may_run_ = false, has_ended_ = false, is_abandoned_ = false;
  std::exception_ptr error_ = {};
  std::thread thread_;
};

}  // namespace hasten::parallel::pipeline
