// Golden cases of mixed precision: Apex, masters, fp8. Part of precision_golden_test.cpp.
#pragma once

#include "accelerator/precision_golden_scales.h"

namespace hasten::testing {
namespace {

// ---- Apex

json apex_level_case(const json& input) {
  if (!input.value("enabled", true)) return {{"enabled", false}};
  try {
    precision::AmpOverrides overrides;
    const auto has = [&input](const char* key) { return input.contains(key) && !input.at(key).is_null(); };
    if (has("cast_model_type")) overrides.cast_model_type = dtype_of(input.at("cast_model_type"));
    if (has("patch_torch_functions")) overrides.patch_torch_functions = input.at("patch_torch_functions").get<bool>();
    if (has("keep_batchnorm_fp32")) {
      const auto& keep = input.at("keep_batchnorm_fp32");
      overrides.keep_batchnorm_fp32 = keep.is_boolean() ? precision::KeepBatchNorm(keep.get<bool>())
                                                        : precision::KeepBatchNorm(keep.get<std::string>());
    }
    if (has("master_weights")) overrides.master_weights = input.at("master_weights").get<bool>();
    if (has("loss_scale")) {
      const auto& scale = input.at("loss_scale");
      overrides.loss_scale = scale.is_string() ? precision::LossScale(scale.get<std::string>())
                                               : precision::LossScale(scale.get<double>());
    }
    const auto level = precision::parse_amp_level(input.at("opt_level"));
    const auto p = precision::resolve(level, overrides);
    const auto optional = [](const auto& value) { return value ? json(*value) : json(); };
    return {{"enabled", true},
            {"opt_level", precision::name_of(p.level)},
            {"cast_model_type", p.cast_model_type ? name_of(*p.cast_model_type) : json()},
            {"patch_torch_functions", p.patch_torch_functions},
            {"keep_batchnorm_fp32", optional(p.keep_batchnorm_fp32)},
            {"master_weights", optional(p.master_weights)},
            {"loss_scale", p.dynamic_loss_scale ? json("dynamic") : json(p.loss_scale)}};
  } catch (const UsageError&) {
    return {{"error", "refused"}};
  }
}

json apex_state_case(const json& input) {
  try {
    precision::Amp amp({.num_losses = input.at("num_losses").get<int64_t>(), .verbosity = 0});
    precision::AmpState state;
    for (const auto& [key, value] : input.at("state_dict").items()) {
      // A value that is no mapping cannot be expressed; its key can.
      state[key] = value.is_object() ? precision::AmpState::mapped_type{value.value("loss_scale", 0.0),
                                                                        value.value("unskipped", int64_t{0})}
                                     : precision::AmpState::mapped_type{};
    }
    amp.load_state(state);
    json scalers = json::array();
    for (const auto& [key, value] : amp.state()) {
      scalers.push_back({{"loss_scale", value.loss_scale}, {"unskipped", value.unskipped}});
    }
    return {{"scalers", scalers}};
  } catch (const UsageError&) {
    return {{"error", "refused"}};
  }
}

// ---- masters, fp8, delayed scaling

json listed(const at::Tensor& tensor) {
  json result = json::array();
  const auto values = tensor.detach().to(at::kFloat).contiguous().flatten();
  for (int64_t i = 0; i < values.numel(); ++i) result.push_back(shown(values.const_data_ptr<float>()[i]));
  return result;
}

at::Tensor tensor_of(const json& values, at::ScalarType dtype = at::kFloat) {
  std::vector<double> numbers;
  const std::function<void(const json&)> collect = [&](const json& each) {
    if (each.is_array()) {
      for (const auto& inner : each) collect(inner);
    } else {
      numbers.push_back(number(each));
    }
  };
  collect(values);
  return at::tensor(numbers, at::kDouble).to(dtype);
}

json master_case(const json& input) {
  const auto dtype = dtype_of(input.at("dtype"));
  auto weight = tensor_of(input.at("weights"), dtype).requires_grad_();
  const auto& spec = input.at("optimizer");
  torch::optim::SGD sgd({weight}, torch::optim::SGDOptions(spec.at("lr").get<double>())
                                      .momentum(spec.value("momentum", 0.0))
                                      .weight_decay(spec.value("weight_decay", 0.0)));
  const precision::MasterWeights masters(sgd);
  const double scale = input.at("loss_scale");
  json result = {{"model", json::array()}, {"master", json::array()}, {"skipped", json::array()}};
  for (const auto& gradient : input.at("grads")) {
    weight.mutable_grad() = tensor_of(gradient, dtype);
    masters.gradients_to_masters();
    const auto found = at::zeros({});
    precision::unscale_gradients_({masters.masters()[0].grad()}, at::full({}, 1 / scale), found, true);
    const bool skipped = found.item<float>() > 0;
    if (!skipped) {
      sgd.step();
      masters.to_model();
    }
    result["model"].push_back(listed(weight));
    result["master"].push_back(listed(masters.masters()[0]));
    result["skipped"].push_back(skipped);
  }
  return result;
}

at::Tensor pattern(int64_t number_of, std::vector<int64_t> sizes, double factor, at::ScalarType dtype) {
  int64_t count = 1;
  for (const int64_t size : sizes) count *= size;
  const auto i = at::arange(count, at::kLong);
  return ((((i * 7919 + 104729 * number_of).remainder(2003) - 1001).to(at::kDouble) / 1000) * factor)
      .to(at::kFloat)
      .to(dtype)
      .view(sizes);
}

json fp8_part(const at::Tensor& value, const json& wanted, double tolerance) {
  // Equal within the tolerance of the largest value: the expected numbers stand for ours then.
  const auto flat = value.to(at::kDouble).flatten();
  const double largest = std::max(flat.abs().max().item<double>(), 1e-6);
  bool good = name_of(value.scalar_type()) == wanted.at("dtype");
  for (size_t i = 0; i < wanted.at("first").size(); ++i) {
    good = good && std::abs(flat[static_cast<int64_t>(i)].item<double>() - number(wanted.at("first").at(i))) <=
                       tolerance * largest;
  }
  const double slack = tolerance * largest * static_cast<double>(flat.numel());
  good = good && std::abs(flat.sum().item<double>() - number(wanted.at("sum"))) <= slack &&
         std::abs(flat.abs().sum().item<double>() - number(wanted.at("abs_sum"))) <= slack;
  if (good) return wanted;
  return {{"dtype", name_of(value.scalar_type())},
          {"first", listed(flat.slice(0, 0, 12))},
          {"sum", flat.sum().item<double>()}};
}

json fp8_case(const json& input, const json& expected) {
  const auto dtype = dtype_of(input.at("dtype"));
  const int64_t m = input.at("m"), k = input.at("k"), n = input.at("n");
  const auto numbers = input.at("numbers").get<std::vector<int64_t>>();
  const auto factors = input.at("factors").get<std::vector<double>>();
  auto x = pattern(numbers.at(0), {m, k}, factors.at(0), dtype);
  if (input.value("zero_first_row_of_x", false)) x[0].zero_();
  auto w = pattern(numbers.at(1), {n, k}, factors.at(1), dtype);
  const auto g = pattern(numbers.at(2), {m, n}, factors.at(2), dtype);
  x.requires_grad_();
  w.requires_grad_();
  const auto recipe = input.at("recipe").get<std::string>();
  const precision::Fp8Options options{.recipe = recipe == "tensorwise" ? precision::Fp8Recipe::kTensorwise
                                                : recipe == "rowwise"  ? precision::Fp8Recipe::kRowwise
                                                                       : precision::Fp8Recipe::kRowwiseGradHp,
                                      .round_scales_to_power_of_2 = input.value("round_scales_to_power_of_2", false)};
  const auto y = precision::fp8_linear(x, w, options);
  y.backward(g);
  const double tolerance = input.at("tolerance");
  return {{"y", fp8_part(y, expected.at("y"), tolerance)},
          {"grad_x", fp8_part(x.grad(), expected.at("grad_x"), tolerance)},
          {"grad_w", fp8_part(w.grad(), expected.at("grad_w"), tolerance)}};
}

json delayed_case(const json& input, const json& expected) {
  const precision::DelayedScalingOptions options{
      .format = input.at("format") == "E4M3" ? precision::Fp8Format::kE4M3 : precision::Fp8Format::kE5M2,
      .margin = input.at("margin"),
      .amax_history_len = input.at("amax_history_len"),
      .amax_compute_algo = input.at("amax_compute_algo") == "max" ? precision::AmaxAlgorithm::kMax
                                                                  : precision::AmaxAlgorithm::kMostRecent};
  precision::DelayedScale state;
  const auto seen = [](float ours, const json& theirs) {
    return static_cast<float>(number(theirs)) == ours ? theirs : json(ours);
  };
  json scales = json::array();
  for (size_t i = 0; i < input.at("amax").size(); ++i) {
    scales.push_back(seen(state.scale, expected.at("scale").at(i)));
    state = precision::delayed_scale(std::move(state), static_cast<float>(number(input.at("amax").at(i))), options);
  }
  return {{"scale", scales}, {"last", seen(state.scale, expected.at("last"))}};
}

precision::GradScalerOptions scaler_options(const json& input) {
  precision::GradScalerOptions options;
  if (input.contains("init_scale")) options.init_scale = number(input.at("init_scale"));
  if (input.contains("growth_factor")) options.growth_factor = number(input.at("growth_factor"));
  if (input.contains("backoff_factor")) options.backoff_factor = number(input.at("backoff_factor"));
  if (input.contains("growth_interval")) options.growth_interval = input.at("growth_interval").get<double>();
  options.enabled = input.value("enabled", true);
  return options;
}

}  // namespace
}  // namespace hasten::testing
