// See writer_thread.h. The count of running writers is never freed: a writer may end after the program's statics.
#include "checkpoint/save/writer_thread.h"

#include <unistd.h>

#include <condition_variable>
#include <cstdlib>
#include <mutex>
#include <thread>

#include "checkpoint/save/background_thread.h"

namespace hasten::checkpoint {
namespace {

constexpr auto kExitLimit = std::chrono::minutes(10);

struct Running {
  std::mutex mutex;
  std::condition_variable changed;
  int count = 0;

  static Running& all() {
    static auto* running = [] {
      // Handlers run in reverse order, so this one comes before libtorch's own statics are gone.
      std::atexit(wait);
      std::at_quick_exit(wait);
      return new Running;
    }();
    return *running;
  }
  static void wait() {
    Running& running = all();
    std::unique_lock lock(running.mutex);
    running.changed.wait_for(lock, kExitLimit, [&] { return running.count == 0; });
  }
};

void write(const std::shared_ptr<SaveJob>& job) {
  lower_priority();
  run_save_job(*job);
}

}  // namespace

void start_writer(std::shared_ptr<SaveJob> job) {
  Running& running = Running::all();
  {
    const std::lock_guard lock(running.mutex);
    ++running.count;
  }
  const auto leave = [&running] {
    {
      const std::lock_guard lock(running.mutex);
      --running.count;
    }
    running.changed.notify_all();
  };
  try {
    std::thread([job = std::move(job), leave]() mutable {
      write(job);
      job = nullptr;
      leave();
    }).detach();
  } catch (...) {
    leave();
    throw;
  }
}

}  // namespace hasten::checkpoint
