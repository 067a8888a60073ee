// Step loops: equal bits however a parameter is cut and whichever instructions run, torch.optim's numbers, and the
// forms of weights below float32.
#include <gtest/gtest.h>
#include <torch/torch.h>

#include <cstring>
#include <random>

#include "hasten/core/error.h"
#include "hasten/optim/steps/rules.h"
#include "optim/steps/kernels.h"

namespace hasten::optim::steps {
namespace {

std::vector<Instructions> present() {
  std::vector<Instructions> result;
  for (const auto each : {Instructions::kGeneric, Instructions::kAvx2, Instructions::kAvx512}) {
    if (has_instructions(each)) result.push_back(each);
  }
  return result;
}

at::ScalarType dtype_of(Storage storage) {
  return storage == Storage::kFloat32 ? at::kFloat : storage == Storage::kBFloat16 ? at::kBFloat16 : at::kHalf;
}

// A parameter of 5000 odd elements in the given form, with its state, all in tensors.
struct Problem {
  explicit Problem(WeightForm form = WeightForm::kFloat32, Storage gradients = Storage::kFloat32,
                   Storage moments = Storage::kFloat32, int64_t count = 5003)
      : form(form), gradient_storage(gradients), state_storage(moments) {
    auto generator = at::detail::createCPUGenerator(11);
    weight = at::randn({count}, generator);
    gradient = (at::randn({count}, generator) * 0.1).to(dtype_of(gradients));
    for (auto& state : states) state = at::zeros({count}, dtype_of(moments));
    const auto& k = detail::kernels(Instructions::kGeneric);
    rest = at::zeros({count}, at::kShort);
    if (form == WeightForm::kSplit) {
      auto high = at::empty({count}, at::kBFloat16);
      k.store_split(high.data_ptr(), rest.data_ptr(), weight.data_ptr<float>(), count);
      weight = high;
    } else if (form != WeightForm::kFloat32) {
      weight = weight.to(at::kBFloat16);
    }
  }

  Slice slice(int64_t begin, int64_t end) {
    const auto at = [begin](at::Tensor& tensor) {
      return static_cast<char*>(tensor.data_ptr()) + begin * static_cast<int64_t>(tensor.element_size());
    };
    return {.count = end - begin,
            .form = form,
            .weight = at(weight),
            .rest = at(rest),
            .copy = copy.defined() ? at(copy) : nullptr,
            .gradient = at(gradient),
            .gradient_storage = gradient_storage,
            .states = {at(states[0]), at(states[1]), at(states[2])},
            .state_storage = state_storage,
            .gradient_factor = 0.5,
            .dither = {.seed = 5, .step = 3, .parameter = 2, .first_element = begin}};
  }

  // Everything that a step writes, as bytes.
  std::string bytes() const {
    std::string result;
    std::vector<at::Tensor> all{weight, rest, states[0], states[1], states[2]};
    if (copy.defined()) all.push_back(copy);
    for (const auto& tensor : all) result.append(static_cast<const char*>(tensor.data_ptr()), tensor.nbytes());
    return result;
  }
  at::Tensor value() const {
    auto result = weight.to(at::kFloat);
    if (form == WeightForm::kSplit) {
      detail::kernels(Instructions::kGeneric)
          .load_split(result.data_ptr<float>(), weight.data_ptr(), rest.data_ptr(), result.numel());
    }
    return result;
  }

