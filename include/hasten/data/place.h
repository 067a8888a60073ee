// Batches on their way to the device. Tensors and torch's examples; other types stay where they are.
#pragma once

#include <ATen/ATen.h>
#include <torch/data/example.h>

#include <utility>
#include <vector>

namespace hasten::data {

inline at::Tensor place(at::Tensor tensor, c10::Device device, bool non_blocking) {
  return tensor.to(device, tensor.scalar_type(), non_blocking);
}

template <class Batch>
Batch place(Batch batch, c10::Device, bool) {
  return batch;
}

template <class Data, class Target>
torch::data::Example<Data, Target> place(torch::data::Example<Data, Target> example, c10::Device device,
                                         bool non_blocking) {
  return {place(std::move(example.data), device, non_blocking),
          place(std::move(example.target), device, non_blocking)};
}

template <class T>
std::vector<T> place(std::vector<T> batch, c10::Device device, bool non_blocking) {
  for (auto& element : batch) element = place(std::move(element), device, non_blocking);
  return batch;
}

}  // namespace hasten::data
