// See serial_executor.h.
#include "comm/connecting/serial_executor.h"

#include <csignal>

#include "hasten/flight/stacks.h"

namespace hasten::comm {

std::thread start_without_signals(std::function<void()> body) {
  sigset_t all, before;
  sigfillset(&all);
  if (const int stacks = flight::stack_signal(); stacks != 0) sigdelset(&all, stacks);
  pthread_sigmask(SIG_SETMASK, &all, &before);
  std::thread thread(std::move(body));
  pthread_sigmask(SIG_SETMASK, &before, nullptr);
  return thread;
}

SerialExecutor::~SerialExecutor() {
  {
    const std::lock_guard lock(mutex_);
    stopping_ = true;
  }
  changed_.notify_all();
  if (thread_.joinable()) thread_.join();
}

std::future<void> SerialExecutor::submit(std::function<void()> job) {
  std::packaged_task<void()> task(std::move(job));
  auto result = task.get_future();
  {
    const std::lock_guard lock(mutex_);
    if (!thread_.joinable()) thread_ = start_without_signals([this] { serve(); });
    tasks_.push_back(std::move(task));
  }
  changed_.notify_all();
  return result;
}

void SerialExecutor::serve() {
  std::unique_lock lock(mutex_);
  for (;;) {
    changed_.wait(lock, [this] { return stopping_ || !tasks_.empty(); });
    if (tasks_.empty()) return;
    auto task = std::move(tasks_.front());
    tasks_.pop_front();
    lock.unlock();
    task();
    lock.lock();
  }
}

}  // namespace hasten::comm
