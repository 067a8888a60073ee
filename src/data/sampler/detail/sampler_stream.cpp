// Swapping the default generator's state; see sampler_stream.h.
#include "hasten/data/sampler/detail/sampler_stream.h"

#include <ATen/ATen.h>
#include <ATen/CPUGeneratorImpl.h>

#include <cstring>
#include <mutex>

#include "hasten/comm/types/purpose.h"
#include "hasten/core/error.h"

namespace hasten::data {

namespace {

// A single user at a time in a process: ranks may be threads, and they share the default generator.
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
  resumed_ = false;
  {
    const std::lock_guard lock(swapping());
    stream_ = generator_state();
  }
  const comm::Purpose purpose("random state of the loader");
  group_.broadcast_(stream_, 0);  // outside the lock: ranks that are threads wait for each other here
  start_ = stream_;
}

void SamplerStream::resume(const std::vector<uint8_t>& start) {
  const auto size = static_cast<int64_t>(start.size());
  const at::Tensor bytes = at::empty({size}, at::kByte);
  std::memcpy(bytes.mutable_data_ptr(), start.data(), start.size());
  try {
    at::detail::createCPUGenerator().set_state(bytes);
  } catch (const c10::Error& error) {
    throw UsageError(Origin{"data"}, "the state's generator (", size,
                     " bytes) is not one of this libtorch: ", error.what_without_backtrace());
  }
  start_ = stream_ = bytes;
  resumed_ = true;
}

std::vector<uint8_t> SamplerStream::start() const {
  if (!start_.defined()) return {};
  const auto* bytes = start_.const_data_ptr<uint8_t>();
  return {bytes, bytes + start_.numel()};
}

uint64_t SamplerStream::seed_of_rank_0() const {
  const at::Tensor seed = at::empty({}, at::kLong);
  *seed.mutable_data_ptr<int64_t>() = static_cast<int64_t>(at::detail::getDefaultCPUGenerator().current_seed());
  const comm::Purpose purpose("seed of the loader");
  group_.broadcast_(seed, 0);
  return static_cast<uint64_t>(*seed.const_data_ptr<int64_t>());
}

void SamplerStream::run(const std::function<void()>& draw) {
  if (group_.world_size() == 1 && !resumed_) return draw();
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
