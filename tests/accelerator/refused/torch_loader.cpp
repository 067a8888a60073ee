// Must not compile: a loader of torch's own cannot be prepared. The test looks for the remedy in the
// compiler's words.
#include <torch/torch.h>

#include "hasten/accelerator.h"

void prepare_a_loader_of_torch(const hasten::Accelerator& accelerator) {
  auto images = torch::data::datasets::MNIST("").map(torch::data::transforms::Stack<>());
  accelerator.prepare(torch::data::make_data_loader(images, 64));
}
