// See channels_last.h.
#include "hasten/parallel/model/channels_last.h"

#include <torch/types.h>

#include <optional>

namespace hasten::parallel {
namespace {

std::optional<at::MemoryFormat> format_of(const at::Tensor& tensor) {
  if (!tensor.defined() || tensor.layout() != at::kStrided) return std::nullopt;
  if (tensor.dim() == 4) return at::MemoryFormat::ChannelsLast;
  if (tensor.dim() == 5) return at::MemoryFormat::ChannelsLast3d;
  return std::nullopt;
}

void reorder(at::Tensor tensor) {
  const auto format = format_of(tensor);
  // Not contiguous(): with one channel every order is, and only strides define which is meant.
  if (format) tensor.set_data(torch::empty_like(tensor, *format).copy_(tensor.detach()));
}

}  // namespace

void channels_last(torch::nn::Module& model) {
  const torch::NoGradGuard no_grad;
  for (const at::Tensor& parameter : model.parameters()) reorder(parameter);
  for (const at::Tensor& buffer : model.buffers()) reorder(buffer);
}

}  // namespace hasten::parallel
