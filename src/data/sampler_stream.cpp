// Swapping the default generator's state; see sampler_stream.h.
#include "hasten/data/sampler_stream.h"

#include <ATen/ATen.h>
#include <ATen/CPUGeneratorImpl.h>

#include <cstring>
#include <mutex>

namespace hasten::data {

namespace {

// One at a time in a process: ranks may be threads, and they share the default generator.
std::mutex& swapping() {
  static std::mutex mutex;
  return mutex;
}

at::Tensor generator_state() {
  auto generator = at::detail::getDefaultCPUGenerator();
  const std::lock_guard lock(generator.mutex());
  return generator.get_state();
}

void set_generator_state(const at::Tensor& state) {
  auto generator = at::detail::getDefaultCPUGenerator();
  const std::lock_guard lock(generator.mutex());
  generator.set_state(state);
}

bool same(const at::Tensor& a, const at::Tensor& b) {
  return a.nbytes() == b.nbytes() && std::memcmp(a.const_data_ptr(), b.const_data_ptr(), a.nbytes()) == 0;
}

}  // namespace

void SamplerStream::begin_epoch() {
  if (group_.world_size() == 1) return;
  {
    const std::lock_guard lock(swapping());
    stream_ = generator_state();
  }
  group_.broadcast_(stream_, 0);  // outside the lock: ranks that are threads wait for each other here
}

void SamplerStream::run(const std::function<void()>& draw) {
  if (group_.world_size() == 1) return draw();
  const std::lock_guard lock(swapping());
  const at::Tensor before = generator_state();
  const bool own = group_.rank() == 0 && same(before, stream_);
  if (!own) set_generator_state(stream_);
  try {
    draw();
  } catch (...) {
    set_generator_state(before);
    throw;
  }
  stream_ = generator_state();
  if (!own) set_generator_state(before);
}

}  // namespace hasten::data
