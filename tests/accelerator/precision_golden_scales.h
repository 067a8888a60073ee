// Golden cases of mixed precision: values in JSON, operators, scopes, loss scales. Part of precision_golden_test.cpp.
#pragma once

#include <ATen/core/dispatch/Dispatcher.h>
#include <gtest/gtest.h>
#include <torch/torch.h>
#include <thread>
#include "hasten/accelerator.h"
#include "hasten/core/error.h"
#include "hasten/optim/apex_adam.h"
#include "hasten/optim/apex_sgd.h"
#include "hasten/optim/lamb.h"
#include "hasten/optim/larc.h"
#include "hasten/optim/novograd.h"
#include "hasten/precision/amp.h"
#include "hasten/precision/autocast.h"
#include "hasten/precision/fp16_optimizer.h"
#include "hasten/precision/fp8.h"
#include "hasten/precision/grad_scaler.h"
#include "hasten/precision/living_casts.h"
#include "hasten/precision/loss_scale_rule.h"
#include "hasten/precision/master_weights.h"
#include "hasten/precision/outputs.h"
#include "hasten/precision/window_scaler.h"
#include "support/golden.h"
#include "support/ranks.h"

namespace hasten::testing {
namespace {

using nlohmann::json;
namespace precision = hasten::precision;

const std::vector<std::pair<std::string, at::ScalarType>>& dtypes() {
  static const std::vector<std::pair<std::string, at::ScalarType>> names = {{"float32", at::kFloat},
                                                                            {"float64", at::kDouble},
                                                                            {"float16", at::kHalf},
                                                                            {"bfloat16", at::kBFloat16},
                                                                            {"int64", at::kLong},
                                                                            {"int32", at::kInt},
                                                                            {"int16", at::kShort},
                                                                            {"int8", at::kChar},
                                                                            {"uint8", at::kByte},
                                                                            {"bool", at::kBool},
                                                                            {"complex64", at::kComplexFloat},
                                                                            {"complex128", at::kComplexDouble},
                                                                            {"complex32", at::kComplexHalf}};
  return names;
}

bool is_dtype(const std::string& name) {
  const auto& known = dtypes();
  return std::any_of(known.begin(), known.end(), [&](const auto& each) { return each.first == name; });
}

at::ScalarType dtype_of(const std::string& name) {
  for (const auto& [text, dtype] : dtypes()) {
    if (text == name) return dtype;
  }
  throw std::runtime_error("unknown dtype in a golden case: " + name);
}

json name_of(at::ScalarType dtype) {
  for (const auto& [text, each] : dtypes()) {
    if (each == dtype) return text;
  }
  return c10::toString(dtype);
}

double number(const json& value) {
  if (!value.is_string()) return value.get<double>();
  const auto text = value.get<std::string>();
  return text == "nan" ? std::nan("") : text == "-inf" ? -INFINITY : INFINITY;
}

json shown(double value) {
  if (std::isnan(value)) return "nan";
  if (std::isinf(value)) return value > 0 ? "inf" : "-inf";
  return value;
}

// ---- op/

at::Tensor filled(const json& spec) {
  const auto dtype = dtype_of(spec.at("dtype"));
  const auto sizes = spec.at("t").get<std::vector<int64_t>>();
  return c10::isFloatingType(dtype) ? at::full(sizes, 0.5, dtype) : at::zeros(sizes, dtype);
}

c10::IValue argument(const json& value, const c10::TypePtr& type) {
  if (value.is_null()) return {};
  if (value.is_object() && value.contains("t")) return filled(value);
  if (value.is_object()) {
    c10::List<at::Tensor> list;
    for (const auto& each : value.at("list")) list.push_back(filled(each));
    return list;
  }
  if (const auto optional = type->cast<c10::OptionalType>()) return argument(value, optional->getElementType());
  if (value.is_string()) {
    if (type->kind() != c10::TypeKind::StringType) return static_cast<int64_t>(dtype_of(value));
    return value.get<std::string>();
  }
  if (value.is_boolean()) return value.get<bool>();
  if (value.is_array()) {
    const auto list = type->cast<c10::ListType>();
    if (list && list->getElementType()->kind() == c10::TypeKind::FloatType) return value.get<std::vector<double>>();
    if (list && list->getElementType()->kind() == c10::TypeKind::BoolType) {
      c10::List<bool> flags;
      for (const auto& each : value) flags.push_back(each.get<bool>());
      return flags;
    }
    return value.get<std::vector<int64_t>>();
  }
  if (type->kind() == c10::TypeKind::FloatType) return value.get<double>();
  if (value.is_number_float()) return value.get<double>();
  return value.get<int64_t>();
}

json op_case(const json& input) {
  const auto op = c10::Dispatcher::singleton().findSchemaOrThrow(("aten::" + input.at("op").get<std::string>()).c_str(),
                                                                 input.at("overload").get<std::string>().c_str());
  torch::jit::Stack stack;
  const auto& arguments = op.schema().arguments();
  for (size_t i = 0; i < arguments.size(); ++i) {
    stack.push_back(i < input.at("args").size() ? argument(input.at("args").at(i), arguments[i].type())
                                                : arguments[i].default_value().value_or(c10::IValue()));
  }
  try {
    const precision::Autocast scope(c10::DeviceType::CPU, {.dtype = dtype_of(input.at("autocast"))});
    op.callBoxed(stack);
  } catch (const c10::Error&) {
    return golden_error("RuntimeError");
  }
  json result = json::array();
  for (const auto& value : stack) {
    if (value.isTensor()) result.push_back(name_of(value.toTensor().scalar_type()));
  }
  return {{"dtypes", result}};
}

// ---- scope/, cache/, output/

json look() {
  const auto state = precision::Autocast::captured();
  return {{"enabled", state.devices[0].enabled},
          {"dtype", name_of(state.devices[0].dtype)},
          {"cache", state.cache_enabled},
          {"mm", name_of(at::mm(at::ones({1, 1}), at::ones({1, 1})).scalar_type())}};
}

precision::AutocastOptions scope_options(const json& spec) {
  precision::AutocastOptions options;
  options.enabled = spec.at("enabled");
  if (spec.contains("dtype") && !spec.at("dtype").is_null()) options.dtype = dtype_of(spec.at("dtype"));
  if (!spec.at("cache_enabled").is_null()) options.cache_enabled = spec.at("cache_enabled").get<bool>();
  return options;
}

/// Scopes that end in their order, also where a case ends with an exception.
struct Scopes : std::vector<std::unique_ptr<precision::Autocast>> {
  ~Scopes() {
    while (!empty()) pop_back();
  }
};

json scope_case(const json& input) {
  Scopes scopes;
  json after = json::array();
  for (const auto& event : input.at("events")) {
    if (event.at(0) == "push") {
      scopes.push_back(std::make_unique<precision::Autocast>(c10::DeviceType::CPU, scope_options(event.at(1))));
    } else if (event.at(0) == "pop") {
      if (scopes.empty()) throw std::runtime_error("a pop without a push");
      scopes.pop_back();
    }
    json seen;
    if (event.at(0) == "thread") {
      std::thread([&seen] { seen = look(); }).join();
    } else {
      seen = look();
    }
    after.push_back(seen);
  }
  while (!scopes.empty()) scopes.pop_back();
  return {{"after", after}, {"end", look()}};
}

json output_case(const json& input) {
  const auto& value = input.at("value");
  if (value.is_string()) {
    return {{"dtypes", name_of(precision::to_float32(at::ones({2}).to(dtype_of(value))).scalar_type())}};
  }
  // As the structures of C++ have it: a map of tensors, a vector of tensors, or either inside the other.
  const std::function<json(const json&)> convert = [&](const json& each) -> json {
    if (each.is_string() && !is_dtype(each)) {
      const std::pair<at::Tensor, std::string> beside{at::ones({2}), each.get<std::string>()};
      return precision::to_float32(beside).second;
    }
    if (each.is_string()) {
      std::vector<at::Tensor> one{at::ones({2}).to(dtype_of(each))};
      return name_of(precision::to_float32(one)[0].scalar_type());
    }
    json result = each.is_object() ? json::object() : json::array();
    if (each.is_object()) {
      for (const auto& [key, inner] : each.items()) {
        if (inner.is_null() || inner.is_number() || inner.is_boolean()) {
          result[key] = inner;
        } else if (inner.is_string() && is_dtype(inner)) {
          const std::map<std::string, at::Tensor> map{{key, at::ones({2}).to(dtype_of(inner))}};
          result[key] = name_of(precision::to_float32(map).at(key).scalar_type());
        } else {
          result[key] = convert(inner);
        }
      }
    } else {
      for (const auto& inner : each)
        result.push_back(inner.is_null() || inner.is_number() || inner.is_boolean() ? inner : convert(inner));
    }
    return result;
  };
  return {{"dtypes", convert(value)}};
}

// ---- loss scales

json apex_scaler_case(const json& input) {
  auto rule = precision::LossScaleRule::of(precision::LossScaleKind::kApex);
  rule.dynamic = input.at("loss_scale").is_string();
  if (!rule.dynamic) rule.init_scale = input.at("loss_scale");
  if (input.contains("init_scale")) rule.init_scale = input.at("init_scale");
  // Apex's scale_factor is taken and has no effect: scales are doubled and halved.
  if (input.contains("scale_window")) rule.growth_interval = input.at("scale_window");
  if (input.contains("min_loss_scale")) rule.min_scale = input.at("min_loss_scale").get<double>();
  if (input.contains("max_loss_scale")) rule.max_scale = input.at("max_loss_scale").get<double>();
  auto state = precision::initial_state(rule);
  json result = {{"loss_scale", json::array()}, {"unskipped", json::array()}, {"should_skip", json::array()}};
  for (const bool overflow : input.at("overflow").get<std::vector<bool>>()) {
    state = precision::next(state, overflow, rule);
    result["loss_scale"].push_back(state.scale);
    result["unskipped"].push_back(state.tracker);
    result["should_skip"].push_back(rule.dynamic && overflow);
  }
  return result;
}

json fp16_optimizer_scaler_case(const json& input) {
  auto rule = precision::LossScaleRule::of(precision::LossScaleKind::kFp16Optimizer);
  if (input.contains("init_scale")) rule.init_scale = input.at("init_scale");
  if (input.contains("scale_factor")) {
    rule.growth_factor = input.at("scale_factor");
    rule.backoff_factor = 1 / rule.growth_factor;
  }
  if (input.contains("scale_window")) rule.growth_interval = input.at("scale_window");
  auto state = precision::initial_state(rule);
  json scales = json::array();
  for (const bool overflow : input.at("overflow").get<std::vector<bool>>()) {
    state = precision::next(state, overflow, rule);
    scales.push_back(state.scale);
  }
  return {{"loss_scale", scales}, {"cur_iter", state.iteration}, {"last_overflow_iter", state.last_overflow}};
}

json fastai_scaler_case(const json& input) {
  auto rule = precision::LossScaleRule::of(precision::LossScaleKind::kFastai);
  rule.dynamic = input.value("dynamic", true);
  rule.init_scale = rule.dynamic ? input.value("max_loss_scale", rule.init_scale) : input.value("loss_scale", 512.0);
  if (input.contains("div_factor")) {
    rule.growth_factor = input.at("div_factor");
    rule.backoff_factor = 1 / rule.growth_factor;
  }
  if (input.contains("scale_wait")) rule.growth_interval = input.at("scale_wait");
  auto state = precision::initial_state(rule);
  json result = {{"loss_scale", json::array()}, {"skipped", json::array()}};
  for (const bool overflow : input.at("overflow").get<std::vector<bool>>()) {
    state = precision::next(state, overflow, rule);
    result["loss_scale"].push_back(state.scale);
    result["skipped"].push_back(rule.dynamic && overflow);
  }
  return result;
}

}  // namespace
}  // namespace hasten::testing
