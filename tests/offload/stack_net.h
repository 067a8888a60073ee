// A net of six layers, and its weights in a file, for tests of loading and streaming.
#pragma once

#include <gtest/gtest.h>
#include <torch/torch.h>

#include <fstream>
#include <string>
#include <vector>

#include "hasten/files/safetensors/safetensors_header.h"
#include "hasten/offload/load/dispatch.h"
#include "hasten/offload/units/set_tensor.h"
#include "support/folder.h"
#include "support/test_device.h"

namespace hasten::offload {

struct StackImpl : torch::nn::Module {
  explicit StackImpl(int64_t width = 192) : torch::nn::Module("Stack") {
    layers = register_module("layers", torch::nn::ModuleList());
    for (int i = 0; i < 6; ++i) layers->push_back(torch::nn::Linear(width, width));
  }
  at::Tensor forward(const at::Tensor& input) {
    at::Tensor x = input;
    for (const auto& layer : *layers) x = torch::relu(layer->as<torch::nn::Linear>()->forward(x));
    return x;
  }
  torch::nn::ModuleList layers{nullptr};
};
TORCH_MODULE(Stack);

inline void save_weights(const torch::nn::Module& module, const std::string& path) {
  std::vector<files::TensorInfo> infos;
  std::vector<at::Tensor> tensors;
  for (const auto& item : named_tensors(module)) {
    infos.push_back({item.name, file_dtype_of(item.tensor.scalar_type()), item.tensor.sizes().vec()});
    tensors.push_back(item.tensor.detach().contiguous());
  }
  const auto layout = files::lay_out_safetensors(infos, {});
  std::ofstream file(path, std::ios::binary);
  file << layout.head;
  for (size_t i = 0; i < tensors.size(); ++i) {
    file.seekp(static_cast<std::streamoff>(layout.offsets[i]));
    file.write(static_cast<const char*>(tensors[i].const_data_ptr()),
               static_cast<std::streamsize>(tensors[i].nbytes()));
  }
}

/// A stack of six layers in a file, and its output.
class StackInFile : public testing::InFolder {
 protected:
  StackInFile() {
    torch::manual_seed(1);
    net_ = Stack();
    x_ = torch::randn({2, 192});
    wanted_ = net_->forward(x_).detach();
    save_weights(*net_, path("model.safetensors"));
  }
  static constexpr int64_t kLayerBytes = int64_t{192} * 192 * 4;
  /// Room for three of six layers: one stays, one is in use while the next is read.
  static DispatchOptions limited(const DeviceMapChoice& map = "auto") {
    return {.device_map = map, .max_memory = {{"cpu", 3 * kLayerBytes + 8192}}, .no_split_module_classes = {"Linear"}};
  }
  Dispatched<Stack> load(const DispatchOptions& options) const {
    return load_checkpoint_and_dispatch(empty_weights([] { return Stack(); }), path("model.safetensors"),
                                        on_test_device(options));
  }
  /// On a device the limit of "cpu" is the device's, weights beyond it rest in memory, and the device computes.
  static DispatchOptions on_test_device(DispatchOptions options) {
    if (!testing::on_device()) return options;
    for (auto& [device, bytes] : options.max_memory) {
      if (device == Device("cpu")) device = Device(0);
    }
    options.max_memory.emplace_back(Device("cpu"), Bytes("1GB"));
    options.main_device = Device(0);
    return options;
  }
  Stack net_{nullptr};
  at::Tensor x_, wanted_;
};

}  // namespace hasten::offload
