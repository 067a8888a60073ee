// See default_generators.h.
#include "hasten/process/default_generators.h"

#include <ATen/Context.h>

#include <mutex>

namespace hasten::process {

DefaultGenerators::DefaultGenerators(c10::Device device)
    : generators_{at::globalContext().defaultGenerator(c10::Device(at::kCPU))} {
  if (!device.is_cpu()) generators_.push_back(at::globalContext().defaultGenerator(device));
}

std::vector<at::Tensor> DefaultGenerators::states() const {
  std::vector<at::Tensor> states;
  for (at::Generator generator : generators_) {
    const std::lock_guard lock(generator.mutex());
    states.push_back(generator.get_state());
  }
  return states;
}

void DefaultGenerators::set_states(const std::vector<at::Tensor>& states) {
  for (size_t i = 0; i < generators_.size(); ++i) {
    const std::lock_guard lock(generators_[i].mutex());
    generators_[i].set_state(states.at(i));
  }
}

std::vector<at::Tensor> DefaultGenerators::states_of_seed(uint64_t seed) const {
  std::vector<at::Tensor> states;
  for (at::Generator generator : generators_) {
    const std::lock_guard lock(generator.mutex());
    at::Generator other = generator.clone();
    other.set_current_seed(seed);
    states.push_back(other.get_state());
  }
  return states;
}

}  // namespace hasten::process