  WeightForm form;
  Storage gradient_storage, state_storage;
  at::Tensor weight, rest, gradient, copy;
  std::array<at::Tensor, 3> states;
};

using StepSlice = std::function<void(const Slice&, Instructions)>;

struct NamedRule {
  const char* name;
  StepSlice step;
};

std::vector<NamedRule> rules() {
  const auto of = [](auto rule) { return [rule](const Slice& s, Instructions i) { step(s, rule, i); }; };
  return {
      {"sgd", of(Sgd{.lr = 0.1})},
      {"sgd nesterov", of(Sgd{.lr = 0.1, .momentum = 0.9, .weight_decay = 0.01, .nesterov = true})},
      {"sgd first", of(Sgd{.lr = 0.1, .momentum = 0.9, .is_first_step = true, .decay_after_momentum = true})},
      {"adam", of(Adam{.weight_decay = 0.1, .step = 3})},
      {"adamw amsgrad", of(Adam{.weight_decay = 0.1, .step = 3, .amsgrad = true, .decoupled_decay = true})},
      {"adagrad", of(Adagrad{.lr_decay = 0.1, .weight_decay = 0.1, .step = 2})},
      {"rmsprop", of(RmsProp{.weight_decay = 0.1})},
      {"rmsprop centered", of(RmsProp{.centered = true})},
      {"rmsprop momentum centered", of(RmsProp{.momentum = 0.5, .centered = true})},
      {"novograd", [](const Slice& s, Instructions i) { step(s, NovoGrad{.weight_decay = 0.1, .step = 2}, 3.0, i); }},
      {"lamb", [](const Slice& s, Instructions i) {
         const Lamb rule{.step = 2};
         lamb_moments(s, rule, i);
         lamb_apply(s, rule, 0.01, i);
       }}};
}

TEST(Steps, AnyCutAndAnyInstructionsGiveTheSameBits) {
  const std::vector<std::vector<int64_t>> cuts = {{5003}, {1, 777, 1025, 5003}, {64, 4096, 5003}};
  for (const auto form : {WeightForm::kFloat32, WeightForm::kSplit, WeightForm::kStochastic, WeightForm::kKahan}) {
    for (const auto gradients : {Storage::kFloat32, Storage::kBFloat16, Storage::kFloat16}) {
      for (const auto moments : {Storage::kFloat32, Storage::kBFloat16}) {
        for (const auto& rule : rules()) {
          std::string first;
          for (const auto instructions : present()) {
            for (const auto& cut : cuts) {
              Problem problem(form, gradients, moments);
              if (form == WeightForm::kFloat32) problem.copy = at::empty({5003}, at::kBFloat16).zero_();
              int64_t begin = 0;
              for (const int64_t end : cut) {
                rule.step(problem.slice(begin, end), instructions);
                begin = end;
              }
              if (first.empty()) first = problem.bytes();
              ASSERT_EQ(problem.bytes() == first, true) << rule.name << ", form " << static_cast<int>(form)
                                                        << ", instructions " << static_cast<int>(instructions);
            }
          }
        }
      }
    }
  }
}

TEST(Steps, ASplitWeightFollowsItsFloat32MasterBitForBit) {
  for (const auto& rule : rules()) {
    Problem split(WeightForm::kSplit, Storage::kBFloat16), master(WeightForm::kFloat32, Storage::kBFloat16);
    master.copy = at::empty({5003}, at::kBFloat16);
    for (int step = 0; step < 100; ++step) {
      rule.step(split.slice(0, 5003), best_instructions());
      rule.step(master.slice(0, 5003), best_instructions());
    }
    EXPECT_TRUE(at::equal(split.value(), master.weight)) << rule.name;
    EXPECT_TRUE(at::equal(split.states[0], master.states[0])) << rule.name;
    EXPECT_TRUE(at::equal(master.copy, master.weight.to(at::kBFloat16))) << rule.name;
  }
}

TEST(Steps, EveryFloatPatternSplitsAndComesBack) {
  const auto& k = detail::kernels(best_instructions());
  std::mt19937 random(3);
  std::vector<uint32_t> bits(1 << 16);
  for (size_t i = 0; i < bits.size(); ++i) bits[i] = i < 4096 ? static_cast<uint32_t>(i << 20) + 0x7FFF : random();
  std::vector<uint16_t> high(bits.size()), low(bits.size());
  std::vector<uint32_t> back(bits.size());

  k.store_split(high.data(), low.data(), reinterpret_cast<const float*>(bits.data()),
                static_cast<int64_t>(bits.size()));
  k.load_split(reinterpret_cast<float*>(back.data()), high.data(), low.data(), static_cast<int64_t>(bits.size()));

  EXPECT_EQ(back, bits);
}

TEST(Steps, HalvesAreConvertedAsLibtorchConvertsThem) {
  for (const auto instructions : present()) {
    const auto& k = detail::kernels(instructions);
    auto generator = at::detail::createCPUGenerator(1);
    const auto bits = at::randint(INT32_MIN, INT32_MAX, {100000}, generator, at::TensorOptions().dtype(at::kInt));
    const auto moderate = at::randn({100000}, generator) * at::pow(2.0, at::randint(-26, 18, {100000}, generator));
    for (const auto& values : {bits.view(at::kFloat), moderate}) {
      for (const auto storage : {Storage::kBFloat16, Storage::kFloat16}) {
        auto halves = at::empty({100000}, dtype_of(storage));
        k.store(halves.data_ptr(), values.data_ptr<float>(), storage, 100000);
        const auto wanted = values.to(dtype_of(storage));
        EXPECT_TRUE(at::equal(at::isnan(halves), at::isnan(wanted)));
        EXPECT_TRUE(at::equal(at::nan_to_num(halves), at::nan_to_num(wanted)));
      }
    }
    const auto all = at::arange(0, 65536, at::kInt).to(at::kShort);
    for (const auto storage : {Storage::kBFloat16, Storage::kFloat16}) {
      auto floats = at::empty({65536});
      k.load(floats.data_ptr<float>(), all.data_ptr(), storage, 65536);
      const auto wanted = all.view(dtype_of(storage)).to(at::kFloat);
      EXPECT_TRUE(at::equal(at::nan_to_num(floats, 1e30), at::nan_to_num(wanted, 1e30)));
    }
  }
}

template <class Optimizer, class Options, class Rule>
void expect_torch_numbers(const Options& options, Rule rule, const char* name) {
  Problem problem;
  auto parameter = problem.weight.clone().requires_grad_();
  Optimizer optimizer({parameter}, options);
  for (int64_t t = 1; t <= 5; ++t) {
    auto generator = at::detail::createCPUGenerator(static_cast<uint64_t>(100 + t));
    problem.gradient = at::randn({5003}, generator);
    parameter.mutable_grad() = problem.gradient * 0.5;
    optimizer.step();
    if constexpr (requires { rule.step; }) rule.step = t;
    if constexpr (requires { rule.is_first_step; }) rule.is_first_step = t == 1;
    step(problem.slice(0, 5003), rule);
    EXPECT_LT((problem.weight - parameter).abs().max().template item<float>(), 2e-6) << name << " step " << t;
  }
}

TEST(Steps, RulesGiveTorchOptimsNumbers) {
  using namespace torch::optim;
  expect_torch_numbers<SGD>(SGDOptions(0.1), Sgd{.lr = 0.1}, "sgd");
  expect_torch_numbers<SGD>(SGDOptions(0.1).momentum(0.9).dampening(0.3).weight_decay(0.1),
                            Sgd{.lr = 0.1, .momentum = 0.9, .dampening = 0.3, .weight_decay = 0.1}, "momentum");
  expect_torch_numbers<SGD>(SGDOptions(0.1).momentum(0.9).nesterov(true),
                            Sgd{.lr = 0.1, .momentum = 0.9, .nesterov = true}, "nesterov");
  expect_torch_numbers<torch::optim::Adam>(AdamOptions(0.01).weight_decay(0.1), Adam{.lr = 0.01, .weight_decay = 0.1},
                                           "adam");
  expect_torch_numbers<AdamW>(AdamWOptions(0.01).weight_decay(0.1).amsgrad(true),
                              Adam{.lr = 0.01, .weight_decay = 0.1, .amsgrad = true, .decoupled_decay = true}, "adamw");
  expect_torch_numbers<torch::optim::Adagrad>(AdagradOptions(0.1).lr_decay(0.1).weight_decay(0.1),
                                              Adagrad{.lr = 0.1, .lr_decay = 0.1, .weight_decay = 0.1}, "adagrad");
  expect_torch_numbers<RMSprop>(RMSpropOptions(0.01).momentum(0.5).centered(true).weight_decay(0.1),
                                RmsProp{.lr = 0.01, .weight_decay = 0.1, .momentum = 0.5, .centered = true}, "rmsprop");
}

TEST(Steps, StochasticRoundingHasTheRightMean) {
  const int64_t count = 1 << 16;
  const float value = 1.001F;  // between bfloat16's 1 and 1.0078125
  Problem problem(WeightForm::kStochastic, Storage::kFloat32, Storage::kFloat32, count);
  std::vector<float> values(count, value);
  const auto& k = detail::kernels(best_instructions());

  k.store_stochastic(problem.weight.data_ptr(), values.data(), 1024, {.seed = 1, .step = 1});
  for (int64_t begin = 0; begin < count; begin += 1024) {
    k.store_stochastic(static_cast<uint16_t*>(problem.weight.data_ptr()) + begin, values.data(), 1024,
                       {.seed = 1, .step = 1, .first_element = begin});
  }

  const double mean = problem.weight.to(at::kDouble).mean().item<double>();
  const double share = (1.001 - 1.0) / 0.0078125;
  const double sigma = 0.0078125 * std::sqrt(share * (1 - share) / static_cast<double>(count));
  EXPECT_NEAR(mean, static_cast<double>(value), 3 * sigma);
  const float infinite = std::numeric_limits<float>::infinity();
  k.store_stochastic(problem.weight.data_ptr(), &infinite, 1, {});
  EXPECT_TRUE(std::isinf(problem.weight[0].item<float>()));
}

TEST(Steps, KahanKeepsUpdatesThatBfloat16AloneLoses) {
  Problem kahan(WeightForm::kKahan, Storage::kFloat32, Storage::kFloat32, 16);
  kahan.weight.fill_(1);
  kahan.rest.zero_();
  kahan.gradient.fill_(2e-3);  // times 0.5 and lr 1: 0.001 a step, an eighth of bfloat16's spacing

  for (int step_number = 0; step_number < 100; ++step_number) step(kahan.slice(0, 16), Sgd{.lr = 1.0});

  EXPECT_NEAR(kahan.weight[0].item<float>(), 0.9, 0.008);
  EXPECT_EQ((at::ones({1}, at::kBFloat16) - 0.001).item<float>(), 1.0);
}

TEST(Steps, ASumOfSquaresIsInfiniteOnlyIfAnElementIs) {
  auto values = at::full({5000}, 1e20F);
  const auto sum = [&] { return sum_of_squares(values.data_ptr(), Storage::kFloat32, values.numel()); };

  EXPECT_NEAR(sum() / 5e43, 1.0, 1e-6);
  values[4999] = std::numeric_limits<float>::infinity();
  EXPECT_FALSE(std::isfinite(sum()));
  values[4999] = std::nanf("");
  EXPECT_TRUE(std::isnan(sum()));
  EXPECT_TRUE(std::isnan(largest_magnitude(values.data_ptr(), Storage::kFloat32, values.numel())));
  values[4999] = -3e20F;
  EXPECT_FLOAT_EQ(static_cast<float>(largest_magnitude(values.data_ptr(), Storage::kFloat32, values.numel())), 3e20F);
}

TEST(Steps, MissingMemoryIsRefused) {
  Problem problem;
  auto slice = problem.slice(0, 100);
  slice.states[1] = nullptr;

  EXPECT_THROW(step(slice, Adam{}), InternalError);
  slice = problem.slice(0, 100);
  slice.form = WeightForm::kSplit;
  slice.rest = nullptr;
  EXPECT_THROW(step(slice, Sgd{}), InternalError);
}

}  // namespace
}  // namespace hasten::optim::steps
