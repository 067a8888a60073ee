// Making a default generator on all ranks that of rank 0, as Accelerate's synchronize_rng_states does.
//
// Draws of samplers need none of it (sampler_stream.h). It is for random numbers that the loop itself draws alike on
// all ranks.
#pragma once

#include <c10/core/Device.h>

#include "hasten/comm/group/group.h"

namespace hasten::data {

/// The default CPU generator.
/// Collective: yes. Blocks: until rank 0 has called. Throws: CommError.
void synchronize_cpu_generator(const comm::Group& group);

/// The default generator of `device`; nothing if that is no CUDA device, alike on all ranks.
/// Collective: yes. Blocks: until rank 0 has called. Throws: CommError.
void synchronize_cuda_generator(const comm::Group& group, c10::Device device);

}  // namespace hasten::data
