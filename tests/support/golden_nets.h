// The nets and values of the golden cases "offload.json", as their README describes them.
#pragma once

#include <torch/torch.h>

#include <memory>
#include <nlohmann/json.hpp>
#include <set>
#include <string>
#include <vector>

#include "hasten/offload/map/tree_of.h"
#include "hasten/offload/units/set_tensor.h"

namespace hasten::testing {

/// Element i is ((7919 i + 104729 k) mod 2003 - 1001) / 1000, cast; integers keep the number before the division.
inline at::Tensor golden_fill(const std::vector<int64_t>& shape, const std::string& dtype, int64_t k) {
  const auto type = offload::scalar_type_of_name(dtype);
  if (c10::isComplexType(type)) return at::zeros(shape, at::TensorOptions(type));
  int64_t count = 1;
  for (const int64_t size : shape) count *= size;
  const at::Tensor whole =
      at::remainder(at::arange(count, at::TensorOptions(at::kLong)) * 7919 + k * 104729, 2003) - 1001;
  at::Tensor values;
  if (type == at::kBool) {
    values = at::remainder(whole, 2) == 0;
  } else if (c10::isIntegralType(type, false)) {
    values = type == at::kByte ? at::remainder(whole, 256) : type == at::kChar ? at::remainder(whole, 127) : whole;
  } else {
    values = whole.to(at::kDouble) / 1000.0;
    if (type != at::kDouble) values = values.to(at::kFloat);
  }
  return values.to(type).view(shape);
}

/// Fills distinct parameters in order, then distinct buffers.
inline void golden_fill_module(torch::nn::Module& module) {
  const torch::NoGradGuard no_grad;
  std::set<const c10::TensorImpl*> seen;
  int64_t k = 0;
  for (const auto& item : offload::named_tensors(module)) {
    if (!seen.insert(item.tensor.unsafeGetTensorImpl()).second) continue;
    at::Tensor values =
        golden_fill(item.tensor.sizes().vec(), std::string(offload::dtype_name(item.tensor.scalar_type())), k++);
    if (item.name.ends_with("running_var")) values = values.abs() + 0.5;
    item.tensor.copy_(values);
  }
}

struct GoldenNet : torch::nn::Module {
  using torch::nn::Module::Module;
  virtual at::Tensor forward(const at::Tensor& x) = 0;
  /// Returns an input.
  virtual at::Tensor example() const = 0;
};

struct LinearBnNet : GoldenNet {
  LinearBnNet() : GoldenNet("ModelForTest") {
    linear1 = register_module("linear1", torch::nn::Linear(3, 4));
    batchnorm = register_module("batchnorm", torch::nn::BatchNorm1d(4));
    linear2 = register_module("linear2", torch::nn::Linear(4, 5));
  }
  at::Tensor forward(const at::Tensor& x) override { return linear2(batchnorm(linear1(x))); }
  at::Tensor example() const override { return golden_fill({2, 3}, "float32", 1000); }
  torch::nn::Linear linear1{nullptr}, linear2{nullptr};
  torch::nn::BatchNorm1d batchnorm{nullptr};
};

struct GoldenBlockImpl : torch::nn::Module {
  GoldenBlockImpl() : torch::nn::Module("Block") {
    scale = register_parameter("scale", torch::ones({8}));
    fc1 = register_module("fc1", torch::nn::Linear(8, 16));
    fc2 = register_module("fc2", torch::nn::Linear(16, 8));
  }
  at::Tensor forward(const at::Tensor& x) { return x + fc2(torch::relu(fc1(x))) * scale; }
  at::Tensor scale;
  torch::nn::Linear fc1{nullptr}, fc2{nullptr};
};
TORCH_MODULE(GoldenBlock);

struct BlocksNet : GoldenNet {
  BlocksNet() : GoldenNet("Blocks") {
    shift = register_parameter("shift", torch::zeros({8}));
    offset = register_buffer("offset", torch::zeros({8}));
    layers = register_module("layers", torch::nn::ModuleList());
    for (int i = 0; i < 3; ++i) layers->push_back(GoldenBlock());
  }
  at::Tensor forward(const at::Tensor& input) override {
    at::Tensor x = input;
    for (const auto& layer : *layers) x = layer->as<GoldenBlock>()->forward(x);
    return x + shift + offset;
  }
  at::Tensor example() const override { return golden_fill({2, 8}, "float32", 1000); }
  at::Tensor shift, offset;
  torch::nn::ModuleList layers{nullptr};
};

/// A bias-free Linear whose weight is another module's.
struct TiedLinearImpl : torch::nn::LinearImpl {
  explicit TiedLinearImpl(const at::Tensor& tied)
      : torch::nn::LinearImpl(torch::nn::LinearOptions(tied.size(1), tied.size(0)).bias(false)) {
    parameters_["weight"] = tied;
    weight = tied;
  }
};
TORCH_MODULE(TiedLinear);

struct TiedNet : GoldenNet {
  TiedNet() : GoldenNet("Tied") {
    emb = register_module("emb", torch::nn::Embedding(12, 8));
    mid = register_module("mid", torch::nn::Linear(8, 8));
    head = register_module("head", TiedLinear(emb->weight));
  }
  at::Tensor forward(const at::Tensor& ids) override { return head->forward(torch::relu(mid(emb(ids)))); }
  at::Tensor example() const override { return torch::tensor({{0, 3, 11}, {5, 5, 7}}, at::kLong); }
  torch::nn::Embedding emb{nullptr};
  torch::nn::Linear mid{nullptr};
  TiedLinear head{nullptr};
};

struct DirectInnerImpl : torch::nn::Module {
  DirectInnerImpl() : torch::nn::Module("Direct") {
    dense = register_module("dense", torch::nn::Linear(4, 6));
    out = register_module("out", torch::nn::Linear(6, 2));
  }
  at::Tensor forward(const at::Tensor& x) { return out(torch::nn::functional::linear(x, dense->weight, dense->bias)); }
  torch::nn::Linear dense{nullptr}, out{nullptr};
};
TORCH_MODULE(DirectInner);

struct DirectNet : GoldenNet {
  DirectNet() : GoldenNet("DirectNet") {
    inner = register_module("inner", DirectInner());
    tail = register_module("tail", torch::nn::Linear(2, 3));
  }
  at::Tensor forward(const at::Tensor& x) override { return tail(inner(x)); }
  at::Tensor example() const override { return golden_fill({2, 4}, "float32", 1000); }
  DirectInner inner{nullptr};
  torch::nn::Linear tail{nullptr};
};

/// The net of that name in eval mode, not filled. Throws: std::invalid_argument for another name.
inline std::shared_ptr<GoldenNet> golden_net(const std::string& name) {
  std::shared_ptr<GoldenNet> net;
  if (name == "linear_bn") net = std::make_shared<LinearBnNet>();
  if (name == "blocks") net = std::make_shared<BlocksNet>();
  if (name == "tied") net = std::make_shared<TiedNet>();
  if (name == "direct") net = std::make_shared<DirectNet>();
  if (!net) throw std::invalid_argument("no golden net '" + name + "'");
  net->eval();
  return net;
}

/// Nested lists of a tensor's values.
inline nlohmann::json tensor_json(const at::Tensor& tensor) {
  if (tensor.dim() > 0) {
    auto list = nlohmann::json::array();
    for (int64_t i = 0; i < tensor.size(0); ++i) list.push_back(tensor_json(tensor[i]));
    return list;
  }
  if (tensor.scalar_type() == at::kBool) return tensor.item<bool>();
  if (c10::isIntegralType(tensor.scalar_type(), false)) return tensor.item<int64_t>();
  return static_cast<double>(tensor.to(at::kFloat).item<float>());
}

}  // namespace hasten::testing
