// Golden cases of mixed precision: families that need an Accelerator. Part of precision_golden_test.cpp.
#pragma once

#include "accelerator/precision_golden_formula.h"

namespace hasten::testing {
namespace {

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
    // A compile error in C++: a member is initialised once.
    if (handlers.contains("twice")) return golden_error("ValueError");
    if (handlers.contains("autocast")) {
      options.autocast.enabled = handlers.at("autocast").value("enabled", true);
      if (handlers.at("autocast").contains("cache_enabled"))
        options.autocast.cache_enabled = handlers.at("autocast").at("cache_enabled").get<bool>();
    }
    if (handlers.contains("scaler") && handlers.at("scaler").contains("init_scale"))
      options.scaler.init_scale = handlers.at("scaler").at("init_scale");
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
      if (handlers.contains("inner"))
        inner = precision::AutocastOptions{.enabled = handlers.at("inner").value("enabled", true)};
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
  const auto asks = [&golden](const char* key) {
    return golden.input.at(key).is_string() && golden.input.at(key) == "fp8";
  };
  if (golden.family != "accelerator") return json::object();
  const auto& option = golden.input.at("mixed_precision");
  if (option == "BF16" || option == "FP16" || option == "FP8" || option == "NO") {
    // C++ has an enumerator; the text of a variable is taken in any case of letters.
    GoldenCase as_variable = golden;
    as_variable.input["env"] = option;
    as_variable.expected = {{"output", "float32"}, {"outside", "float32"}, {"unwrapped", "float32"},  {"scaler", false},
                            {"native_amp", false}, {"inside", "float32"},  {"in_autocast", "float32"}};
    return by_the_text(as_variable);
  }
  if (!asks("mixed_precision") && !(asks("env") && option.is_null())) return json::object();
  return {{"mixed_precision", "fp8"}, {"native_amp", true},        {"scaler", false},      {"inside", "bfloat16"},
          {"output", "float32"},      {"in_autocast", "bfloat16"}, {"outside", "float32"}, {"unwrapped", "float32"}};
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
  Scopes scopes;
  json log = json::array();
  for (const auto& event : input.at("events")) {
    const auto kind = event.at(0).get<std::string>();
    json entry;
    if (kind == "push") {
      json spec = event.at(1);
      spec["dtype"] = input.at("dtype");
      scopes.push_back(std::make_unique<precision::Autocast>(c10::DeviceType::CPU, scope_options(spec)));
    } else if (kind == "pop") {
      if (scopes.empty()) throw std::runtime_error("a pop without a push");
      scopes.pop_back();
    } else if (kind == "set") {
      const torch::NoGradGuard no_grad;
      net->weight.fill_(event.at(1).get<double>());
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
  AcceleratorOptions options{.mixed_precision = Precision::kFp16};
  options.scaler.init_scale = input.at("init_scale");
  options.scaler.growth_interval = input.at("growth_interval");
  options.optimizer.fused = input.at("fused").get<bool>();
  const Accelerator accelerator(alone(), options);
  const auto count = input.at("optimizers").get<size_t>();
  std::vector<torch::nn::Linear> nets;
  std::vector<std::shared_ptr<torch::optim::SGD>> made;
  for (size_t i = 0; i < count; ++i) {
    nets.emplace_back(torch::nn::LinearOptions(2, 1).bias(false));
    const torch::NoGradGuard no_grad;
    nets.back()->weight.zero_();
    made.push_back(std::make_shared<torch::optim::SGD>(nets.back()->parameters(),
                                                       torch::optim::SGDOptions(input.at("lr").get<double>())));
  }
  std::vector<decltype(accelerator.prepare(nets[0]))> models;
  std::vector<decltype(accelerator.prepare(*made[0]))> optimizers;
  for (size_t i = 0; i < count; ++i) {
    models.push_back(accelerator.prepare(nets[i]));
    optimizers.push_back(accelerator.prepare(*made[i]));
  }
  const auto x = at::full({1, 2}, input.at("gradient").get<double>());
  json result = {{"param", json::array()},
                 {"skipped", json::array()},
                 {"reported", json::array()},
                 {"scale", json::array()},
                 {"growth_tracker", json::array()}};
  for (const auto& step : input.at("found_inf")) {
    json parameters = json::array(), skipped = json::array(), reported = json::array();
    for (const auto& optimizer : optimizers) optimizer.zero_grad();
    at::Tensor loss = at::zeros({});
    for (const auto& model : models) loss = loss + model(x).sum();
    accelerator.backward(loss);
    for (size_t i = 0; i < count; ++i) {
      if (step.at(i).get<bool>()) nets[i]->weight.mutable_grad()[0][1] = INFINITY;
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
      precision::GradScalerOptions{.init_scale = input.at("init_scale"),
                                   .growth_factor = input.at("growth_factor"),
                                   .backoff_factor = input.at("backoff_factor"),
                                   .growth_interval = input.at("growth_interval")},
      precision::WindowScalerHooks{.ends_window = [&state] { return state->sync_gradients(); }});
  state->step_policies().add(training::StepOrder::kUnscale, scaler);
  auto parameter = at::zeros({1}).requires_grad_();
  auto sgd = std::make_shared<torch::optim::SGD>(std::vector<at::Tensor>{parameter},
                                                 torch::optim::SGDOptions(input.at("lr").get<double>()));
  scaler->add(sgd);
  const optim::PreparedOptimizer<torch::optim::SGD> optimizer(sgd, state);
  json result = {{"step_was_skipped", json::array()},
                 {"scale", json::array()},
                 {"param", json::array()},
                 {"grad_after_zero_grad", json::array()}};
  for (size_t i = 0; i < input.at("found_inf").size(); ++i) {
    state->set_sync_gradients(input.at("sync_gradients").at(i).get<bool>());
    state->optimizers().begin_batch();
    scaler->begin_backward((parameter * input.at("gradient").get<double>()).sum()).backward();
    state->optimizers().note_backward(/*held=*/!state->sync_gradients());
    if (input.at("found_inf").at(i).get<bool>()) parameter.mutable_grad().fill_(INFINITY);
    optimizer.step();
    optimizer.zero_grad();
    result["step_was_skipped"].push_back(optimizer.step_was_skipped());
    result["scale"].push_back(scaler->state().scale);
    result["param"].push_back(shown(parameter.item<float>()));
    result["grad_after_zero_grad"].push_back(parameter.grad().defined() ? shown(parameter.grad().item<float>())
                                                                        : json());
  }
  return result;
}

}  // namespace
}  // namespace hasten::testing
