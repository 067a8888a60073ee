// A scope in which libtorch's kernels, called from this thread, stay on it.
//
// libtorch's fused kernels wake all threads for every parameter, however small; for 98 of 256 elements on
// two idle cores that takes 4 times as long as one thread alone, on busy cores 80 times.
// at::set_num_threads is for the whole process and empties oneDNN's caches; OpenMP's own number, which
// libtorch asks, is each thread's.
#pragma once

namespace hasten::optim::detail {

/// Nothing where `wanted` is false, or libtorch runs on something else than OpenMP.
class OneThread {
 public:
  explicit OneThread(bool wanted);
  ~OneThread();
  OneThread(const OneThread&) = delete;
  OneThread& operator=(const OneThread&) = delete;

 private:
  int num_threads_ = 0;  // to go back to; 0: nothing was changed
};

}  // namespace hasten::optim::detail
