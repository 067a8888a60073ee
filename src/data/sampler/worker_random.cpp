// A key for each thread, and a generator made at its first use; see worker_random.h.
#include "hasten/data/sampler/worker_random.h"

#include <ATen/CPUGeneratorImpl.h>

#include <optional>

#include "hasten/data/sampler/permutation.h"

namespace hasten::data {

namespace {

struct Current {
  bool active = false;
  uint64_t seed = 0;
  std::optional<at::Generator> generator = {};
};

Current& current() {
  static thread_local Current mine;
  return mine;
}

}  // namespace

at::Generator worker_generator() {
  Current& now = current();
  if (!now.active) return at::detail::getDefaultCPUGenerator();
  // Seeding costs microseconds, so it happens at the first draw.
  if (!now.generator) now.generator = at::detail::createCPUGenerator(now.seed);
  return *now.generator;
}

detail::WorkerScope::WorkerScope(uint64_t seed, uint64_t epoch, const Indices& indices) {
  uint64_t key = seed;
  for (const size_t index : indices) key = keyed_bits(key, epoch, index);
  current() = {.active = true, .seed = key};
}

detail::WorkerScope::~WorkerScope() {
  current() = {};
}

}  // namespace hasten::data
