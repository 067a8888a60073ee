// A scope in which libtorch's kernels, called from this thread, stay on it.
//
// libtorch's fused kernels wake all threads for every parameter, however small. For 98 parameters of 256 elements that
// takes 4 times as long as one thread alone on two idle cores. On busy cores it takes 80 times as long.
// at::set_num_threads is for the whole process and empties oneDNN's caches. OpenMP's own number, which libtorch reads,
// is each thread's.
#pragma once

namespace hasten::optim::detail {

/// Nothing where `enabled` is false, or libtorch runs on something else than OpenMP.
class OneThread {
 public:
  explicit OneThread(bool enabled);
  ~OneThread();
  OneThread(const OneThread&) = delete;
  OneThread& operator=(const OneThread&) = delete;

 private:
  int num_threads_ = 0;  // to go back to; 0: nothing was changed
};

}  // namespace hasten::optim::detail
