// See output_lock.h.
#include "launch/output/output_lock.h"

#include <sys/mman.h>

#include <cerrno>
#include <cstring>
#include <new>

#include "hasten/core/error.h"

namespace hasten::launcher {

std::shared_ptr<OutputLock> OutputLock::make_shared_by_forks() {
  void* const place = mmap(nullptr, sizeof(OutputLock), PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
  if (place == MAP_FAILED) throw InternalError({"launch"}, "no shared memory: ", std::strerror(errno), ".");
  return {new (place) OutputLock, [](OutputLock* lock) { munmap(lock, sizeof *lock); }};
}

OutputLock::OutputLock() {
  pthread_mutexattr_t attributes;
  pthread_mutexattr_init(&attributes);
  pthread_mutexattr_setpshared(&attributes, PTHREAD_PROCESS_SHARED);
  pthread_mutexattr_setrobust(&attributes, PTHREAD_MUTEX_ROBUST);
  pthread_mutex_init(&mutex_, &attributes);
  pthread_mutexattr_destroy(&attributes);
}

void OutputLock::lock() {
  if (pthread_mutex_lock(&mutex_) == EOWNERDEAD) pthread_mutex_consistent(&mutex_);
}

void OutputLock::unlock() {
  pthread_mutex_unlock(&mutex_);
}

}  // namespace hasten::launcher
