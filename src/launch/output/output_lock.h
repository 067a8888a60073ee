// The right to write to the launcher's terminal. The worker shims take turns, so that no line is torn by another
// rank's.
//
// The lock lies in memory that the worker shims share, and is let go by the kernel when its holder is killed.
#pragma once

#include <pthread.h>

#include <memory>

namespace hasten::launcher {

class OutputLock {
 public:
  /// Made before the processes that share it are forked. Throws: InternalError if the system has no memory.
  static std::shared_ptr<OutputLock> make_shared_by_forks();

  OutputLock();
  OutputLock(const OutputLock&) = delete;
  OutputLock& operator=(const OutputLock&) = delete;

  /// Blocks: until the holder has written what it has, which a stopped terminal may delay for ever.
  void lock();
  void unlock();

 private:
  pthread_mutex_t mutex_;
};

}  // namespace hasten::launcher
