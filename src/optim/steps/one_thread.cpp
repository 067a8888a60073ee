// OpenMP's number of threads, by way of the library that libtorch has loaded; see one_thread.h.
#include "optim/steps/one_thread.h"

#include <ATen/Parallel.h>
#include <dlfcn.h>

namespace hasten::optim::detail {
namespace {

// Looked up, not linked: which OpenMP it is (GNU's, LLVM's, Intel's) is libtorch's choice.
void set_openmp_threads(int number) {
  static const auto set = reinterpret_cast<void (*)(int)>(dlsym(RTLD_DEFAULT, "omp_set_num_threads"));
  if (set != nullptr) set(number);
}

}  // namespace

OneThread::OneThread(bool enabled) {
  if (!enabled || at::get_num_threads() == 1) return;
  num_threads_ = at::get_num_threads();
  set_openmp_threads(1);
}

OneThread::~OneThread() {
  if (num_threads_ > 0) set_openmp_threads(num_threads_);
}

}  // namespace hasten::optim::detail
