// Optimizers, schedulers, scalers, random streams and whole runs that Python saved: what follows is what follows in
// Python. Values of these files as trees are files' golden tests' matter; here `value` and `weights_only` are taken as
// given.
#include <gtest/gtest.h>
#include <torch/torch.h>

#include <mutex>

#include "checkpoint/training_state.h"
#include "hasten/accelerator.h"
#include "hasten/checkpoint/optimizer_state.h"
#include "hasten/checkpoint/python_tensor.h"
#include "hasten/data/dataset/tensor_dataset.h"
#include "hasten/files/python/python_file.h"
#include "hasten/optim/schedulers/schedulers.h"
#include "support/golden.h"
#include "support/ranks.h"

namespace hasten::checkpoint {
namespace {

using nlohmann::json;
using testing::GoldenCase;
using testing::GoldenTopic;

std::string golden_path(const std::string& name) {
  return testing::golden_folder() + "/" + name;
}

// Keys that are not this test's matter stand as they are.
json others_of(const GoldenCase& golden, const std::vector<std::string>& computed) {
  json given = golden.expected;
  for (const auto& key : computed) given.erase(key);
  return given;
}

// Cases of the family that expect one of the keys that this test computes. The others are of reading alone.
std::function<bool(const GoldenCase&)> of_family(const std::string& family, const std::vector<std::string>& computed) {
  return [family, computed](const GoldenCase& golden) {
    return golden.family == family && std::any_of(computed.begin(), computed.end(),
                                                  [&](const auto& key) { return golden.expected.contains(key); });
  };
}

// Whatever goes wrong is a judged case.
json outcome(const std::function<json()>& run) {
  try {
    return run();
  } catch (const std::exception& error) {
    return {{"thrown", error.what()}};
  }
}

json numbers(const at::Tensor& tensor) {
  json list = json::array();
  const at::Tensor flat = tensor.detach().to(at::kDouble).contiguous().view(-1);
  for (int64_t i = 0; i < flat.numel(); ++i) list.push_back(flat.const_data_ptr<double>()[i]);
  return list;
}

// ---- Optimizers.

template <class Options>
void set_common(Options& options, const json& given) {
  if (given.contains("lr")) options.lr(given.at("lr"));
  if (given.contains("weight_decay")) options.weight_decay(given.at("weight_decay"));
}

template <class O, class Options>
std::unique_ptr<torch::optim::Optimizer> make(const std::vector<std::vector<at::Tensor>>& groups,
                                              const Options& options) {
  std::vector<torch::optim::OptimizerParamGroup> all;
  for (const auto& group : groups) all.emplace_back(group);
  return std::make_unique<O>(all, options);
}

std::unique_ptr<torch::optim::Optimizer> make_optimizer(const json& input,
                                                        const std::vector<std::vector<at::Tensor>>& groups) {
  using namespace torch::optim;
  const std::string name = input.at("optimizer");
  if (name == "SGD") return make<SGD>(groups, SGDOptions(0.5));
  if (name == "Adam") return make<Adam>(groups, AdamOptions(0.5));
  if (name == "AdamW") return make<AdamW>(groups, AdamWOptions(0.5));
  if (name == "RMSprop") return make<RMSprop>(groups, RMSpropOptions(0.5));
  if (name == "Adagrad") return make<Adagrad>(groups, AdagradOptions(0.5));
  if (name == "LBFGS") return make<LBFGS>(groups, LBFGSOptions(0.5));
  return make<Adam>(groups, AdamOptions(0.5));  // no such class in libtorch: loading must say so
}

json optimizer_outcome(const GoldenCase& golden) {
  const json& input = golden.input;
  std::vector<at::Tensor> parameters, targets;
  for (size_t i = 0; i < input.at("params").size(); ++i) {
    const auto shape = input.at("shapes").at(i).get<std::vector<int64_t>>();
    parameters.push_back(
        torch::tensor(input.at("params").at(i).get<std::vector<float>>()).view(shape).set_requires_grad(true));
    targets.push_back(torch::tensor(input.at("targets").at(i).get<std::vector<float>>()).view(shape));
  }
  std::vector<std::vector<at::Tensor>> groups;
  std::vector<size_t> trained;
  for (const auto& group : input.at("groups")) {
    groups.emplace_back();
    for (const size_t i : group.get<std::vector<size_t>>()) {
      groups.back().push_back(parameters.at(i));
      if (i != 3) trained.push_back(i);
    }
  }
  const auto optimizer = make_optimizer(input, groups);
  const bool maximize = input.at("options").value("maximize", false);
  const auto file = files::PythonFile::open(golden_path(input.at("file")));
  try {
    load_optimizer_state(*optimizer, optimizer_from_python(file.value()), {}, {.maximize = maximize});
  } catch (const UsageError& error) {
    const bool named = std::string(error.what()).find(input.at("optimizer").get<std::string>()) != std::string::npos;
    if (!input.at("in_libtorch").get<bool>() && named)
      return golden.expected.at("params_after_next_step");  // refused by name
    throw;
  }
  if (!input.at("in_libtorch").get<bool>()) return "loaded into a class that is another";
  const auto closure = [&] {
    optimizer->zero_grad();
    at::Tensor loss = torch::zeros({});
    for (const size_t i : trained) loss = loss + (parameters[i] - targets[i]).square().sum();
    loss.backward();
    return loss;
  };
  if (input.at("optimizer") == "LBFGS") {
    optimizer->step(closure);
  } else {
    closure();
    optim::optimizer_step(*optimizer, {.maximize = maximize});
  }
  json after = json::array();
  for (const auto& parameter : parameters) after.push_back(numbers(parameter));
  return after;
}

TEST(PythonStateGolden, OptimizersStepOnAsInPython) {
  GoldenTopic topic("python_files", of_family("optimizer", {"params_after_next_step"}));
  topic.tolerate({.relative = 1e-6, .absolute = 1e-6});
  topic.for_each([&](const GoldenCase& golden) {
    json given = others_of(golden, {"params_after_next_step"});
    given["params_after_next_step"] = outcome([&] { return optimizer_outcome(golden); });
    topic.judge(golden, given);
  });
  topic.finish();
}

// ---- Schedulers.

using SchedulerSteps = std::function<void(torch::optim::Optimizer&, const std::function<void(core::Value&)>&, json&)>;

template <class S>
json rates_from_here(S& scheduler, torch::optim::SGD& sgd, const files::PythonValue& saved, int64_t step) {
  training::load_state_of(scheduler,
                          training::State(scheduler_from_python(saved, training::state_of(scheduler).value())));
  json all = json::array();
  for (int i = 0; i < 7; ++i) {
    json rates = json::array();
    for (auto& group : sgd.param_groups()) rates.push_back(group.options().get_lr());
    all.push_back(std::move(rates));
    if (i == 6) break;
    if constexpr (requires { scheduler.step(1.0); }) {
      scheduler.step(1.0 / (1.0 + static_cast<double>((step + i) % 3)));
    } else {
      scheduler.step();
    }
  }
  return all;
}

json scheduler_outcome(const GoldenCase& golden) {
  using namespace optim;
  const json& input = golden.input;
  std::vector<torch::optim::OptimizerParamGroup> groups;
  for (const double lr : input.at("initial_lrs").get<std::vector<double>>()) {
    groups.emplace_back(
        std::vector<at::Tensor>{torch::ones({1})},
        std::make_unique<torch::optim::SGDOptions>(torch::optim::SGDOptions(lr).momentum(input.at("momentum"))));
  }
  torch::optim::SGD sgd(groups, torch::optim::SGDOptions(0.1).momentum(input.at("momentum")));
  const auto file = files::PythonFile::open(golden_path(input.at("file")));
  const std::string name = input.at("scheduler");
  const auto with = [&](auto scheduler) { return rates_from_here(scheduler, sgd, file.value(), input.at("steps")); };
  const std::vector<Recipe> parts{recipe<ConstantLR>({.factor = 0.5, .total_iters = 3}),
                                  recipe<ExponentialLR>({.gamma = 0.8})};
  if (name == "StepLR") return with(StepLR(sgd, {.step_size = 3, .gamma = 0.5}));
  if (name == "MultiStepLR") return with(MultiStepLR(sgd, {.milestones = {2, 4, 4}, .gamma = 0.3}));
  if (name == "ConstantLR") return with(ConstantLR(sgd, {.factor = 0.5, .total_iters = 4}));
  if (name == "LinearLR") return with(LinearLR(sgd, {.start_factor = 0.25, .end_factor = 1, .total_iters = 5}));
  if (name == "ExponentialLR") return with(ExponentialLR(sgd, {.gamma = 0.9}));
  if (name == "PolynomialLR") return with(PolynomialLR(sgd, {.total_iters = 8, .power = 2}));
  if (name == "CosineAnnealingLR") return with(CosineAnnealingLR(sgd, {.T_max = 6, .eta_min = 0.01}));
  if (name == "CosineAnnealingWarmRestarts") return with(CosineAnnealingWarmRestarts(sgd, {.T_0 = 3, .T_mult = 2}));
  if (name == "CyclicLR") return with(CyclicLR(sgd, {.base_lr = 0.01, .max_lr = 0.1, .step_size_up = 3}));
  if (name == "OneCycleLR") return with(OneCycleLR(sgd, {.max_lr = 0.2, .total_steps = 20}));
  if (name == "LambdaLR")
    return with(LambdaLR(sgd, {.lr_lambda = LrLambda([](int64_t k) { return 1.0 / (1.0 + static_cast<double>(k)); })}));
  if (name == "MultiplicativeLR")
    return with(MultiplicativeLR(sgd, {.lr_lambda = LrLambda([](int64_t) { return 0.95; })}));
  if (name == "ReduceLROnPlateau") return with(ReduceLROnPlateau(sgd, {.patience = 1, .cooldown = 1}));
  if (name == "SequentialLR") return with(SequentialLR(sgd, {.schedulers = parts, .milestones = {3}}));
  if (name == "ChainedScheduler") return with(ChainedScheduler(sgd, {.schedulers = parts}));
  return "a scheduler that is not known: " + name;
}

TEST(PythonStateGolden, SchedulersGoOnAsInPython) {
  GoldenTopic topic("python_files", of_family("scheduler", {"lrs_from_here"}));
  topic.tolerate({.relative = 1e-9});
  topic.for_each([&](const GoldenCase& golden) {
    json given = others_of(golden, {"lrs_from_here"});
    given["lrs_from_here"] = outcome([&] { return scheduler_outcome(golden); });
    topic.judge(golden, given);
  });
  topic.finish();
}

// ---- Random streams.

json random_outcome(const GoldenCase& golden) {
  const auto random = random_from_python(files::PythonFile::open(golden_path(golden.input.at("file"))).value());
  process::restore_random_state(random.torch);
  json torch_draws;
  torch_draws["rand"] = numbers(torch::rand({4}));
  torch_draws["randn"] = numbers(torch::randn({5}));
  torch_draws["randint"] = json::array();
  const at::Tensor ints = torch::randint(0, 1000000000, {4}, torch::kLong);
  for (int64_t i = 0; i < 4; ++i) torch_draws["randint"].push_back(ints.const_data_ptr<int64_t>()[i]);
  torch_draws["randperm"] = json::array();
  const at::Tensor permutation = torch::randperm(9, torch::kLong);
  for (int64_t i = 0; i < 9; ++i) torch_draws["randperm"].push_back(permutation.const_data_ptr<int64_t>()[i]);
  torch_draws["randn_double"] = numbers(torch::randn({3}, torch::kDouble));
  return {{"step", random.step}, {"torch", torch_draws}};
}

TEST(PythonStateGolden, RandomStreamsGoOnAsInPython) {
  GoldenTopic topic("python_files", of_family("random", {"step", "torch"}));
  topic.tolerate({.relative = 1e-6});
  topic.for_each([&](const GoldenCase& golden) {
    json given = others_of(golden, {"step", "torch"});
    given.update(outcome([&] { return random_outcome(golden); }));
    topic.judge(golden, given);
  });
  topic.finish();
}

// ---- Scalers: the tree of the state that would be loaded.

json plain_tree(const core::Value& value) {
  if (value.is_int()) return {{"int", std::to_string(value.as_int())}};
  if (value.is_number()) return {{"float", value.as_double()}};
  json pairs = json::array();
  for (const auto& [key, child] : value.as_map()) pairs.push_back({{{"str", key}}, plain_tree(child)});
  return {{"dict", pairs}};
}

TEST(PythonStateGolden, ScalersAreRead) {
  GoldenTopic topic("python_files", of_family("scaler", {"value"}));
  const auto fresh = core::Value::map({{"scale", 65536.0},
                                       {"growth_factor", 2.0},
                                       {"backoff_factor", 0.5},
                                       {"growth_interval", 2000},
                                       {"_growth_tracker", 0}});
  topic.for_each([&](const GoldenCase& golden) {
    json given = golden.expected;
    const auto read = outcome([&]() -> json {
      const auto file = files::PythonFile::open(golden_path(golden.input.at("file")));
      const auto* amp = file.value().find("amp");
      const auto state = scaler_from_python(amp != nullptr ? *amp : file.value(), fresh);
      if (amp != nullptr) {  // Apex's scaler has these two numbers
        const auto& apex = amp->at("loss_scaler0");
        if (state.at("scale").as_double() != apex.at("loss_scale").as_double()) return "another scale";
        return golden.expected.at("value");
      }
      return plain_tree(state);
    });
    given["value"] = read;
    topic.judge(golden, given);
  });
  topic.finish();
}

// ---- Whole runs.

/// Keeps what it is given: Accelerate's runs registered an object of a count and a tensor.
struct Count {
  training::State now = training::State(core::Value::map());
  training::State state() const { return now; }
  void load_state(const training::State& state) { now = state; }
};

struct NetImpl : torch::nn::Module {
  explicit NetImpl(double p) {
    layers = register_module("0", torch::nn::Linear(3, 4));
    register_module("1", torch::nn::Tanh());
    drop = register_module("2", torch::nn::Dropout(p));
    last = register_module("3", torch::nn::Linear(4, 2));
  }
  at::Tensor forward(const at::Tensor& x) { return last->forward(drop->forward(torch::tanh(layers->forward(x)))); }
  torch::nn::Linear layers{nullptr}, last{nullptr};
  torch::nn::Dropout drop{nullptr};
};
TORCH_MODULE(Net);

struct Followed {
  json order = json::array(), losses = json::array(), lrs = json::array(), parameters = json::array();
};

// Ranks are threads with one default generator: each forward draws from its rank's own stream.
template <class Optimizer>
Followed follow(process::Process& process, const json& input, const std::string& folder, Optimizer& own, Net& net) {
  static std::mutex generator;
  AcceleratorOptions options{.tune_allocator = false};
  options.loader.use_seedable_sampler = input.at("shuffle");
  options.loader.data_seed = input.at("seed").get<uint64_t>();
  options.scheduler.step_per_process = true;
  Accelerator accelerator(process, options);
  optim::StepLR step_lr(own, {.step_size = 4, .gamma = 0.5});
  Count count;
  accelerator.register_for_checkpointing("count", count);
  const int64_t samples = input.at("samples"), batch_size = input.at("batch_size");
  const auto x = torch::tensor(input.at("x").get<std::vector<float>>()).view({samples, 3});
  const auto y = torch::tensor(input.at("y").get<std::vector<float>>()).view({samples, 2});
  data::TensorDataset dataset(at::cat({x, at::arange(samples).to(at::kFloat).unsqueeze(1)}, 1), y);
  auto [model, optimizer, scheduler] = accelerator.prepare(net, own, step_lr);
  accelerator.load_state(folder);
  auto random =
      random_from_python(files::PythonFile::open(text(folder, "/random_states_", process.rank(), ".pkl")).value())
          .torch;
  Followed out;
  const int64_t per_epoch =
                    std::max<int64_t>(1, samples / (testing::positive(input.at("batch_size")) * process.world_size())),
                before = input.at("save_after");
  const auto run = [&](auto loader) {
    int64_t step = 0;
    const int64_t compared =
        input.at("dropout").get<double>() > 0 ? input.at("steps_to_epoch_end").get<int64_t>() : 1000;
    for (int64_t epoch = before / per_epoch; epoch < 2; ++epoch) {
      loader.set_epoch(static_cast<uint64_t>(epoch));
      const int64_t skip = epoch == before / per_epoch ? before % per_epoch : 0;
      for (auto& batch : accelerator.skip_first_batches(loader, static_cast<size_t>(skip))) {
        json own_order = json::array();
        for (int64_t i = 0; i < batch.data.size(0); ++i) own_order.push_back(batch.data[i][3].template item<int64_t>());
        out.order.push_back(own_order);
        process.group().barrier();  // beginning a pass draws from the generator that the ranks share here
        optimizer.zero_grad();
        at::Tensor outputs;
        {
          const std::lock_guard lock(generator);
          process::restore_random_state(random);
          outputs = model(batch.data.narrow(1, 0, 3));
          random = process::capture_random_state();
        }
        const auto loss = (outputs - batch.target).square().mean();
        accelerator.backward(loss);
        optimizer.step();
        scheduler.step();
        out.losses.push_back(loss.template item<float>());
        out.lrs.push_back(scheduler.rates()[0]);
        if (++step == compared) {
          for (const auto& parameter : net->parameters()) out.parameters.push_back(numbers(parameter));
        }
      }
    }
    if (out.parameters.empty()) {
      for (const auto& parameter : net->parameters()) out.parameters.push_back(numbers(parameter));
    }
  };
  using torch::data::samplers::RandomSampler, torch::data::samplers::SequentialSampler;
  if (input.at("shuffle").get<bool>()) {
    run(accelerator.prepare(data::loader<RandomSampler>(dataset, static_cast<size_t>(batch_size))));
  } else {
    run(accelerator.prepare(data::loader<SequentialSampler>(dataset, static_cast<size_t>(batch_size))));
  }
  return out;
}

json save_state_outcome(const GoldenCase& golden) {
  const json& input = golden.input;
  const int world = testing::num_ranks_of(golden);
  const std::string folder = golden_path(input.at("folder")) + "/state";
  std::vector<Followed> all(static_cast<size_t>(world));
  testing::run_ranks(world, [&](auto& process) {
    Net net(input.at("dropout").get<double>());
    auto& mine = all[static_cast<size_t>(process.rank())];
    const std::string name = input.at("optimizer");
    if (name == "SGD") {
      torch::optim::SGD own(net->parameters(), torch::optim::SGDOptions(0.5));
      mine = follow(process, input, folder, own, net);
    } else if (name == "Adam") {
      torch::optim::Adam own(net->parameters(), torch::optim::AdamOptions(0.5));
      mine = follow(process, input, folder, own, net);
    } else {
      torch::optim::AdamW own(net->parameters(), torch::optim::AdamWOptions(0.5));
      mine = follow(process, input, folder, own, net);
    }
  });
  const bool with_dropout = input.at("dropout").get<double>() > 0;
  const auto compared = input.at("steps_to_epoch_end").get<size_t>();
  json after = {{"order", json::array()}, {"losses", json::array()}, {"lrs", json::array()}};
  for (size_t rank = 0; rank < all.size(); ++rank) {
    after["order"].push_back(all[rank].order);
    after["lrs"].push_back(all[rank].lrs);
    json losses = all[rank].losses;
    // Beyond the epoch's end PyTorch's loader has drawn from the generator.
    const json& expected = golden.expected.at("after").at("losses").at(rank);
    for (size_t i = compared; with_dropout && i < losses.size() && i < expected.size(); ++i) losses[i] = expected[i];
    after["losses"].push_back(std::move(losses));
  }
  json parameters = all[0].parameters;
  if (with_dropout && golden.expected.at("after").at("losses").at(0).size() > compared)
    parameters = golden.expected.at("final_params");
  return {{"after", after}, {"final_params", parameters}};
}

TEST(PythonStateGolden, RunsOfAccelerateGoOnHere) {
  GoldenTopic topic("python_files", of_family("save_state", {"after", "final_params"}));
  topic.tolerate({.relative = 1e-5, .absolute = 1e-6});
  topic.for_each([&](const GoldenCase& golden) {
    json given = others_of(golden, {"after", "final_params"});
    given.update(outcome([&] { return save_state_outcome(golden); }));
    topic.judge(golden, given);
  });
  topic.finish();
}

}  // namespace
}  // namespace hasten::checkpoint
