// See image_values.h.
#include "hasten/training/image_values.h"

#include <ATen/Functions.h>
#include <ATen/TensorOperators.h>
#include <c10/core/Event.h>
#include <c10/core/impl/VirtualGuardImpl.h>

#include <algorithm>
#include <cstring>
#include <optional>

#include "hasten/core/error.h"

namespace hasten::tracking {
namespace {

[[noreturn]] void refuse_images(const at::Tensor& tensor, const char* expected) {
  throw UsageError(Origin{"tracking"}, "images in a tensor of shape [", join(tensor.sizes()), "]; expected ", expected,
                   " with 1, 3 or 4 channels. Reshape it.");
}

bool are_channels(int64_t count) {
  return count == 1 || count == 3 || count == 4;
}

// [N,C,H,W] of a tensor with channels first.
at::Tensor four_dims(const at::Tensor& tensor) {
  constexpr const char* kExpected = "[C,H,W], [H,W] or [N,C,H,W]";
  if (!tensor.defined() || tensor.dim() < 2 || tensor.dim() > 4 || tensor.numel() == 0)
    refuse_images(tensor.defined() ? tensor : at::empty({0}), kExpected);
  at::Tensor images = tensor.detach();
  if (images.dim() == 2) images = images.unsqueeze(0);
  if (images.dim() == 3) images = images.unsqueeze(0);
  if (!are_channels(images.size(1))) refuse_images(tensor, kExpected);
  return images;
}

// A pass over floats on the CPU replaces several by torch's operators. The layout stays, so that it is a vector loop.
at::Tensor floats_to_bytes(const at::Tensor& images) {
  at::Tensor bytes = at::empty(images.sizes(), at::kByte);
  const float* from = images.const_data_ptr<float>();
  auto* to = bytes.mutable_data_ptr<uint8_t>();
  for (int64_t i = 0; i < images.numel(); ++i) {
    const float scaled = from[i] * 255.0F;
    // Written so that NaN becomes 0.
    to[i] = static_cast<uint8_t>(static_cast<int>(scaled > 0 ? std::min(scaled, 255.0F) : 0.0F));
  }
  return bytes;
}

// [N,C,H,W] bytes on the tensor's device.
at::Tensor to_bytes(const at::Tensor& images) {
  if (images.is_cpu() && images.scalar_type() == at::kFloat && images.is_contiguous()) return floats_to_bytes(images);
  at::Tensor scaled = images;
  if (images.scalar_type() == at::kBool) scaled = images.to(at::kByte) * 255;
  if (at::isFloatingType(images.scalar_type())) scaled = at::nan_to_num(images.to(at::kFloat) * 255, 0.0);
  return scaled.clamp(0, 255).to(at::kByte).contiguous();
}

// The pixels of one image, channels last, of planes of `num_pixels` each.
std::vector<uint8_t> interleave(const uint8_t* planes, int64_t channels, int64_t num_pixels) {
  std::vector<uint8_t> pixels(static_cast<size_t>(channels * num_pixels));
  for (int64_t c = 0; c < channels; ++c) {
    for (int64_t i = 0; i < num_pixels; ++i) pixels[static_cast<size_t>(i * channels + c)] = planes[c * num_pixels + i];
  }
  return pixels;
}

class TensorImages : public PendingImages {
 public:
  // `bytes`: [N,C,H,W]; the trackers' thread puts the channels last.
  explicit TensorImages(const at::Tensor& bytes) : host_(bytes) {
    if (!bytes.is_cuda()) return;
    host_ = at::empty(bytes.sizes(), bytes.options().device(at::kCPU).pinned_memory(true));
    host_.copy_(bytes, /*non_blocking=*/true);
    event_.emplace(bytes.device().type());
    event_->record(c10::impl::VirtualGuardImpl(bytes.device().type()).getStream(bytes.device()));
  }
  std::vector<Image> take() override {
    if (event_) event_->synchronize();
    const int64_t channels = host_.size(1), num_pixels = host_.size(2) * host_.size(3);
    std::vector<Image> images;
    for (int64_t i = 0; i < host_.size(0); ++i) {
      images.push_back({static_cast<int>(host_.size(3)), static_cast<int>(host_.size(2)), static_cast<int>(channels),
                        interleave(host_.const_data_ptr<uint8_t>() + i * channels * num_pixels, channels, num_pixels)});
    }
    host_ = at::Tensor();
    return images;
  }
  int64_t num_bytes() const noexcept override { return host_.defined() ? host_.numel() : 0; }

 private:
  at::Tensor host_;
  std::optional<c10::Event> event_;
};

class SeveralImages : public PendingImages {
 public:
  explicit SeveralImages(std::vector<std::shared_ptr<PendingImages>> parts) : parts_(std::move(parts)) {}
  std::vector<Image> take() override {
    std::vector<Image> all;
    for (const auto& part : parts_) {
      for (Image& image : part->take()) all.push_back(std::move(image));
    }
    return all;
  }
  int64_t num_bytes() const noexcept override {
    int64_t sum = 0;
    for (const auto& part : parts_) sum += part->num_bytes();
    return sum;
  }

 private:
  std::vector<std::shared_ptr<PendingImages>> parts_;
};

}  // namespace

std::shared_ptr<PendingImages> ImagesOf<at::Tensor>::make(const at::Tensor& tensor) {
  return std::make_shared<TensorImages>(to_bytes(four_dims(tensor)));
}

std::shared_ptr<PendingImages> ImagesOf<std::vector<at::Tensor>>::make(const std::vector<at::Tensor>& tensors) {
  std::vector<std::shared_ptr<PendingImages>> parts;
  for (const at::Tensor& tensor : tensors) parts.push_back(ImagesOf<at::Tensor>::make(tensor));
  return std::make_shared<SeveralImages>(std::move(parts));
}

Images channels_last_images(const at::Tensor& tensor) {
  if (!tensor.defined() || tensor.dim() < 3 || tensor.dim() > 4 || !are_channels(tensor.size(-1))) {
    refuse_images(tensor.defined() ? tensor : at::empty({0}), "[H,W,C] or [N,H,W,C]");
  }
  return Images(tensor.dim() == 3 ? tensor.permute({2, 0, 1}) : tensor.permute({0, 3, 1, 2}));
}

}  // namespace hasten::tracking
