// The runs behind DeepSpeed's checkpoints, made anew with sharding of the same stage: losses of each rank, and in
// float32 weights and moments at the end. Reading the checkpoints is the checkpoint room's.
#include <ATen/autocast_mode.h>
#include <gtest/gtest.h>
#include <torch/torch.h>

#include <map>

#include "hasten/optim/steps/optimizer_step.h"
#include "hasten/parallel/ddp/backward.h"
#include "hasten/parallel/ddp/ddp.h"
#include "hasten/parallel/shard/sharding.h"
#include "support/golden.h"
#include "support/ranks.h"

namespace hasten::parallel {
namespace {

using nlohmann::json;

// The model of the cases: c's weight is b's, scale is frozen.
struct ZeroNetImpl : torch::nn::Module {
  torch::nn::Linear a{5, 7};
  torch::nn::LayerNorm n{torch::nn::LayerNormOptions({7})};
  torch::nn::Linear b{7, 3};
  at::Tensor scale, bias;
  ZeroNetImpl() {
    register_module("a", a);
    register_module("n", n);
    register_module("b", b);
    scale = register_parameter("scale", torch::zeros({2, 3}), /*requires_grad=*/false);
    bias = register_parameter("c_bias", torch::zeros({3}));
  }
  at::Tensor forward(const at::Tensor& x) {
    const auto hidden = torch::relu(n(a(x)));
    return b(hidden) * scale[0] + torch::linear(hidden, b->weight, bias);
  }
  at::Tensor named(const std::string& name) {
    if (name == "c.bias") return bias;
    return named_parameters()[name == "c.weight" ? "b.weight" : name];
  }
};
TORCH_MODULE(ZeroNet);

at::Tensor tensor_of(const json& values) {
  if (!values.is_array()) return torch::scalar_tensor(values.get<double>());
  std::vector<at::Tensor> rows;
  for (const auto& value : values) rows.push_back(tensor_of(value));
  return torch::stack(rows);
}

json lists_of(const at::Tensor& values) {
  if (values.dim() == 0) return values.item<double>();
  json lists = json::array();
  for (const auto& row : values.unbind()) lists.push_back(lists_of(row));
  return lists;
}

// Rows of ((factor * i + offset) mod modulus - half) / divisor.
at::Tensor data_of(int64_t columns, int64_t factor, int64_t offset, int64_t modulus, double half) {
  const auto i = torch::arange(64 * columns, at::kLong);
  return (((factor * i + offset).remainder(modulus).to(at::kDouble) - half) / half).to(at::kFloat).view({64, columns});
}

std::unique_ptr<torch::optim::AdamW> optimizer_of(const json& input, ZeroNet& net) {
  std::vector<torch::optim::OptimizerParamGroup> groups;
  const double lr = input.at("lr");
  for (size_t i = 0; i < input.at("groups").size(); ++i) {
    std::vector<at::Tensor> members;
    for (const std::string name : input.at("groups").at(i)) members.push_back(net->named(name));
    const double decay = input.at("weight_decay").at(i);
    groups.emplace_back(
        members, std::make_unique<torch::optim::AdamWOptions>(torch::optim::AdamWOptions(lr).weight_decay(decay)));
  }
  return std::make_unique<torch::optim::AdamW>(groups, torch::optim::AdamWOptions(lr));
}

struct ZeroRun {
  json losses = json::array();
  std::map<std::string, json> weights, exp_avg, exp_avg_sq;
};

ZeroRun run_zero_case(const comm::Group& group, const json& input) {
  const bool low = input.at("precision") == "bf16";
  ZeroNet net;
  {
    const at::NoGradGuard no_grad;
    for (const auto& [name, values] : input.at("initial").items()) net->named(name).copy_(tensor_of(values));
  }
  const auto optimizer = optimizer_of(input, net);
  Sharding sharding(
      group, {.stage = static_cast<ShardStage>(input.at("stage").get<int>()), .param_dtype = low ? "bfloat16" : ""});
  DdpOptions options;
  options.exchange = sharding.make_exchange(group);
  const auto ddp = std::make_shared<const Ddp>(*net, group, options);
  const auto x = data_of(5, 31, 7, 101, 50), y = data_of(3, 17, 3, 89, 44);
  ZeroRun run;
  for (int64_t step = 0; step < 5; ++step) {
    const auto rows = (torch::arange(4) + 4 * step * group.world_size() + 4 * group.rank()).remainder(64);
    optimizer->zero_grad();
    at::autocast::set_autocast_enabled(at::kCPU, low);
    at::autocast::set_autocast_dtype(at::kCPU, at::kBFloat16);
    const auto output = net->forward(x.index_select(0, rows));
    at::autocast::clear_cache();
    at::autocast::set_autocast_enabled(at::kCPU, false);
    const auto loss = (output.to(at::kFloat) - y.index_select(0, rows)).pow(2).mean();
    backward(loss, {}, {.models = {ddp}, .group = group});
    sharding.step(*optimizer, [&] { return optim::optimizer_step(*optimizer); });
    run.losses.push_back(loss.item<double>());
  }
  for (const std::string name :
       {"a.weight", "a.bias", "n.weight", "n.bias", "b.weight", "b.bias", "c.weight", "c.bias"}) {
    run.weights[name] = lists_of(net->named(name).detach());
  }
  for (const auto& piece : sharding.full_state(*optimizer)) {
    const std::string name = piece.parameter == "c_bias" ? "c.bias" : piece.parameter;
    if (piece.name == "exp_avg") run.exp_avg[name] = lists_of(piece.tensor);
    if (piece.name == "exp_avg_sq") run.exp_avg_sq[name] = lists_of(piece.tensor);
  }
  return run;
}

void put(json& target, const std::map<std::string, json>& values) {
  for (const auto& [name, value] : values) {
    if (target.contains(name)) target[name] = value;
  }
}

TEST(ZeroRunsGolden, ShardedTrainingIsDeepSpeeds) {
  testing::GoldenTopic topic("zero_checkpoints");
  topic.for_each([&](const testing::GoldenCase& golden) {
    const bool low = golden.input.at("precision") == "bf16";
    const int world = testing::num_ranks_of(golden, "world");
    std::vector<ZeroRun> runs(static_cast<size_t>(world));
    testing::run_ranks(world, [&](auto& process) {
      runs[static_cast<size_t>(process.rank())] = run_zero_case(process.group(), golden.input);
    });

    // Files are another test's matter.
    json given = golden.expected;
    for (const char* key : {"losses", "weights", "exp_avg", "exp_avg_sq"}) {
      if (given.value(key, json()).empty()) throw std::runtime_error(text("an expectation without ", key));
    }
    given["losses"] = json::array();
    for (const auto& run : runs) given["losses"].push_back(run.losses);
    if (!low) {
      put(given["weights"], runs[0].weights);
      put(given["exp_avg"], runs[0].exp_avg);
      put(given["exp_avg_sq"], runs[0].exp_avg_sq);
    }
    topic.tolerate({.absolute = low ? 2e-2 : 1e-5});
    topic.judge(golden, given);
  });
  topic.finish();
}

}  // namespace
}  // namespace hasten::parallel
