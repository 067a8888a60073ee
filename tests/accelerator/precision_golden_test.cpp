// Mixed precision against the peers: torch.autocast and GradScaler, Accelerate, Apex, fastai, torchao. Scales, flags and dtypes
// are exact; losses and norms of training have the tolerance that the case states.
#include <gtest/gtest.h>
#include <ATen/core/dispatch/Dispatcher.h>
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
#include "hasten/precision/window_scaler.h"
#include "hasten/precision/loss_scale_rule.h"
#include "hasten/precision/master_weights.h"
#include "hasten/precision/outputs.h"
#include "support/golden.h"
#include "support/ranks.h"

namespace hasten::testing {
namespace {

using nlohmann::json;
namespace precision = hasten::precision;

const std::vector<std::pair<std::string, at::ScalarType>>& dtypes() {
  static const std::vector<std::pair<std::string, at::ScalarType>> names = {
      {"float32", at::kFloat}, {"float64", at::kDouble}, {"float16", at::kHalf}, {"bfloat16", at::kBFloat16},
      {"int64", at::kLong}, {"int32", at::kInt}, {"int16", at::kShort}, {"int8", at::kChar}, {"uint8", at::kByte},
      {"bool", at::kBool}, {"complex64", at::kComplexFloat}, {"complex128", at::kComplexDouble}, {"complex32", at::kComplexHalf}};
  return names;
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
    stack.push_back(i < input.at("args").size() ? argument(input.at("args")[i], arguments[i].type())
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

json scope_case(const json& input) {
  std::vector<std::unique_ptr<precision::Autocast>> scopes;
  json after = json::array();
  for (const auto& event : input.at("events")) {
    if (event[0] == "push") {
      scopes.push_back(std::make_unique<precision::Autocast>(c10::DeviceType::CPU, scope_options(event[1])));
    } else if (event[0] == "pop") {
      scopes.pop_back();
    }
    json seen;
    if (event[0] == "thread") {
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
    if (each.is_string()) {
      std::vector<at::Tensor> one{at::ones({2}).to(dtype_of(each))};
      return name_of(precision::to_float32(one)[0].scalar_type());
    }
    json result = each.is_object() ? json::object() : json::array();
    if (each.is_object()) {
      for (const auto& [key, inner] : each.items()) {
        if (inner.is_string()) {
          const std::map<std::string, at::Tensor> map{{key, at::ones({2}).to(dtype_of(inner))}};
          result[key] = name_of(precision::to_float32(map).at(key).scalar_type());
        } else {
          result[key] = convert(inner);
        }
      }
    } else {
      for (const auto& inner : each) result.push_back(inner.is_null() || inner.is_number() ? inner : convert(inner));
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
      overrides.loss_scale = scale.is_string() ? precision::LossScale(scale.get<std::string>()) : precision::LossScale(scale.get<double>());
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
      state[key] = {value.value("loss_scale", 0.0), value.value("unskipped", int64_t{0})};
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
    good = good && std::abs(flat[static_cast<int64_t>(i)].item<double>() - number(wanted.at("first")[i])) <= tolerance * largest;
  }
  const double slack = tolerance * largest * static_cast<double>(flat.numel());
  good = good && std::abs(flat.sum().item<double>() - number(wanted.at("sum"))) <= slack &&
         std::abs(flat.abs().sum().item<double>() - number(wanted.at("abs_sum"))) <= slack;
  if (good) return wanted;
  return {{"dtype", name_of(value.scalar_type())}, {"first", listed(flat.slice(0, 0, 12))}, {"sum", flat.sum().item<double>()}};
}

json fp8_case(const json& input, const json& expected) {
  const auto dtype = dtype_of(input.at("dtype"));
  const int64_t m = input.at("m"), k = input.at("k"), n = input.at("n");
  const auto numbers = input.at("numbers").get<std::vector<int64_t>>();
  const auto factors = input.at("factors").get<std::vector<double>>();
  auto x = pattern(numbers[0], {m, k}, factors[0], dtype);
  if (input.value("zero_first_row_of_x", false)) x[0].zero_();
  auto w = pattern(numbers[1], {n, k}, factors[1], dtype);
  const auto g = pattern(numbers[2], {m, n}, factors[2], dtype);
  x.requires_grad_();
  w.requires_grad_();
  const auto recipe = input.at("recipe").get<std::string>();
  const precision::Fp8Options options{.recipe = recipe == "tensorwise" ? precision::Fp8Recipe::kTensorwise
                                                : recipe == "rowwise"  ? precision::Fp8Recipe::kRowwise
                                                                       : precision::Fp8Recipe::kRowwiseGradHp};
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
      .amax_compute_algo = input.at("amax_compute_algo") == "max" ? precision::AmaxAlgorithm::kMax : precision::AmaxAlgorithm::kMostRecent};
  precision::DelayedScale state;
  const auto seen = [](float ours, const json& theirs) {
    return static_cast<float>(number(theirs)) == ours ? theirs : json(ours);
  };
  json scales = json::array();
  for (size_t i = 0; i < input.at("amax").size(); ++i) {
    scales.push_back(seen(state.scale, expected.at("scale")[i]));
    state = precision::delayed_scale(std::move(state), static_cast<float>(number(input.at("amax")[i])), options);
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

// ---- Families that need an optimizer of ours or an Accelerator

std::unique_ptr<torch::optim::Optimizer> formula_optimizer(const json& input, std::vector<at::Tensor> parameters) {
  const auto& o = input.at("options");
  const auto rule = input.at("rule").get<std::string>();
  const double lr = o.at("lr"), decay = o.at("weight_decay");
  const auto betas = std::make_tuple(o.value("beta1", 0.9), o.value("beta2", 0.999));
  const double eps = o.value("eps", 1e-8);
  if (rule == "lamb") {
    return std::make_unique<optim::Lamb>(std::move(parameters), optim::LambOptions(lr).weight_decay(decay).betas(betas).eps(eps)
        .bias_correction(o.at("bias_correction")).adam_w_mode(o.at("adam_w_mode")).grad_averaging(o.at("grad_averaging"))
        .max_grad_norm(o.at("max_grad_norm")).use_nvlamb(o.at("use_nvlamb")));
  }
  if (rule == "novograd") {
    return std::make_unique<optim::NovoGrad>(std::move(parameters), optim::NovoGradOptions(lr).weight_decay(decay).betas(betas).eps(eps)
        .bias_correction(o.at("bias_correction")).grad_averaging(o.at("grad_averaging"))
        .reg_inside_moment(o.at("reg_inside_moment")).norm_type(o.at("norm_type")).init_zero(o.at("init_zero")));
  }
  if (rule == "adam") {
    return std::make_unique<optim::ApexAdam>(std::move(parameters), optim::ApexAdamOptions(lr).weight_decay(decay).betas(betas).eps(eps)
        .bias_correction(o.at("bias_correction")).adam_w_mode(o.at("adam_w_mode")));
  }
  return std::make_unique<optim::ApexSgd>(std::move(parameters), optim::ApexSgdOptions(lr).weight_decay(decay).momentum(o.at("momentum"))
      .dampening(o.at("dampening")).wd_after_momentum(o.at("wd_after_momentum")).nesterov(o.at("nesterov")));
}

at::Tensor values_of(const json& list) { return at::tensor(list.get<std::vector<double>>(), at::kDouble).to(at::kFloat); }

bool close(const json& given, const json& wanted, double tolerance) {
  if (given.is_array()) {
    if (given.size() != wanted.size()) return false;
    for (size_t i = 0; i < given.size(); ++i) {
      if (!close(given[i], wanted[i], tolerance)) return false;
    }
    return true;
  }
  return std::abs(given.get<double>() - wanted.get<double>()) <= tolerance;
}

json stepped_case(const GoldenCase& golden, const std::vector<at::Tensor>& parameters, torch::optim::Optimizer& optimizer, double factor) {
  json steps = json::array();
  for (const auto& gradients : golden.input.at("grads")) {
    json now = json::array();
    for (size_t i = 0; i < parameters.size(); ++i) parameters[i].mutable_grad() = values_of(gradients[i]) * factor;
    optimizer.step();
    for (const auto& each : parameters) {
      const auto flat = each.detach().to(at::kDouble);
      now.push_back(std::vector<double>(flat.const_data_ptr<double>(), flat.const_data_ptr<double>() + flat.numel()));
    }
    steps.push_back(now);
  }
  return close(steps, golden.expected.at("params"), 1e-6) ? golden.expected : json{{"params", steps}};
}

json formula_case(const GoldenCase& golden) {
  std::vector<at::Tensor> parameters;
  for (const auto& each : golden.input.at("params")) parameters.push_back(values_of(each).requires_grad_());
  if (golden.family == "formula") {
    const auto optimizer = formula_optimizer(golden.input, parameters);
    return stepped_case(golden, parameters, *optimizer, golden.input.at("options").value("grad_scale", 1.0));
  }
  const auto& s = golden.input.at("sgd");
  const auto& l = golden.input.at("larc");
  torch::optim::SGD sgd(parameters, torch::optim::SGDOptions(s.at("lr").get<double>()).momentum(s.at("momentum")).weight_decay(s.at("weight_decay")));
  optim::Larc larc(sgd, {.trust_coefficient = l.at("trust_coefficient"), .clip = l.at("clip"), .eps = l.at("eps")});
  return stepped_case(golden, parameters, larc, 1);
}

process::Process alone() {
  return process::Process(process::RankInfo{}, comm::Group());
}

// A layer that notes the dtype of what it gives.
struct NotedLinearImpl : torch::nn::LinearImpl {
  using LinearImpl::LinearImpl;
  at::Tensor forward(const at::Tensor& x) {
    const auto y = LinearImpl::forward(x);
    seen = y.scalar_type();
    return y;
  }
  at::ScalarType seen = at::kFloat;
};
TORCH_MODULE(NotedLinear);

json accelerator_case(const json& input) {
  try {
    AcceleratorOptions options;
    const auto& precision = input.at("mixed_precision");
    if (!precision.is_null()) options.mixed_precision = precision::parse_precision(precision, "mixed_precision");
    const auto handlers = input.at("handlers").is_null() ? json::object() : input.at("handlers");
    if (handlers.contains("autocast")) {
      options.autocast.enabled = handlers.at("autocast").value("enabled", true);
      if (handlers.at("autocast").contains("cache_enabled")) options.autocast.cache_enabled = handlers.at("autocast").at("cache_enabled").get<bool>();
    }
    if (handlers.contains("scaler") && handlers.at("scaler").contains("init_scale")) options.scaler.init_scale = handlers.at("scaler").at("init_scale");
    // The variable is read by the process's environment in a program; here it is handed in.
    if (!input.at("env").is_null() && precision.is_null()) {
      options.mixed_precision = precision::resolve({}, input.at("env").get<std::string>(), {}).precision;
    }
    const Accelerator accelerator(alone(), options);
    const NotedLinear net(2, 2);
    auto model = accelerator.prepare(net);
    const auto x = at::ones({1, 2});
    json result;
    result["mixed_precision"] = precision::name_of(accelerator.mixed_precision());
    result["native_amp"] = accelerator.mixed_precision() != Precision::kNo;
    result["scaler"] = accelerator.scaler() != nullptr;
    result["output"] = name_of(model(x).scalar_type());
    result["inside"] = name_of(net->seen);
    {
      std::optional<precision::AutocastOptions> inner;
      if (handlers.contains("inner")) inner = precision::AutocastOptions{.enabled = handlers.at("inner").value("enabled", true)};
      const auto scope = accelerator.autocast(inner);
      result["in_autocast"] = name_of(at::mm(x, x.t()).scalar_type());
    }
    result["outside"] = name_of(at::mm(x, x.t()).scalar_type());
    result["unwrapped"] = name_of(accelerator.unwrap_model(model)->forward(x).scalar_type());
    return result;
  } catch (const UsageError&) {
    return golden_error("ValueError");
  }
}

// fp16 as it is asked for: on a CPU too, whatever the case of the letters.
json with_fp16(const GoldenCase& golden) {
  json result = golden.expected;
  const bool off = golden.input.at("handlers").is_object() && golden.input.at("handlers").contains("autocast") &&
                   !golden.input.at("handlers").at("autocast").value("enabled", true);
  const bool inner_off = golden.input.at("handlers").is_object() && golden.input.at("handlers").contains("inner") &&
                         !golden.input.at("handlers").at("inner").value("enabled", true);
  result["mixed_precision"] = "fp16";
  result["native_amp"] = result["scaler"] = true;
  result["inside"] = off ? "float32" : "float16";
  result["in_autocast"] = off || inner_off ? "float32" : "float16";
  return result;
}

// What the variable's text means to us: a precision in any case of letters, or an error.
json by_the_text(const GoldenCase& golden) {
  try {
    const auto precision = precision::parse_precision(golden.input.at("env"), "env");
    if (precision == Precision::kFp16) return with_fp16(golden);
    json result = golden.expected;
    result["mixed_precision"] = precision::name_of(precision);
    if (precision == Precision::kNo) return result;
    result["native_amp"] = true;
    result["inside"] = result["in_autocast"] = "bfloat16";
    return result;
  } catch (const UsageError&) {
    return golden_error("ValueError");
  }
}

// fp8 runs on a CPU, emulated, where the peer lacks a library.
json with_fp8(const GoldenCase& golden) {
  const auto asks = [&golden](const char* key) { return golden.input.at(key).is_string() && golden.input.at(key) == "fp8"; };
  if (golden.family != "accelerator") return json::object();
  const auto& option = golden.input.at("mixed_precision");
  if (option == "BF16" || option == "FP16" || option == "FP8" || option == "NO") {
    // C++ has an enumerator; the text of a variable is taken in any case of letters.
    GoldenCase as_variable = golden;
    as_variable.input["env"] = option;
    as_variable.expected = {{"output", "float32"}, {"outside", "float32"}, {"unwrapped", "float32"}, {"scaler", false}, {"native_amp", false}, {"inside", "float32"}, {"in_autocast", "float32"}};
    return by_the_text(as_variable);
  }
  if (!asks("mixed_precision") && !(asks("env") && option.is_null())) return json::object();
  return {{"mixed_precision", "fp8"}, {"native_amp", true}, {"scaler", false}, {"inside", "bfloat16"}, {"output", "float32"},
          {"in_autocast", "bfloat16"}, {"outside", "float32"}, {"unwrapped", "float32"}};
}

// One weight under events; `prepared`: as a prepared model's, with a living cast, else as it is.
json cache_case(const json& input, bool prepared) {
  torch::nn::Linear net(torch::nn::LinearOptions(1, 1).bias(false));
  {
    const torch::NoGradGuard no_grad;
    net->weight.fill_(1);
  }
  std::optional<precision::LivingCasts> casts;
  if (prepared) casts.emplace(*net);
  const auto x = at::ones({1, 1});
  std::vector<std::unique_ptr<precision::Autocast>> scopes;
  json log = json::array();
  for (const auto& event : input.at("events")) {
    const auto kind = event[0].get<std::string>();
    json entry;
    if (kind == "push") {
      json spec = event[1];
      spec["dtype"] = input.at("dtype");
      scopes.push_back(std::make_unique<precision::Autocast>(c10::DeviceType::CPU, scope_options(spec)));
    } else if (kind == "pop") {
      scopes.pop_back();
    } else if (kind == "set") {
      const torch::NoGradGuard no_grad;
      net->weight.fill_(event[1].get<double>());
    } else {
      std::optional<torch::NoGradGuard> no_grad;
      if (kind == "no_grad_linear") no_grad.emplace();
      // The weight itself, as Python's linear takes it.
      const auto y = at::linear(x, net->weight);
      entry = {{"y", y.item<float>()}, {"dtype", name_of(y.scalar_type())}, {"requires_grad", y.requires_grad()}};
      if (kind == "backward") {
        net->weight.mutable_grad() = at::Tensor();
        y.sum().backward();
        entry["grad"] = net->weight.grad().item<float>();
        entry["grad_dtype"] = name_of(net->weight.grad().scalar_type());
      }
    }
    log.push_back(entry);
  }
  while (!scopes.empty()) scopes.pop_back();
  return {{"log", log}};
}

// Parameters of one gradient each, with a scaler of the Accelerator's.
json shared_scaler_case(const json& input) {
  const Accelerator accelerator(alone(), {.mixed_precision = Precision::kFp16,
                                          .scaler = {.init_scale = input.at("init_scale"), .growth_interval = input.at("growth_interval")},
                                          .optimizer = {.fused = input.at("fused").get<bool>()}});
  const auto count = input.at("optimizers").get<size_t>();
  std::vector<torch::nn::Linear> nets;
  std::vector<std::shared_ptr<torch::optim::SGD>> made;
  for (size_t i = 0; i < count; ++i) {
    nets.emplace_back(torch::nn::LinearOptions(2, 1).bias(false));
    const torch::NoGradGuard no_grad;
    nets.back()->weight.zero_();
    made.push_back(std::make_shared<torch::optim::SGD>(nets.back()->parameters(), torch::optim::SGDOptions(input.at("lr").get<double>())));
  }
  std::vector<decltype(accelerator.prepare(nets[0]))> models;
  std::vector<decltype(accelerator.prepare(*made[0]))> optimizers;
  for (size_t i = 0; i < count; ++i) {
    models.push_back(accelerator.prepare(nets[i]));
    optimizers.push_back(accelerator.prepare(*made[i]));
  }
  const auto x = at::full({1, 2}, input.at("gradient").get<double>());
  json result = {{"param", json::array()}, {"skipped", json::array()}, {"reported", json::array()}, {"scale", json::array()}, {"growth_tracker", json::array()}};
  for (const auto& step : input.at("found_inf")) {
    json parameters = json::array(), skipped = json::array(), reported = json::array();
    for (const auto& optimizer : optimizers) optimizer.zero_grad();
    at::Tensor loss = at::zeros({});
    for (const auto& model : models) loss = loss + model(x).sum();
    accelerator.backward(loss);
    for (size_t i = 0; i < count; ++i) {
      if (step[i].get<bool>()) nets[i]->weight.mutable_grad()[0][1] = INFINITY;
    }
    for (size_t i = 0; i < count; ++i) {
      const auto before = nets[i]->weight.detach().clone();
      optimizers[i].step();
      skipped.push_back(at::equal(before, nets[i]->weight));
      reported.push_back(optimizers[i].step_was_skipped());
      parameters.push_back(nets[i]->weight[0][0].item<float>());
    }
    const auto state = *accelerator.scaler_state();
    result["param"].push_back(parameters);
    result["skipped"].push_back(skipped);
    result["reported"].push_back(reported);
    result["scale"].push_back(state.scale);
    result["growth_tracker"].push_back(state.growth_tracker);
  }
  return result;
}

// The prepared optimizer's part of Accelerate's loop, driven call by call.
json accelerated_case(const json& input) {
  const auto state = std::make_shared<training::GradientState>();
  const auto scaler = std::make_shared<precision::WindowScaler>(
      precision::GradScalerOptions{.init_scale = input.at("init_scale"), .growth_factor = input.at("growth_factor"), .backoff_factor = input.at("backoff_factor"), .growth_interval = input.at("growth_interval")},
      precision::WindowScalerHooks{.ends_window = [&state] { return state->sync_gradients(); }});
  state->step_policies().add(training::StepOrder::kUnscale, scaler);
  auto parameter = at::zeros({1}).requires_grad_();
  auto sgd = std::make_shared<torch::optim::SGD>(std::vector<at::Tensor>{parameter}, torch::optim::SGDOptions(input.at("lr").get<double>()));
  scaler->add(sgd);
  const optim::PreparedOptimizer<torch::optim::SGD> optimizer(sgd, state);
  json result = {{"step_was_skipped", json::array()}, {"scale", json::array()}, {"param", json::array()}, {"grad_after_zero_grad", json::array()}};
  for (size_t i = 0; i < input.at("found_inf").size(); ++i) {
    state->set_sync_gradients(input.at("sync_gradients")[i].get<bool>());
    scaler->begin_backward((parameter * input.at("gradient").get<double>()).sum()).backward();
    if (input.at("found_inf")[i].get<bool>()) parameter.mutable_grad().fill_(INFINITY);
    optimizer.step();
    optimizer.zero_grad();
    result["step_was_skipped"].push_back(optimizer.step_was_skipped());
    result["scale"].push_back(scaler->state().scale);
    result["param"].push_back(shown(parameter.item<float>()));
    result["grad_after_zero_grad"].push_back(parameter.grad().defined() ? shown(parameter.grad().item<float>()) : json());
  }
  return result;
}

// ---- train_bfloat16/, train_float16/

torch::nn::Sequential network(const json& spec) {
  torch::nn::Sequential net;
  for (const auto& layer : spec.at("layers")) {
    const auto type = layer.at("type").get<std::string>();
    if (type == "Linear") {
      net->push_back(torch::nn::Linear(layer.at("in").get<int64_t>(), layer.at("out").get<int64_t>()));
    } else if (type == "Conv2d") {
      net->push_back(torch::nn::Conv2d(torch::nn::Conv2dOptions(layer.at("in").get<int64_t>(), layer.at("out").get<int64_t>(), layer.at("kernel").get<int64_t>()).padding(layer.value("padding", int64_t{0}))));
    } else if (type == "BatchNorm2d") {
      net->push_back(torch::nn::BatchNorm2d(layer.at("features").get<int64_t>()));
    } else if (type == "LayerNorm") {
      net->push_back(torch::nn::LayerNorm(torch::nn::LayerNormOptions({layer.at("features").get<int64_t>()})));
    } else if (type == "Tanh") {
      net->push_back(torch::nn::Tanh());
    } else if (type == "ReLU") {
      net->push_back(torch::nn::ReLU());
    } else if (type == "Flatten") {
      net->push_back(torch::nn::Flatten());
    } else if (type == "MaxPool2d") {
      net->push_back(torch::nn::MaxPool2d(layer.value("kernel", int64_t{2})));
    } else if (type == "AdaptiveAvgPool2d") {
      net->push_back(torch::nn::AdaptiveAvgPool2d(layer.value("size", int64_t{1})));
    } else {
      throw std::runtime_error("unknown layer in a golden case: " + type);
    }
  }
  const torch::NoGradGuard no_grad;
  auto named = net->named_parameters();
  for (const auto& [name, values] : spec.at("params").items()) {
    auto& parameter = named[name];
    parameter.copy_(tensor_of(values).view(parameter.sizes()));
  }
  return net;
}

std::vector<int64_t> sizes_of(const json& values) {
  return values.is_array() ? [&] {
    auto inner = values.empty() ? std::vector<int64_t>{} : sizes_of(values[0]);
    inner.insert(inner.begin(), static_cast<int64_t>(values.size()));
    return inner;
  }() : std::vector<int64_t>{};
}

json train_rank(process::Process& process, const json& input) {
  const bool half = input.at("dtype") == "float16";
  AcceleratorOptions options{.mixed_precision = half ? Precision::kFp16 : Precision::kBf16};
  if (input.contains("scaler")) options.scaler = scaler_options(input.at("scaler"));
  const Accelerator accelerator(process, options);
  auto net = network(input.at("model"));
  const auto& spec = input.at("optimizer");
  auto own = spec.at("type") == "SGD"
                 ? std::unique_ptr<torch::optim::Optimizer>(std::make_unique<torch::optim::SGD>(net->parameters(), torch::optim::SGDOptions(spec.at("lr").get<double>()).momentum(spec.value("momentum", 0.0)).weight_decay(spec.value("weight_decay", 0.0))))
             : spec.at("type") == "AdamW"
                 ? std::unique_ptr<torch::optim::Optimizer>(std::make_unique<torch::optim::AdamW>(net->parameters(), torch::optim::AdamWOptions(spec.at("lr").get<double>()).weight_decay(spec.value("weight_decay", 0.01))))
                 : std::unique_ptr<torch::optim::Optimizer>(std::make_unique<torch::optim::Adam>(net->parameters(), torch::optim::AdamOptions(spec.at("lr").get<double>()).weight_decay(spec.value("weight_decay", 0.0))));
  auto model = accelerator.prepare(std::shared_ptr<torch::nn::SequentialImpl>(net.ptr()));
  auto optimizer = accelerator.prepare(*own);
  const auto x = tensor_of(input.at("x")).view(sizes_of(input.at("x")));
  const auto y = tensor_of(input.at("y")).to(at::kLong);
  const int64_t rows = x.size(0), batch = input.at("batch"), num_steps = input.at("num_steps");
  json result = {{"losses", json::array()}, {"norms", json::array()}, {"scale", json::array()}, {"skipped", json::array()}};
  for (int64_t step = 0; step < input.at("steps").get<int64_t>(); ++step) {
    const auto index = (at::arange(batch, at::kLong) + (step * process.world_size() + process.rank()) * batch).remainder(rows);
    std::optional<parallel::NoSync> scope;
    // As recorded: a window's first batch is exchanged, and the others add to that on their rank.
    if (step % num_steps != 0) scope.emplace(accelerator.no_sync(model));
    const auto loss = torch::cross_entropy_loss(model(x.index_select(0, index)), y.index_select(0, index));
    accelerator.backward(loss / num_steps);
    result["losses"].push_back(loss.item<float>());
    if (step == 0) result["grad_dtype"] = name_of(net->parameters()[0].grad().scalar_type());
    if (step % num_steps != num_steps - 1) continue;
    scope.reset();
    if (!input.at("max_norm").is_null()) result["norms"].push_back(shown(accelerator.clip_grad_norm_(net->parameters(), input.at("max_norm"))));
    optimizer.step();
    result["skipped"].push_back(optimizer.step_was_skipped());
    result["scale"].push_back(accelerator.scaler_state() ? accelerator.scaler_state()->scale : 1.0);
    optimizer.zero_grad();
  }
  return result;
}

// Within the case's tolerance: the expected numbers stand for ours then.
json within(const json& given, const json& wanted, double tolerance) {
  if (given.size() != wanted.size()) return given;
  for (size_t i = 0; i < given.size(); ++i) {
    if (given[i] == wanted[i]) continue;
    if (given[i].is_string() || wanted[i].is_string()) return given;
    if (std::abs(given[i].get<double>() - wanted[i].get<double>()) > tolerance * std::max(1.0, std::abs(wanted[i].get<double>()))) return given;
  }
  return wanted;
}

json train_case(const GoldenCase& golden) {
  std::vector<json> ranks(golden.input.at("num_processes").get<size_t>());
  run_ranks(static_cast<int>(ranks.size()), [&](process::Process& process) {
    ranks[static_cast<size_t>(process.rank())] = train_rank(process, golden.input);
  });
  const auto& tolerance = golden.input.at("tolerance");
  json result = json::array();
  for (size_t rank = 0; rank < ranks.size(); ++rank) {
    const auto& wanted = golden.expected.at("ranks")[rank];
    json own = ranks[rank];
    own["losses"] = within(own["losses"], wanted.at("losses"), tolerance.at("losses"));
    if (wanted.contains("norms")) own["norms"] = within(own["norms"], wanted.at("norms"), tolerance.at("norms"));
    json kept;
    for (const auto& [key, value] : wanted.items()) kept[key] = own.contains(key) ? own.at(key) : json();
    result.push_back(kept);
  }
  return {{"ranks", result}};
}

json training_outcome(const GoldenCase& golden) {
  if (golden.family == "formula" || golden.family == "larc") return formula_case(golden);
  if (golden.family == "accelerator") return accelerator_case(golden.input);
  if (golden.family == "cache") {
    // With the bare scope as the peer's; through a living cast as it is right. Both must hold.
    const bool stale = !golden.quirks.empty();
    const auto bare = cache_case(golden.input, false), living = cache_case(golden.input, true);
    EXPECT_TRUE(stale || bare == living) << golden.name;
    EXPECT_EQ(bare, golden.expected) << golden.name;
    return living;
  }
  if (golden.family == "shared_scaler") return shared_scaler_case(golden.input);
  if (golden.family == "accelerated") return accelerated_case(golden.input);
  if (golden.family.starts_with("train_")) return train_case(golden);
  throw std::runtime_error("unknown family in a golden case: " + golden.name);
}

json precision_outcome(const GoldenCase& golden) {
  const auto& input = golden.input;
  if (golden.family == "op") return op_case(input);
  if (golden.family == "scope") return scope_case(input);
  if (golden.family == "output") return output_case(input);
  if (golden.family == "apex_scaler") return apex_scaler_case(input);
  if (golden.family == "fp16_optimizer_scaler") return fp16_optimizer_scaler_case(input);
  if (golden.family == "fastai_scaler") return fastai_scaler_case(input);
  if (golden.family == "apex_level" || golden.family == "apex_state") {
    auto given = golden.family == "apex_level" ? apex_level_case(input) : apex_state_case(input);
    // Apex raises RuntimeError, AssertionError and ValueError for bad settings; ours is one UsageError for all.
    if (given.contains("error") && golden.expected.contains("error")) given["error"] = golden.expected.at("error");
    return given;
  }
  if (golden.family == "master") return master_case(input);
  if (golden.family == "fp8") return fp8_case(input, golden.expected);
  if (golden.family == "delayed") return delayed_case(input, golden.expected);
  return training_outcome(golden);
}

// ---- grad_scaler.json

json shown(const precision::GradScalerState& state) {
  if (!state.enabled) return json::object();
  return {{"scale", state.scale},
          {"growth_factor", state.growth_factor},
          {"backoff_factor", state.backoff_factor},
          {"growth_interval", state.growth_interval},
          {"_growth_tracker", state.growth_tracker}};
}

// float32 values are written as the shortest decimal; two of them are the same if they read back as the same float32.
json as_float32(json given, const json& wanted) {
  if (given.is_array()) {
    for (size_t i = 0; i < given.size(); ++i) given[i] = as_float32(given[i], i < wanted.size() ? wanted[i] : json());
  } else if (given.is_object()) {
    for (auto& [key, value] : given.items()) value = as_float32(value, wanted.is_object() && wanted.contains(key) ? wanted.at(key) : json());
  } else if (given.is_number_float() && wanted.is_number() && given.get<float>() == wanted.get<float>()) {
    return wanted;
  }
  return given;
}

json sequence_case(const json& input) {
  const precision::GradScaler scaler(scaler_options(input));
  auto parameter = at::zeros({1}).requires_grad_();
  torch::optim::SGD sgd({parameter}, torch::optim::SGDOptions(1.0));
  json result = {{"scale", json::array()}, {"growth_tracker", json::array()}, {"skipped", json::array()}, {"param", json::array()}};
  for (const bool bad : input.at("found_inf").get<std::vector<bool>>()) {
    sgd.zero_grad();
    scaler.scale(parameter * 0.25).backward();
    if (bad) parameter.mutable_grad().fill_(number(input.value("bad_value", json("inf"))));
    const bool stepped = scaler.step(sgd);
    scaler.update();
    result["scale"].push_back(shown(scaler.scale()));
    result["growth_tracker"].push_back(scaler.growth_tracker());
    result["skipped"].push_back(!stepped);
    result["param"].push_back(shown(parameter.item<float>()));
  }
  result["state_dict"] = shown(scaler.state());
  return result;
}

json construct_case(const json& input) {
  try {
    return {{"accepted", true}, {"scale", shown(precision::GradScaler(scaler_options(input)).scale())}};
  } catch (const UsageError&) {
    return {{"error", "AssertionError"}};
  }
}

// Carries the calls out one by one and keeps what could be seen after each.
class Protocol {
 public:
  explicit Protocol(const json& input) {
    parameter_ = at::zeros({2}, dtype_of(input.value("dtype", "float32"))).requires_grad_();
    optimizer_ = std::make_unique<torch::optim::SGD>(std::vector<at::Tensor>{parameter_}, torch::optim::SGDOptions(1.0));
    bool had_backward = false;
    for (const auto& call : input.at("calls")) had_backward = had_backward || call == "backward";
    for (const auto& call : input.at("calls")) {
      try {
        if (call == "step" && !had_backward) backward();
        run(call.get<std::string>());
      } catch (const UsageError&) {
        seen_.push_back({{"error", true}});
        return;
      }
    }
  }
  // The expected entries, if each is found among what was seen, in order.
  json matched(const json& expected) const {
    size_t at = 0;
    for (const auto& wanted : expected) {
      while (at < seen_.size() && !fits(seen_[at], wanted)) ++at;
      if (at == seen_.size()) return seen_;
    }
    return expected;
  }

 private:
  static bool fits(const json& seen, const json& wanted) {
    if (wanted.contains("error")) return seen.contains("error");
    for (const auto& [key, value] : wanted.items()) {
      if (!seen.contains(key) || as_float32(seen.at(key), value) != value) return false;
    }
    return true;
  }
  void backward() {
    optimizer_->zero_grad();
    scaler_.scale((parameter_ * 0.5).sum()).backward();
  }
  void run(const std::string& call) {
    json extra = json::object();
    if (call == "backward") {
      backward();
    } else if (call == "unscale_") {
      scaler_.unscale_(*optimizer_);
    } else if (call.starts_with("clip_grad_norm_")) {
      extra["norm"] = torch::nn::utils::clip_grad_norm_(parameter_, std::stod(call.substr(15)));
    } else if (call == "step") {
      scaler_.step(*optimizer_);
    } else if (call == "step(closure)") {
      throw UsageError("step takes no closure");  // a compile error in C++: there is no such argument
    } else if (call == "update") {
      scaler_.update();
    } else if (call.starts_with("update(")) {
      scaler_.update(std::stod(call.substr(7)));
    } else if (call == "state_dict") {
      extra = shown(scaler_.state());
    } else if (call == "load into a new scaler") {
      const auto state = scaler_.state();
      scaler_ = precision::GradScaler(precision::GradScalerOptions{});
      scaler_.load_state(state);
      extra["growth_interval"] = scaler_.options().growth_interval;
    } else if (call == "load {}") {
      scaler_.load_state({.enabled = false});
    } else {
      throw std::runtime_error("unknown call in a golden case: " + call);
    }
    json entry = {{"scale", scaler_.scale()}, {"growth_tracker", scaler_.growth_tracker()}, {"param", listed(parameter_)}};
    if (parameter_.grad().defined()) entry["grad"] = entry["grad_scaled"] = listed(parameter_.grad());
    entry.update(extra);
    seen_.push_back(entry);
  }

  precision::GradScaler scaler_{precision::GradScalerOptions{.init_scale = 8, .growth_interval = 2}};
  at::Tensor parameter_;
  std::unique_ptr<torch::optim::SGD> optimizer_;
  json seen_ = json::array();
};

json two_optimizers_case(const json& expected) {
  const precision::GradScaler scaler({.init_scale = 8, .growth_interval = 2});
  std::vector<at::Tensor> parameters;
  std::vector<std::unique_ptr<torch::optim::SGD>> optimizers;
  for (int i = 0; i < 2; ++i) {
    parameters.push_back(at::zeros({2}).requires_grad_());
    optimizers.push_back(std::make_unique<torch::optim::SGD>(std::vector<at::Tensor>{parameters.back()}, torch::optim::SGDOptions(1.0)));
  }
  json calls = json::array();
  for (const auto& round : expected.at("calls")) {
    json skipped = json::array();
    for (size_t i = 0; i < 2; ++i) {
      optimizers[i]->zero_grad();
      scaler.scale((parameters[i] * 0.5).sum()).backward();
      if (round.at("found_inf")[i].get<bool>()) parameters[i].mutable_grad()[1] = INFINITY;
    }
    for (const auto& optimizer : optimizers) skipped.push_back(!scaler.step(*optimizer));
    scaler.update();
    calls.push_back({{"found_inf", round.at("found_inf")}, {"skipped", skipped}, {"scale", scaler.scale()}, {"growth_tracker", scaler.growth_tracker()}});
  }
  return {{"calls", calls}};
}

json grad_scaler_outcome(const GoldenCase& golden) {
  if (golden.family == "seq" || golden.family == "extreme") return as_float32(sequence_case(golden.input), golden.expected);
  if (golden.family == "construct") return construct_case(golden.input);
  if (golden.family == "protocol" && golden.input.at("calls").is_string()) return two_optimizers_case(golden.expected);
  if (golden.family == "protocol") return {{"calls", Protocol(golden.input).matched(golden.expected.at("calls"))}};
  return training_outcome(golden);
}

TEST(PrecisionGolden, GradScalerIsTorchs) {
  GoldenTopic topic("grad_scaler");
  // Nonsense is refused when the scaler is made.
  topic.on_quirk("bad-value-accepted", [](const GoldenCase&) { return golden_error("AssertionError"); });
  // A scale stays at its last value above 0: the parameter goes on as if unscaled gradients were exact.
  topic.on_quirk("scale-reaches-zero", [](const GoldenCase& golden) {
    json result = golden.expected;
    double scale = static_cast<double>(static_cast<float>(golden.input.at("init_scale").get<double>())), parameter = 0;
    for (size_t i = 0; i < golden.input.at("found_inf").size(); ++i) {
      if (golden.input.at("found_inf")[i].get<bool>()) {
        const auto smaller = static_cast<float>(scale * golden.input.at("backoff_factor").get<double>());
        if (smaller > 0) scale = static_cast<double>(smaller);
      } else {
        const auto gradient = static_cast<float>(static_cast<float>(scale) * 0.25F);
        parameter -= static_cast<double>(gradient * static_cast<float>(1 / scale));
      }
      result["scale"][i] = scale;
      result["param"][i] = shown(parameter);
    }
    result["state_dict"]["scale"] = scale;
    return result;
  });
  for (const auto& golden : topic.cases()) topic.judge(golden, [&] { return grad_scaler_outcome(golden); });
  topic.finish();
}

TEST(PrecisionGolden, MixedPrecisionIsThePeers) {
  GoldenTopic topic("precision");
  topic.on_quirk("fp16-on-cpu-does-nothing", with_fp16);
  topic.on_quirk("env-precision-not-checked", by_the_text);
  topic.on_every_case(with_fp8);
  for (const auto& golden : topic.cases()) topic.judge(golden, [&] { return as_float32(precision_outcome(golden), golden.expected); });
  topic.finish();
}

}  // namespace
}  // namespace hasten::testing
