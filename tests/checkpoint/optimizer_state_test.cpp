// Optimizers' state by parameter name, and in Python's form: what is loaded steps as what was saved.
#include "hasten/checkpoint/optimizer_state.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <torch/torch.h>

#include <functional>

#include "hasten/checkpoint/python_tensor.h"
#include "hasten/core/error.h"
#include "hasten/optim/apex_adam.h"
#include "hasten/optim/lamb.h"
#include "hasten/optim/moment_state.h"
#include "support/folder.h"
#include "support/models.h"

namespace hasten::checkpoint {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;
using Make = std::function<std::unique_ptr<torch::optim::Optimizer>(std::vector<torch::optim::OptimizerParamGroup>)>;

template <class O, class Options>
Make make(Options options) {
  return [options](auto groups) { return std::make_unique<O>(groups, options); };
}

const std::vector<std::pair<std::string, Make>>& all_optimizers() {
  using namespace torch::optim;
  static const std::vector<std::pair<std::string, Make>> all{
      {"SGD", make<SGD>(SGDOptions(0.1).momentum(0.9).nesterov(true))},
      {"plain SGD", make<SGD>(SGDOptions(0.1))},
      {"Adam", make<Adam>(AdamOptions(0.01).amsgrad(true))},
      {"AdamW", make<AdamW>(AdamWOptions(0.01).betas(std::make_tuple(0.8, 0.95)))},
      {"RMSprop", make<RMSprop>(RMSpropOptions(0.01).momentum(0.5).centered(true))},
      {"Adagrad", make<Adagrad>(AdagradOptions(0.1).lr_decay(0.1))},
      {"LBFGS", make<LBFGS>(LBFGSOptions(0.5).max_iter(3).history_size(4))},
      {"ApexAdam", make<optim::ApexAdam>(optim::ApexAdamOptions(0.01))},
      {"Lamb", make<optim::Lamb>(optim::LambOptions(0.01))}};
  return all;
}

struct Trained {
  Trained(const std::string& name, const Make& make, uint64_t seed) : name_(name) {
    testing::initialise(*net, seed);
    if (name == "LBFGS") {
      optimizer = make({torch::optim::OptimizerParamGroup(net->parameters())});
    } else {
      optimizer = make({torch::optim::OptimizerParamGroup(net->first->parameters()),
                        torch::optim::OptimizerParamGroup(net->second->parameters())});
    }
  }
  void step(int number) {
    const auto problem = testing::problem_for("mlp", static_cast<uint64_t>(number));
    optimizer->step([&] {
      optimizer->zero_grad();
      auto loss = torch::cross_entropy_loss(net->forward(problem.inputs), problem.targets);
      loss.backward();
      return loss;
    });
  }
  void copy_weights(const Trained& other) {
    const at::NoGradGuard no_grad;
    for (size_t i = 0; i < net->parameters().size(); ++i) net->parameters()[i].copy_(other.net->parameters()[i]);
  }
  bool equals(const Trained& other) const {
    for (size_t i = 0; i < net->parameters().size(); ++i) {
      if (!net->parameters()[i].equal(other.net->parameters()[i])) return false;
    }
    return true;
  }
  std::string name_;
  testing::Mlp net;
  std::unique_ptr<torch::optim::Optimizer> optimizer;
};

TEST(OptimizerState, TheNextStepsAreThoseOfTheSavedOneBitForBit) {
  for (const auto& [name, make] : all_optimizers()) {
    Trained saved(name, make, 1), loaded(name, make, 1);
    for (int i = 0; i < 3; ++i) saved.step(i);
    loaded.copy_weights(saved);

    const auto state = optimizer_state(*saved.optimizer, names_of(*saved.net));
    load_optimizer_state(*loaded.optimizer, state, names_of(*loaded.net));
    for (int i = 3; i < 6; ++i) saved.step(i), loaded.step(i);

    EXPECT_TRUE(saved.equals(loaded)) << name;
  }
}

TEST(OptimizerState, ThroughPythonsFormTheyAreToo) {
  for (const auto& [name, make] : all_optimizers()) {
    Trained saved(name, make, 1), loaded(name, make, 1);
    for (int i = 0; i < 3; ++i) saved.step(i);
    loaded.copy_weights(saved);

    const auto value = to_python(optimizer_state(*saved.optimizer, names_of(*saved.net)));
    load_optimizer(*loaded.optimizer, *loaded.net, value);
    for (int i = 3; i < 6; ++i) saved.step(i), loaded.step(i);

    EXPECT_TRUE(saved.equals(loaded)) << name;
  }
}

TEST(OptimizerState, PythonsFormHasPythonsKeysInOrder) {
  Trained trained("AdamW", all_optimizers()[3].second, 1);
  trained.step(0);

  const auto value = to_python(optimizer_state(*trained.optimizer));

  std::vector<std::string> keys;
  for (const auto& item : value["param_groups"][0].as_pairs()) keys.push_back(item.first.as_string());
  EXPECT_THAT(keys, ElementsAre("lr", "betas", "eps", "weight_decay", "amsgrad", "maximize", "decoupled_weight_decay",
                                "params"));
  EXPECT_EQ(value["param_groups"][0]["betas"].kind(), files::PythonValue::Kind::kTuple);
  EXPECT_EQ(value["param_groups"][1]["params"][0].as_int(), 2);
  const auto& slots = *value["state"].find(int64_t{0});
  EXPECT_EQ(tensor_of(slots["step"]).item<float>(), 1.0F);
  EXPECT_EQ(tensor_of(slots["exp_avg"]).sizes(), trained.net->first->weight.sizes());
}

TEST(OptimizerState, GroupsMayBeRegroupedAndParametersAdded) {
  Trained saved("AdamW", all_optimizers()[3].second, 1);
  saved.step(0);
  const auto state = optimizer_state(*saved.optimizer, names_of(*saved.net));
  testing::Mlp net;
  auto extra = torch::ones({2}, torch::requires_grad());
  auto parameters = net->parameters();
  std::reverse(parameters.begin(), parameters.end());
  parameters.push_back(extra);
  torch::optim::AdamW other(parameters, 0.5);

  const auto report = load_optimizer_state(other, state, names_of(*net));

  EXPECT_THAT(report.missing, ElementsAre("group0.4"));
  EXPECT_TRUE(report.unused.empty());
  const auto loaded = optimizer_state(other, names_of(*net));
  EXPECT_EQ(loaded.state.size(), 4u);
  EXPECT_EQ(loaded.groups[0].options.at("lr").as_double(), 0.01);
  for (const auto& [name, slots] : loaded.state) {
    EXPECT_TRUE(
        training::State(slots).at("exp_avg").tensor().equal(training::State(*state.find(name)).at("exp_avg").tensor()));
  }
}

TEST(OptimizerState, AnotherClassOrShapeIsRefusedAndNothingChanges) {
  Trained adam("Adam", all_optimizers()[2].second, 1), adamw("AdamW", all_optimizers()[3].second, 1);
  adam.step(0);
  adamw.step(0);
  auto state = optimizer_state(*adam.optimizer, names_of(*adam.net));
  const auto before = optimizer_state(*adamw.optimizer, names_of(*adamw.net));

  EXPECT_THAT(
      testing::words_of<UsageError>([&] { load_optimizer_state(*adamw.optimizer, state, names_of(*adamw.net)); }),
      HasSubstr("the saved state is of Adam, this optimizer is AdamW"));
  state.type = "AdamW";
  state.state[0].second = {{"step", training::State(1)}, {"exp_avg", training::State(at::ones({3, 2}))}};
  EXPECT_THAT(
      testing::words_of<UsageError>([&] { load_optimizer_state(*adamw.optimizer, state, names_of(*adamw.net)); }),
      HasSubstr("exp_avg of 'first.weight' has sizes [3, 2]"));
  const auto after = optimizer_state(*adamw.optimizer, names_of(*adamw.net));
  EXPECT_TRUE(training::State(after.state[0].second)
                  .at("exp_avg")
                  .tensor()
                  .equal(training::State(before.state[0].second).at("exp_avg").tensor()));
}

struct CountingOptions : torch::optim::OptimizerCloneableOptions<CountingOptions> {
  explicit CountingOptions(double lr = 1) : lr_(lr) {}
  TORCH_ARG(double, lr) = 1;

