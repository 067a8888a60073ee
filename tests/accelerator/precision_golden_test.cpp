// Mixed precision against the peers: torch.autocast and GradScaler, Accelerate, Apex, fastai, torchao. Scales, flags
// and dtypes are exact; losses and norms of training have the tolerance that the case states.
#include <ATen/core/dispatch/Dispatcher.h>
#include <gtest/gtest.h>
#include <torch/torch.h>

#include <thread>

#include "accelerator/precision_golden_accelerator.h"
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

// ---- train_bfloat16/, train_float16/

torch::nn::Sequential network(const json& spec) {
  torch::nn::Sequential net;
  for (const auto& layer : spec.at("layers")) {
    const auto type = layer.at("type").get<std::string>();
    if (type == "Linear") {
      net->push_back(torch::nn::Linear(layer.at("in").get<int64_t>(), layer.at("out").get<int64_t>()));
    } else if (type == "Conv2d") {
      net->push_back(
          torch::nn::Conv2d(torch::nn::Conv2dOptions(layer.at("in").get<int64_t>(), layer.at("out").get<int64_t>(),
                                                     layer.at("kernel").get<int64_t>())
                                .padding(layer.value("padding", int64_t{0}))));
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
  }()
                           : std::vector<int64_t>{};
}

json train_rank(process::Process& process, const json& input) {
  const bool half = input.at("dtype") == "float16";
  AcceleratorOptions options{.mixed_precision = half ? Precision::kFp16 : Precision::kBf16};
  if (input.contains("scaler")) options.scaler = scaler_options(input.at("scaler"));
  const Accelerator accelerator(process, options);
  auto net = network(input.at("model"));
  const auto& spec = input.at("optimizer");
  auto own =
      spec.at("type") == "SGD" ? std::unique_ptr<torch::optim::Optimizer>(std::make_unique<torch::optim::SGD>(
                                     net->parameters(), torch::optim::SGDOptions(spec.at("lr").get<double>())
                                                            .momentum(spec.value("momentum", 0.0))
                                                            .weight_decay(spec.value("weight_decay", 0.0))))
      : spec.at("type") == "AdamW"
          ? std::unique_ptr<torch::optim::Optimizer>(std::make_unique<torch::optim::AdamW>(
                net->parameters(),
                torch::optim::AdamWOptions(spec.at("lr").get<double>()).weight_decay(spec.value("weight_decay", 0.01))))
          : std::unique_ptr<torch::optim::Optimizer>(std::make_unique<torch::optim::Adam>(
                net->parameters(),
                torch::optim::AdamOptions(spec.at("lr").get<double>()).weight_decay(spec.value("weight_decay", 0.0))));
  auto model = accelerator.prepare(std::shared_ptr<torch::nn::SequentialImpl>(net.ptr()));
  auto optimizer = accelerator.prepare(*own);
  const auto x = tensor_of(input.at("x")).view(sizes_of(input.at("x")));
  const auto y = tensor_of(input.at("y")).to(at::kLong);
  const int64_t rows = x.size(0), batch = input.at("batch"), num_steps = testing::positive(input.at("num_steps"));
  json result = {
      {"losses", json::array()}, {"norms", json::array()}, {"scale", json::array()}, {"skipped", json::array()}};
  for (int64_t step = 0; step < input.at("steps").get<int64_t>(); ++step) {
    const auto index =
        (at::arange(batch, at::kLong) + (step * process.world_size() + process.rank()) * batch).remainder(rows);
    std::optional<parallel::NoSync> scope;
    // As recorded: a window's first batch is exchanged, and the others add to that on their rank.
    if (step % num_steps != 0) scope.emplace(accelerator.no_sync(model));
    const auto loss = torch::cross_entropy_loss(model(x.index_select(0, index)), y.index_select(0, index));
    accelerator.backward(loss / num_steps);
    result["losses"].push_back(loss.item<float>());
    if (step == 0) result["grad_dtype"] = name_of(net->parameters()[0].grad().scalar_type());
    if (step % num_steps != num_steps - 1) continue;
    scope.reset();
    if (!input.at("max_norm").is_null())
      result["norms"].push_back(shown(accelerator.clip_grad_norm_(net->parameters(), input.at("max_norm"))));
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
    if (std::abs(given[i].get<double>() - wanted[i].get<double>()) >
        tolerance * std::max(1.0, std::abs(wanted[i].get<double>())))
      return given;
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
    const auto& wanted = golden.expected.at("ranks").at(rank);
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
    for (auto& [key, value] : given.items())
      value = as_float32(value, wanted.is_object() && wanted.contains(key) ? wanted.at(key) : json());
  } else if (given.is_number_float() && wanted.is_number() && given.get<float>() == wanted.get<float>()) {
    return wanted;
  }
  return given;
}

json sequence_case(const json& input) {
  const precision::GradScaler scaler(scaler_options(input));
  auto parameter = at::zeros({1}).requires_grad_();
  torch::optim::SGD sgd({parameter}, torch::optim::SGDOptions(1.0));
  json result = {{"scale", json::array()},
                 {"growth_tracker", json::array()},
                 {"skipped", json::array()},
                 {"param", json::array()}};
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
  explicit Protocol(const json& input)
      : scaler_({.init_scale = 8, .growth_interval = 2, .enabled = input.value("enabled", true)}) {
    parameter_ = at::zeros({2}, dtype_of(input.value("dtype", "float32"))).requires_grad_();
    optimizer_ =
        std::make_unique<torch::optim::SGD>(std::vector<at::Tensor>{parameter_}, torch::optim::SGDOptions(1.0));
    bool had_backward = false;
    for (const auto& call : input.at("calls")) had_backward = had_backward || call == "backward" || call == "set grad";
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
    } else if (call == "set grad") {
      parameter_.mutable_grad() = at::full_like(parameter_, 0.5);
    } else if (call.starts_with("scale(")) {
      extra["scaled"] = json::array();
      for (const auto& each : json::parse("[" + call.substr(6, call.size() - 7) + "]"))
        extra["scaled"].push_back(scaled(each));
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
    json entry = {
        {"scale", scaler_.scale()}, {"growth_tracker", scaler_.growth_tracker()}, {"param", listed(parameter_)}};
    if (parameter_.grad().defined()) entry["grad"] = entry["grad_scaled"] = listed(parameter_.grad());
    entry.update(extra);
    seen_.push_back(entry);
  }

  // A list of numbers is a tensor, a list of such lists a vector of tensors.
  json scaled(const json& values) const {
    if (values.empty() || values.front().is_number()) return listed(scaler_.scale(tensor_of(values)));
    std::vector<at::Tensor> tensors;
    for (const auto& each : values) tensors.push_back(tensor_of(each));
    json result = json::array();
    for (const auto& each : scaler_.scale(tensors)) result.push_back(listed(each));
    return result;
  }

  precision::GradScaler scaler_;
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
    optimizers.push_back(
        std::make_unique<torch::optim::SGD>(std::vector<at::Tensor>{parameters.back()}, torch::optim::SGDOptions(1.0)));
  }
  json calls = json::array();
  for (const auto& round : expected.at("calls")) {
    json skipped = json::array();
    for (size_t i = 0; i < 2; ++i) {
      optimizers[i]->zero_grad();
      scaler.scale((parameters[i] * 0.5).sum()).backward();
      if (round.at("found_inf").at(i).get<bool>()) parameters[i].mutable_grad()[1] = INFINITY;
    }
    for (const auto& optimizer : optimizers) skipped.push_back(!scaler.step(*optimizer));
    scaler.update();
    calls.push_back({{"found_inf", round.at("found_inf")},
                     {"skipped", skipped},
                     {"scale", scaler.scale()},
                     {"growth_tracker", scaler.growth_tracker()}});
  }
  return {{"calls", calls}};
}

