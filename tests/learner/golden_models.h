// Models, data and optimizers as the golden cases of the Learner describe them.
#pragma once

#include <ATen/ATen.h>
#include <torch/nn/modules/activation.h>
#include <torch/nn/modules/batchnorm.h>
#include <torch/nn/modules/container/sequential.h>
#include <torch/nn/modules/linear.h>
#include <torch/nn/modules/normalization.h>

#include <nlohmann/json.hpp>
#include <stdexcept>
#include <string>
#include <vector>

#include "hasten/learner/learner.h"

namespace hasten::testing {

using nlohmann::json;

inline void flatten(const json& value, std::vector<double>& into) {
  if (value.is_array()) {
    for (const auto& one : value) flatten(one, into);
  } else if (value.is_string()) {
    into.push_back(std::stod(value.get<std::string>()));
  } else {
    into.push_back(value.is_boolean() ? static_cast<double>(value.get<bool>()) : value.get<double>());
  }
}

inline bool all_integers(const json& value) {
  if (!value.is_array()) return value.is_number_integer();
  return std::all_of(value.begin(), value.end(), [](const json& one) { return all_integers(one); });
}

/// Integers become int64, all else float32.
inline at::Tensor tensor_of(const json& value) {
  std::vector<int64_t> sizes;
  for (const json* at = &value; at->is_array(); at = &at->front()) {
    sizes.push_back(static_cast<int64_t>(at->size()));
    if (at->empty()) break;
  }
  std::vector<double> flat;
  flatten(value, flat);
  return at::tensor(flat, at::kDouble).reshape(sizes).to(all_integers(value) ? at::kLong : at::kFloat);
}

inline json number_of(double value) {
  if (std::isnan(value)) return "nan";
  if (std::isinf(value)) return value > 0 ? "inf" : "-inf";
  return value;
}

inline json json_of(const at::Tensor& tensor) {
  if (tensor.dim() == 0) {
    if (tensor.is_floating_point()) return number_of(tensor.item<double>());
    return tensor.item<int64_t>();
  }
  json list = json::array();
  for (int64_t i = 0; i < tensor.size(0); ++i) list.push_back(json_of(tensor[i]));
  return list;
}

inline json json_of(const std::vector<double>& values) {
  json list = json::array();
  for (const double value : values) list.push_back(number_of(value));
  return list;
}

/// `given` with every number that is within `tolerance` of the wanted one replaced by it.
inline json snapped(const json& given, const json& wanted, double tolerance) {
  if (given.is_number() && wanted.is_number()) {
    return std::abs(given.get<double>() - wanted.get<double>()) <= tolerance ? wanted : given;
  }
  if (given.is_array() && wanted.is_array()) {
    json result = given;
    for (size_t i = 0; i < std::min(given.size(), wanted.size()); ++i)
      result[i] = snapped(given[i], wanted[i], tolerance);
    return result;
  }
  if (given.is_object() && wanted.is_object()) {
    json result = given;
    for (const auto& [key, value] : wanted.items()) {
      if (given.contains(key)) result[key] = snapped(given[key], value, tolerance);
    }
    return result;
  }
  return given;
}

inline double largest(const json& value) {
  if (value.is_number()) return std::abs(value.get<double>());
  double most = 0;
  if (value.is_structured()) {
    for (const auto& one : value) most = std::max(most, largest(one));
  }
  return most;
}

inline torch::nn::Sequential model_of(const json& spec) {
  namespace nn = torch::nn;
  nn::Sequential model;
  for (const auto& layer : spec.at("layers")) {
    const auto type = layer.at("type").get<std::string>();
    if (type == "Linear")
      model->push_back(nn::Linear(layer.at("in").get<int64_t>(), layer.at("out").get<int64_t>()));
    else if (type == "Tanh")
      model->push_back(nn::Tanh());
    else if (type == "ReLU")
      model->push_back(nn::ReLU());
    else if (type == "BatchNorm1d")
      model->push_back(nn::BatchNorm1d(layer.at("features").get<int64_t>()));
    else if (type == "LayerNorm")
      model->push_back(nn::LayerNorm(nn::LayerNormOptions({layer.at("features").get<int64_t>()})));
    else
      throw std::runtime_error("unknown layer " + type);
  }
  const at::NoGradGuard no_grad;
  for (auto& parameter : model->named_parameters())
    parameter.value().copy_(tensor_of(spec.at("params").at(parameter.key())));
  return model;
}

inline learner::Loss loss_of(const std::string& name) {
  if (name == "mse") return learner::mse();
  if (name == "cross_entropy") return learner::cross_entropy();
  throw std::runtime_error("unknown loss " + name);
}

inline learner::Loaders loaders_of(const json& input) {
  const auto size = input.at("batch_size").get<int64_t>();
  return learner::tensor_loaders({tensor_of(input.at("x")), tensor_of(input.at("y"))},
                                 {tensor_of(input.at("valid_x")), tensor_of(input.at("valid_y"))},
                                 {.batch_size = size, .shuffle = false});
}

inline optim::fastai::Factory optimizer_of(const json& spec) {
  namespace f = optim::fastai;
  const auto number = [&](const char* key, double otherwise) { return spec.value(key, otherwise); };
  const bool decouple = spec.value("decouple_wd", true);
  const auto type = spec.at("type").get<std::string>();
  for (const auto& [key, value] : spec.items()) {
    static const std::set<std::string> kKnown{"type", "mom",         "sqr_mom", "eps",  "wd", "beta", "decouple_wd",
                                              "clip", "trust_coeff", "nu_1",    "nu_2", "k",  "alpha"};
    if (kKnown.count(key) == 0) throw std::runtime_error("unknown optimizer option " + key);
  }
  if (type == "SGD") return f::sgd({.mom = number("mom", 0), .wd = number("wd", 0), .decouple_wd = decouple});
  if (type == "RMSProp") {
    return f::rms_prop({.sqr_mom = number("sqr_mom", 0.99),
                        .mom = number("mom", 0),
                        .wd = number("wd", 0),
                        .eps = number("eps", 1e-8),
                        .decouple_wd = decouple});
  }
  if (type == "Adam") {
    return f::adam({.mom = number("mom", 0.9),
                    .sqr_mom = number("sqr_mom", 0.99),
                    .eps = number("eps", 1e-5),
                    .wd = number("wd", 0.01),
                    .decouple_wd = decouple});
  }
  if (type == "RAdam") {
    return f::radam({.mom = number("mom", 0.9),
                     .sqr_mom = number("sqr_mom", 0.99),
                     .eps = number("eps", 1e-5),
                     .wd = number("wd", 0),
                     .beta = number("beta", 0),
                     .decouple_wd = decouple});
  }
  if (type == "QHAdam") {
    return f::qhadam({.mom = number("mom", 0.999),
                      .sqr_mom = number("sqr_mom", 0.999),
                      .nu_1 = number("nu_1", 0.7),
                      .nu_2 = number("nu_2", 1),
                      .eps = number("eps", 1e-8),
                      .wd = number("wd", 0),
                      .decouple_wd = decouple});
  }
  if (type == "Larc") {
    return f::larc({.mom = number("mom", 0.9),
                    .clip = spec.value("clip", true),
                    .trust_coeff = number("trust_coeff", 0.02),
                    .eps = number("eps", 1e-8),
                    .wd = number("wd", 0),
                    .decouple_wd = decouple});
  }
  if (type == "Lamb") {
    return f::lamb({.mom = number("mom", 0.9),
                    .sqr_mom = number("sqr_mom", 0.99),
                    .eps = number("eps", 1e-5),
                    .wd = number("wd", 0),
                    .decouple_wd = decouple});
  }
  const f::LookaheadOptions look{.k = spec.value("k", 6), .alpha = number("alpha", 0.5)};
  if (type == "ranger") {
    return f::ranger({.mom = number("mom", 0.95),
                      .wd = number("wd", 0.01),
                      .eps = number("eps", 1e-6),
                      .sqr_mom = number("sqr_mom", 0.99),
                      .beta = number("beta", 0),
                      .lookahead = look,
                      .decouple_wd = decouple});
  }
  throw std::runtime_error("unknown optimizer " + type);
}

/// fastai's slice or number.
inline learner::HyperValue hyper_of(const json& value) {
  if (!value.is_array()) return value.get<double>();
  if (value.at(0).is_null()) return learner::slice(value.at(1).get<double>());
  return learner::slice(value.at(0).get<double>(), value.at(1).get<double>());
}

}  // namespace hasten::testing