 public:
  double get_lr() const override { return lr(); }
  void set_lr(const double value) override { lr(value); }
};
struct CountingState : torch::optim::OptimizerCloneableParamState<CountingState> {
  TORCH_ARG(int64_t, count) = 0;
};
struct Counting : torch::optim::Optimizer {
  explicit Counting(std::vector<at::Tensor> parameters)
      : Optimizer({torch::optim::OptimizerParamGroup(std::move(parameters))}, std::make_unique<CountingOptions>()) {}
  at::Tensor step(LossClosure = nullptr) override {
    for (auto& group : param_groups()) {
      for (auto& parameter : group.params()) {
        auto& state = state_[parameter.unsafeGetTensorImpl()];
        if (!state) state = std::make_unique<CountingState>();
        static_cast<CountingState&>(*state).count()++;
      }
    }
    return {};
  }
};

}  // namespace

template <>
struct OptimizerCodec<Counting> {
  static constexpr const char* kName = "Counting";
  static core::Value options(const torch::optim::OptimizerOptions& own) {
    return core::Value::map({{"lr", own.get_lr()}});
  }
  static void load_options(torch::optim::OptimizerOptions& own, const core::Value& value) {
    own.set_lr(value.at("lr").as_double());
  }
  static Slots state(const torch::optim::OptimizerParamState& own) {
    return {{"count", training::State(static_cast<const CountingState&>(own).count())}};
  }
  static std::unique_ptr<torch::optim::OptimizerParamState> make_state(const Slots& slots) {
    auto state = std::make_unique<CountingState>();
    state->count(slots.at(0).second.value().as_int());
    return state;
  }
};

namespace {

TEST(OptimizerCodec, AClassOfOnesOwnBringsItsCodec) {
  Counting saved({at::ones({2})}), loaded({at::ones({2})});
  saved.step();
  saved.step();
  const auto codec = optimizer_codec<Counting>();

  EXPECT_THAT(testing::words_of<UsageError>([&] { optimizer_state(saved); }), HasSubstr("OptimizerCodec"));
  load_optimizer_state(loaded, optimizer_state(saved, {}, &codec), {}, {.codec = &codec});

  EXPECT_EQ(static_cast<CountingState&>(*loaded.state().begin()->second).count(), 2);
}

}  // namespace
}  // namespace hasten::checkpoint