json grad_scaler_outcome(const GoldenCase& golden) {
  if (golden.family == "seq" || golden.family == "extreme")
    return as_float32(sequence_case(golden.input), golden.expected);
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
    int64_t good = 0;
    for (size_t i = 0; i < golden.input.at("found_inf").size(); ++i) {
      if (golden.input.at("found_inf").at(i).get<bool>()) {
        const auto smaller = static_cast<float>(scale * golden.input.at("backoff_factor").get<double>());
        if (smaller > 0) scale = static_cast<double>(smaller);
        good = 0;
      } else {
        const auto gradient = static_cast<float>(static_cast<float>(scale) * 0.25F);
        parameter -= static_cast<double>(gradient * static_cast<float>(1 / scale));
        if (++good == golden.input.at("growth_interval").get<int64_t>()) {
          scale = static_cast<double>(static_cast<float>(scale * golden.input.at("growth_factor").get<double>()));
          good = 0;
        }
      }
      result["scale"][i] = scale;
      result["param"][i] = shown(parameter);
    }
    result["state_dict"]["scale"] = scale;
    return result;
  });
  topic.for_each([&](const GoldenCase& golden) { topic.judge(golden, [&] { return grad_scaler_outcome(golden); }); });
  topic.finish();
}

TEST(PrecisionGolden, MixedPrecisionIsThePeers) {
  GoldenTopic topic("precision");
  topic.on_quirk("fp16-on-cpu-does-nothing", with_fp16);
  topic.on_quirk("env-precision-not-checked", by_the_text);
  topic.on_every_case(with_fp8);
  topic.for_each([&](const GoldenCase& golden) {
    topic.judge(golden, [&] { return as_float32(precision_outcome(golden), golden.expected); });
  });
  topic.finish();
}

}  // namespace
}  // namespace hasten::testing
