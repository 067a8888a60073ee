// Broadcasting generator states; see rng_sync.h.
#include "data/sampler/rng_sync.h"

#include "hasten/comm/types/purpose.h"
#include "hasten/process/random.h"

namespace hasten::data {

void synchronize_cpu_generator(const comm::Group& group) {
  if (group.world_size() == 1) return;
  const at::Tensor state = process::capture_random_state().cpu.clone();
  const comm::Purpose purpose("random state of the process");
  group.broadcast_(state, 0);
  process::restore_random_state({.cpu = state});
}

void synchronize_cuda_generator(const comm::Group& group, c10::Device device) {
  if (group.world_size() == 1 || !device.is_cuda()) return;
  process::RandomState all = process::capture_random_state();
  const auto index = static_cast<size_t>(device.has_index() ? device.index() : 0);
  all.cuda.at(index) = all.cuda.at(index).clone();
  const comm::Purpose purpose("random state of the process");
  group.broadcast_(all.cuda.at(index), 0);
  process::restore_random_state(all);
}

}  // namespace hasten::data
