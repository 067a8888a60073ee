// Models, data and optimizers from their description in golden cases ("models", "optimizer" in the golden
// cases' README): a Sequential of layers, whose parameters are given.
#pragma once

#include <torch/torch.h>

#include <memory>
#include <nlohmann/json.hpp>
#include <stdexcept>
#include <string>
#include <vector>

namespace hasten::testing {

inline at::ScalarType dtype_of(const nlohmann::json& model) {
  return model.at("dtype") == "float64" ? at::kDouble : at::kFloat;
}

/// Numbers in nested lists, of one dtype.
inline at::Tensor tensor_of(const nlohmann::json& lists, at::ScalarType dtype) {
  std::vector<int64_t> shape;
  for (const nlohmann::json* level = &lists; level->is_array(); level = &level->at(0)) {
    shape.push_back(static_cast<int64_t>(level->size()));
    if (level->empty()) break;
  }
  std::vector<double> values;
  const auto collect = [&](const auto& self, const nlohmann::json& node) -> void {
    if (!node.is_array()) return values.push_back(node.get<double>());
    for (const auto& child : node) self(self, child);
  };
  collect(collect, lists);
  return torch::tensor(values, at::kDouble).view(shape).to(dtype);
}

inline nlohmann::json lists_of(const at::Tensor& tensor) {
  if (tensor.dim() == 0) {
    if (!tensor.is_floating_point()) return tensor.item<int64_t>();
    return tensor.item<double>();
  }
  nlohmann::json list = nlohmann::json::array();
  for (const at::Tensor& part : tensor.unbind()) list.push_back(lists_of(part));
  return list;
}

inline void add_layer(torch::nn::Sequential& net, const nlohmann::json& layer) {
  namespace nn = torch::nn;
  const std::string type = layer.at("type");
  if (type == "Linear") {
    net->push_back(nn::Linear(layer.at("in").get<int64_t>(), layer.at("out").get<int64_t>()));
  } else if (type == "Conv2d") {
    net->push_back(nn::Conv2d(nn::Conv2dOptions(layer.at("in"), layer.at("out"), layer.at("kernel").get<int64_t>())
                                  .padding(layer.value("padding", int64_t{0}))));
  } else if (type == "BatchNorm1d") {
    net->push_back(nn::BatchNorm1d(layer.at("features").get<int64_t>()));
  } else if (type == "BatchNorm2d") {
    net->push_back(nn::BatchNorm2d(layer.at("features").get<int64_t>()));
  } else if (type == "LayerNorm") {
    net->push_back(nn::LayerNorm(nn::LayerNormOptions({layer.at("features").get<int64_t>()})));
  } else if (type == "Tanh") {
    net->push_back(nn::Tanh());
  } else if (type == "ReLU") {
    net->push_back(nn::ReLU());
  } else if (type == "GELU") {
    net->push_back(nn::GELU());
  } else if (type == "Flatten") {
    net->push_back(nn::Flatten());
  } else {
    throw std::runtime_error("no layer " + type);
  }
}

/// {"layers", "params", "dtype"} with its parameters.
inline torch::nn::Sequential sequential_of(const nlohmann::json& model) {
  torch::nn::Sequential net;
  for (const auto& layer : model.at("layers")) add_layer(net, layer);
  net->to(dtype_of(model));
  const torch::NoGradGuard no_grad;
  for (auto& parameter : net->named_parameters()) {
    parameter.value().copy_(tensor_of(model.at("params").at(parameter.key()), dtype_of(model)));
  }
  return net;
}

inline std::unique_ptr<torch::optim::Optimizer> optimizer_for(const nlohmann::json& spec,
                                                              const std::vector<at::Tensor>& parameters) {
  namespace peer = torch::optim;
  const std::string type = spec.at("type");
  const double lr = spec.at("lr"), decay = spec.value("weight_decay", type == "AdamW" ? 1e-2 : 0.0);
  const auto betas = spec.value("betas", std::vector<double>{0.9, 0.999});
  const auto adam = [&](auto options) {
    return options.betas({betas[0], betas[1]})
        .weight_decay(decay)
        .eps(spec.value("eps", 1e-8))
        .amsgrad(spec.value("amsgrad", false));
  };
  if (type == "SGD") {
    return std::make_unique<peer::SGD>(parameters, peer::SGDOptions(lr)
                                                       .momentum(spec.value("momentum", 0.0))
                                                       .dampening(spec.value("dampening", 0.0))
                                                       .nesterov(spec.value("nesterov", false))
                                                       .weight_decay(decay));
  }
  if (type == "Adam") return std::make_unique<peer::Adam>(parameters, adam(peer::AdamOptions(lr)));
  if (type == "AdamW") return std::make_unique<peer::AdamW>(parameters, adam(peer::AdamWOptions(lr)));
  if (type == "Adagrad") {
    return std::make_unique<peer::Adagrad>(
        parameters, peer::AdagradOptions(lr)
                        .lr_decay(spec.value("lr_decay", 0.0))
                        .weight_decay(decay)
                        .initial_accumulator_value(spec.value("initial_accumulator_value", 0.0)));
  }
  if (type == "RMSprop") {
    return std::make_unique<peer::RMSprop>(parameters, peer::RMSpropOptions(lr)
                                                           .alpha(spec.value("alpha", 0.99))
                                                           .eps(spec.value("eps", 1e-8))
                                                           .momentum(spec.value("momentum", 0.0))
                                                           .centered(spec.value("centered", false))
                                                           .weight_decay(decay));
  }
  throw std::runtime_error("no optimizer " + type);
}

/// "mse", "mse_sum" (the sum of squares) or "cross_entropy"; std::runtime_error for another.
inline at::Tensor loss_of(const std::string& name, const at::Tensor& output, const at::Tensor& target) {
  if (name == "mse") return torch::nn::functional::mse_loss(output, target);
  if (name == "mse_sum") return (output - target).square().sum();
  if (name != "cross_entropy") throw std::runtime_error("no loss " + name);
  return torch::nn::functional::cross_entropy(output, target);
}

/// The targets of such a case: classes, or numbers of the model's dtype.
inline at::Tensor targets_of(const nlohmann::json& input) {
  return tensor_of(input.at("y"),
                   input.at("loss").get<std::string>().starts_with("mse") ? dtype_of(input.at("model")) : at::kLong);
}

}  // namespace hasten::testing
