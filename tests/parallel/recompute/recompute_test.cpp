// Regions whose activations are computed again: gradients bit for bit, and what is dropped.
#include "hasten/parallel/recompute/recompute.h"

#include <ATen/autocast_mode.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <torch/csrc/autograd/engine.h>
#include <torch/torch.h>

#include <functional>
#include <iostream>
#include <random>
#include <string>
#include <vector>

#include "hasten/core/error.h"
#include "hasten/parallel/model/prepared_model.h"
#include "hasten/precision/autocast.h"
#include "hasten/precision/living_casts.h"
#include "support/processes.h"
#include "support/sanitizers.h"

extern "C" {
__attribute__((weak)) void __lsan_disable();
__attribute__((weak)) void __lsan_enable();
}

namespace hasten::parallel {
namespace {

using ::testing::HasSubstr;
using Tensors = std::vector<at::Tensor>;
using Loss = std::function<at::Tensor(const at::Tensor&)>;

// Gradients of parameters and input, by clones.
Tensors gradients(torch::nn::Module& net, const at::Tensor& input, const Loss& loss) {
  torch::manual_seed(7);
  net.zero_grad();
  const at::Tensor x = input.clone().requires_grad_();
  loss(x).backward();
  Tensors found{x.grad().clone()};
  for (const auto& parameter : net.parameters()) {
    if (parameter.grad().defined()) found.push_back(parameter.grad().clone());
  }
  return found;
}

void expect_equal(const Tensors& actual, const Tensors& expected) {
  ASSERT_EQ(actual.size(), expected.size());
  for (size_t i = 0; i < actual.size(); ++i) EXPECT_TRUE(actual[i].equal(expected[i])) << "gradient " << i;
}

// Tensors that were dropped meanwhile.
int64_t count_dropped(const std::function<void()>& body) {
  const int64_t before = recompute_counts().dropped;
  body();
  return recompute_counts().dropped - before;
}

torch::nn::Sequential mlp() {
  return torch::nn::Sequential(torch::nn::Linear(6, 16), torch::nn::GELU(), torch::nn::Dropout(0.3),
                               torch::nn::Linear(16, 16), torch::nn::Tanh(),
                               torch::nn::LayerNorm(torch::nn::LayerNormOptions({16})), torch::nn::Linear(16, 3));
}

TEST(Recompute, GivesTheGradientsOfThePlainLoopBitForBitWithDropout) {
  torch::manual_seed(1);
  auto net = mlp();
  const auto x = torch::randn({5, 6});
  const auto expected = gradients(*net, x, [&](const at::Tensor& input) { return net->forward(input).pow(2).sum(); });
  int calls = 0;
  Tensors actual;
  const int64_t dropped = count_dropped([&] {
    actual = gradients(*net, x, [&](const at::Tensor& input) {
      return recompute(
                 [&](const at::Tensor& value) {
                   ++calls;
                   return net->forward(value);
                 },
                 input)
          .pow(2)
          .sum();
    });
  });
  expect_equal(actual, expected);
  EXPECT_EQ(calls, 1) << "the program's code runs once";
  EXPECT_GE(dropped, 6);
}

TEST(Recompute, RandomNumbersBehindARegionAreThoseOfThePlainLoop) {
  auto net = mlp();
  const auto x = torch::randn({5, 6});
  const auto behind = [&](bool with) {
    torch::manual_seed(3);
    const auto y = with ? recompute([&] { return net->forward(x); }) : net->forward(x);
    const auto before = torch::rand({4});
    y.sum().backward();
    return torch::cat({before, torch::rand({4})});
  };
  EXPECT_TRUE(behind(true).equal(behind(false)));
}

TEST(Recompute, BatchNormCountsItsStatisticsOnce) {
  torch::nn::Sequential net(torch::nn::Conv2d(torch::nn::Conv2dOptions(3, 4, 3)), torch::nn::BatchNorm2d(4),
                            torch::nn::ReLU(torch::nn::ReLUOptions(true)),
                            torch::nn::Conv2d(torch::nn::Conv2dOptions(4, 2, 3)));
  const auto x = torch::randn({2, 3, 8, 8});
  auto& norm = *net[1]->as<torch::nn::BatchNorm2d>();
  const auto start = norm.running_mean.clone(), start_var = norm.running_var.clone();
  const auto run = [&](bool with) {
    torch::NoGradGuard no_grad;
    norm.running_mean.copy_(start);
    norm.running_var.copy_(start_var);
    norm.num_batches_tracked.zero_();
    torch::AutoGradMode grad(true);
    return gradients(*net, x, [&](const at::Tensor& input) {
      return (with ? recompute([&] { return net->forward(input); }) : net->forward(input)).pow(2).sum();
    });
  };
  const auto expected = run(false);
  const auto mean = norm.running_mean.clone(), var = norm.running_var.clone();
  const int64_t replayed = recompute_counts().replayed;
  expect_equal(run(true), expected);
  EXPECT_TRUE(norm.running_mean.equal(mean));
  EXPECT_TRUE(norm.running_var.equal(var));
  EXPECT_EQ(norm.num_batches_tracked.item<int64_t>(), 1);
  EXPECT_GE(recompute_counts().replayed - replayed, 2) << "convolution and normalisation";
}

struct BlockImpl : torch::nn::Module {
  explicit BlockImpl(int64_t width, int64_t heads) : heads_(heads) {
    norm1 = register_module("norm1", torch::nn::LayerNorm(torch::nn::LayerNormOptions({width})));
    norm2 = register_module("norm2", torch::nn::LayerNorm(torch::nn::LayerNormOptions({width})));
    qkv = register_module("qkv", torch::nn::Linear(width, 3 * width));
    out = register_module("out", torch::nn::Linear(width, width));
    up = register_module("up", torch::nn::Linear(width, 4 * width));
    down = register_module("down", torch::nn::Linear(4 * width, width));
    drop = register_module("drop", torch::nn::Dropout(0.1));
  }
  at::Tensor forward(at::Tensor x) {
    const auto batch = x.size(0), length = x.size(1), width = x.size(2);
    const auto parts = qkv(norm1(x)).chunk(3, -1);
    const auto head = [&](const at::Tensor& t) {
      return t.view({batch, length, heads_, width / heads_}).transpose(1, 2);
    };
    const auto attention =
        at::scaled_dot_product_attention(head(parts[0]), head(parts[1]), head(parts[2]), {}, 0.0, true);
    x = x + drop(out(attention.transpose(1, 2).reshape({batch, length, width})));
    return x + drop(down(torch::gelu(up(norm2(x)))));
  }
  int64_t heads_;
  torch::nn::LayerNorm norm1{nullptr}, norm2{nullptr};
  torch::nn::Linear qkv{nullptr}, out{nullptr}, up{nullptr}, down{nullptr};
  torch::nn::Dropout drop{nullptr};
};
TORCH_MODULE(Block);

struct DecoderImpl : torch::nn::Module {
  DecoderImpl() {
    embed = register_module("embed", torch::nn::Embedding(20, 16));
    layers = register_module("layers", torch::nn::ModuleList());
    for (int i = 0; i < 3; ++i) layers->push_back(Block(16, 2));
    head = register_module("head", torch::nn::Linear(16, 20));
  }
  at::Tensor forward(const at::Tensor& ids) {
    at::Tensor x = embed(ids);
    for (const auto& layer : *layers) x = layer->as<Block>()->forward(x);
    return head(x);
  }
  torch::nn::Embedding embed{nullptr};
  torch::nn::ModuleList layers{nullptr};
  torch::nn::Linear head{nullptr};
};
TORCH_MODULE(Decoder);

Tensors decoder_gradients(DecoderImpl& net, const at::Tensor& ids, const ForwardScopes* scopes) {
  torch::manual_seed(5);
  net.zero_grad();
  at::Tensor logits;
  if (scopes != nullptr) {
    const auto scope = scopes->enter(net);
    logits = net.forward(ids);
  } else {
    logits = net.forward(ids);
  }
  torch::nn::functional::cross_entropy(logits.flatten(0, 1), ids.flatten()).backward();
  Tensors found;
  for (const auto& parameter : net.parameters()) found.push_back(parameter.grad().clone());
  return found;
}

TEST(Recompute, AnUnmodifiedModelHasARegionForEachLayerOfItsList) {
  torch::manual_seed(2);
  Decoder net;
  const auto ids = torch::randint(20, {2, 7});
  const auto expected = decoder_gradients(*net, ids, nullptr);
  ForwardScopes scopes;
  scopes.add(ForwardOrder::kRecompute, recompute_hook(*net, {.enabled = true}));
  const auto before = recompute_counts();
  expect_equal(decoder_gradients(*net, ids, &scopes), expected);
  const auto after = recompute_counts();
  EXPECT_GE(after.dropped - before.dropped, 3 * 8);
  EXPECT_GE(after.replayed - before.replayed, 3 * 8);
  // A region replays from its own input: about the operators of one layer for each.
  EXPECT_LE(after.replayed - before.replayed, 3 * 40);
}

TEST(Recompute, RegionsAreNamedByNamePatternOrClass) {
  Decoder net;
  const auto ids = torch::randint(20, {2, 7});
  const auto expected = decoder_gradients(*net, ids, nullptr);
  const auto dropped_with = [&](const std::vector<std::string>& modules) {
    ForwardScopes scopes;
    scopes.add(ForwardOrder::kRecompute, recompute_hook(*net, {.enabled = true, .modules = modules}));
    return count_dropped([&] { expect_equal(decoder_gradients(*net, ids, &scopes), expected); });
  };
  const int64_t all = dropped_with({});
  EXPECT_EQ(dropped_with({"Block"}), all);
  EXPECT_EQ(dropped_with({"layers[.][0-9]+"}), all);
  EXPECT_EQ(dropped_with({"layers.1"}) * 3, all);
  try {
    recompute_hook(*net, {.enabled = true, .modules = {"Blok"}});
    FAIL() << "no error";
  } catch (const UsageError& error) {
    EXPECT_NE(std::string(error.what()).find("'Blok'"), std::string::npos) << error.what();
  }
  EXPECT_THROW(recompute_hook(*net, {.enabled = true, .modules = {"layers[.("}}), UsageError);
}

TEST(Recompute, NeighboursFormOneRegionWhereFewerAreAskedFor) {
  Decoder net;
  const auto ids = torch::randint(20, {2, 7});
  const auto expected = decoder_gradients(*net, ids, nullptr);
  const auto dropped_with = [&](int64_t num_regions) {
    ForwardScopes scopes;
    scopes.add(ForwardOrder::kRecompute, recompute_hook(*net, {.enabled = true, .num_regions = num_regions}));
    return count_dropped([&] { expect_equal(decoder_gradients(*net, ids, &scopes), expected); });
  };

  // An input that lies inside a region is dropped as well.
  const int64_t each = dropped_with(0), two = dropped_with(2), one = dropped_with(1);
  EXPECT_GT(two, each);
  EXPECT_GT(one, two);
  EXPECT_EQ(dropped_with(3), each);
  EXPECT_EQ(dropped_with(100), each);
  EXPECT_THROW(recompute_hook(*net, {.enabled = true, .num_regions = -1}), UsageError);
}

TEST(Recompute, NothingIsDroppedWithoutGradients) {
  Decoder net;
  ForwardScopes scopes;
  scopes.add(ForwardOrder::kRecompute, recompute_hook(*net, {.enabled = true}));
  torch::NoGradGuard no_grad;
  EXPECT_EQ(count_dropped([&] {
              const auto scope = scopes.enter(*net);
              net->forward(torch::randint(20, {2, 7}));
            }),
            0);
}

TEST(Recompute, WhatARegionDropsIsFreedBeforeBackward) {
  constexpr int64_t kWidth = 64, kBatch = 64;
  torch::nn::Sequential net;
  for (int i = 0; i < 4; ++i) net->push_back(Block(kWidth, 4));
  const auto x = torch::randn({kBatch, 16, kWidth});
  // Storages that a region drops are gone once the program lets go of them.
  const auto survivors = [&](bool with) {
    std::vector<c10::weak_intrusive_ptr<c10::StorageImpl>> seen;
    at::Tensor value = x;
    for (size_t i = 0; i < net->size(); ++i) {
      auto& block = *net[i]->as<Block>();
      const auto run = [&](const at::Tensor& input) {
        const auto hidden = torch::gelu(block.up(block.norm2(input)));
        seen.push_back(hidden.storage().getWeakStorageImpl());
        return input + block.down(hidden);
      };
      value = with ? recompute(run, value) : run(value);
    }
    const auto loss = value.sum();
    const auto alive = std::count_if(seen.begin(), seen.end(), [](const auto& storage) { return !storage.expired(); });
    loss.backward();
    return alive;
  };
  EXPECT_EQ(survivors(false), 4);
  EXPECT_EQ(survivors(true), 0);
}

TEST(Recompute, InPlaceOperatorsInsideARegionAreReplayed) {
  torch::nn::Sequential net(torch::nn::Linear(4, 8), torch::nn::ReLU(torch::nn::ReLUOptions(true)),
                            torch::nn::Linear(8, 8), torch::nn::Sigmoid(), torch::nn::Linear(8, 2));
  const auto x = torch::randn({3, 4});
  const auto forward = [&](const at::Tensor& input) {
    auto h = net->forward(input);
    auto wide = h.repeat({1, 3});
    wide.narrow(1, 0, 2).mul_(2.0);
    wide.sigmoid_();
    return wide * wide;
  };
  const auto expected = gradients(*net, x, [&](const at::Tensor& input) { return forward(input).sum(); });
  expect_equal(gradients(*net, x, [&](const at::Tensor& input) { return recompute(forward, input).sum(); }), expected);
}

TEST(Recompute, RecurrentNetsAndEmbeddingsGiveTheSameBits) {
  torch::nn::LSTM lstm(torch::nn::LSTMOptions(5, 6).num_layers(2).dropout(0.2).batch_first(true));
  torch::nn::GRU gru(torch::nn::GRUOptions(6, 4).batch_first(true));
  struct Both : torch::nn::Module {};
  Both net;
  net.register_module("lstm", lstm);
  net.register_module("gru", gru);
  const auto x = torch::randn({2, 4, 5});
  const auto forward = [&](const at::Tensor& input) {
    return std::get<0>(gru->forward(std::get<0>(lstm->forward(input)))).pow(2);
  };
  const auto expected = gradients(net, x, [&](const at::Tensor& input) { return forward(input).sum(); });
  expect_equal(gradients(net, x, [&](const at::Tensor& input) { return recompute(forward, input).sum(); }), expected);
}

TEST(Recompute, UnderAutocastReplaysInTheDtypesOfForward) {
  auto net = mlp();
  const auto x = torch::randn({5, 6});
  const auto run = [&](bool with) {
    return gradients(*net, x, [&](const at::Tensor& input) {
      at::autocast::set_autocast_dtype(at::kCPU, at::kBFloat16);
      at::autocast::set_autocast_enabled(at::kCPU, true);
      const auto y = with ? recompute([&] { return net->forward(input); }) : net->forward(input);
      at::autocast::clear_cache();
      at::autocast::set_autocast_enabled(at::kCPU, false);
      return y.to(at::kFloat).pow(2).sum();
    });
  };
  expect_equal(run(true), run(false));
}

// Copies in low precision wait for products; other operators that read a bias or a scale are replayed as ever.
TEST(Recompute, CopiesOfParametersForAutocastKeepNoActivations) {
  torch::manual_seed(3);
  torch::nn::Sequential net(torch::nn::LayerNorm(torch::nn::LayerNormOptions({6})), torch::nn::Linear(6, 16),
                            torch::nn::GELU(), torch::nn::Linear(16, 6), torch::nn::Tanh());
  const at::Tensor input = torch::randn({4, 6});
  Tensors found;
  const auto run = [&](bool again) {
    found = gradients(*net, input, [&](const at::Tensor& x) {
      const precision::Autocast scope(c10::kCPU, precision::AutocastOptions{.dtype = at::kBFloat16});
      const auto forward = [&](const at::Tensor& rows) { return net->forward(rows); };
      return (again ? recompute(forward, x) : forward(x)).to(at::kFloat).square().sum();
    });
  };
  const int64_t dropped = count_dropped([&] { run(true); });
  const precision::LivingCasts casts(*net);
  EXPECT_EQ(count_dropped([&] { run(true); }), dropped - 2);  // the weights of two layers are the copies' own
  const Tensors again = found;
  run(false);
  expect_equal(again, found);
}

TEST(Recompute, ABackwardUnderAutocastReplaysInTheDtypesOfForward) {
  auto net = mlp();
  const auto x = torch::randn({5, 6});
  const auto run = [&](bool with) {
    torch::manual_seed(7);
    net->zero_grad();
    const auto loss = (with ? recompute([&] { return net->forward(x); }) : net->forward(x)).pow(2).sum();
    at::autocast::set_autocast_dtype(at::kCPU, at::kBFloat16);
    at::autocast::set_autocast_enabled(at::kCPU, true);
    loss.backward();
    at::autocast::clear_cache();
    at::autocast::set_autocast_enabled(at::kCPU, false);
    Tensors found;
    for (const auto& parameter : net->parameters()) found.push_back(parameter.grad().clone());
    return found;
  };
  expect_equal(run(true), run(false));
}

TEST(Recompute, RetainedGraphsAndSecondDerivativesWork) {
  auto net = mlp();
  net->eval();
  const auto x = torch::randn({5, 6});
  const auto weight = net->parameters()[0];
  const auto second = [&](bool with) {
    net->zero_grad();
    const auto y = with ? recompute([&] { return net->forward(x); }) : net->forward(x);
    const auto first = torch::autograd::grad({y.pow(2).sum()}, {weight}, {}, true, true)[0];
    first.pow(2).sum().backward();
    return weight.grad().clone();
  };
  EXPECT_TRUE(second(true).allclose(second(false)));
  net->zero_grad();
  const auto y = recompute([&] { return net->forward(x); }).sum();
  y.backward({}, true);
  const auto once = weight.grad().clone();
  y.backward();
  EXPECT_TRUE(weight.grad().equal(once * 2));
}

TEST(Recompute, AnInputChangedInPlaceIsAnErrorAsWithoutRecompute) {
  auto net = mlp();
  net->eval();
  auto x = torch::randn({5, 6});
  const auto y = recompute([&] { return net->forward(x); }).sum();
  x.add_(1);
  try {
    y.backward();
    FAIL() << "no error";
  } catch (const c10::Error& error) {
    EXPECT_NE(std::string(error.what()).find("modified by an inplace operation"), std::string::npos);
  }
}

TEST(Recompute, TheMaskOfADropoutIsDroppedAsBefore) {
  const auto x = torch::randn({64, 64}).requires_grad_();

  const int64_t dropped = count_dropped([&] { recompute([&] { return torch::dropout(x * 2, 0.5, true).sin(); }); });

  EXPECT_GE(dropped, 2);  // the mask, and the argument of sin
}

TEST(Recompute, AutogradFunctionsAndExceptionsInsideARegion) {
  struct Cube : torch::autograd::Function<Cube> {
    static at::Tensor forward(torch::autograd::AutogradContext* context, const at::Tensor& x) {
      context->save_for_backward({x});
      return x * x * x;
    }
    static Tensors backward(torch::autograd::AutogradContext* context, const Tensors& outer) {
      const auto x = context->get_saved_variables()[0];
      return {outer[0] * 3 * x * x};
    }
  };
  auto net = mlp();
  net->eval();
  const auto x = torch::randn({5, 6});
  const auto forward = [&](const at::Tensor& input) { return torch::tanh(Cube::apply(net->forward(input))); };
  const auto expected = gradients(*net, x, [&](const at::Tensor& input) { return forward(input).sum(); });
  EXPECT_THROW(recompute([&] { return net->forward(torch::randn({5, 7})); }), c10::Error);
  expect_equal(gradients(*net, x, [&](const at::Tensor& input) { return recompute(forward, input).sum(); }), expected);
}

// A random program over tensors of 4 x 6, with views, operators in place and random numbers. It changes nothing that it
// is given.
at::Tensor random_program(uint64_t seed, const Tensors& weights, const at::Tensor& input) {
  std::mt19937_64 random(seed);
  const auto below = [&](size_t n) { return static_cast<size_t>(random() % n); };
  Tensors pool{input * 1.5, input + 1};
  for (int step = 0; step < 14; ++step) {
    at::Tensor a = pool[below(pool.size())];
    const at::Tensor b = pool[below(pool.size())], weight = weights[below(weights.size())];
    switch (below(16)) {
      case 0:
        a = torch::nn::functional::linear(a, weight);
        break;
      case 1:
        a = torch::gelu(a);
        break;
      case 2:
        a = a * b;
        break;
      case 3:
        a = torch::dropout(a, 0.3, true);
        break;
      case 4:
        a = torch::layer_norm(a, {6});
        break;
      case 5:
        a = torch::softmax(a, 1);
        break;
      case 6:
        a = torch::cat({a.narrow(1, 3, 3), b.narrow(1, 0, 3)}, 1);
        break;
      case 7:
        a = a.t().contiguous().matmul(b).matmul(a.t()).narrow(1, 0, 4).matmul(a.narrow(0, 0, 4)).narrow(0, 0, 4) * 0.01;
        break;
      case 8:
        a.tanh_();
        break;
      case 9:
        a.narrow(1, below(3), 2).mul_(0.5);
        break;
      case 10:
        a.add_(b.clone(), 0.3);
        break;
      case 11:
        a = a.clone();  // parts count versions of their own, so nothing may have kept the whole
        a.unsafe_chunk(2, 1)[below(2)].sigmoid_();
        break;
      case 12:
        a = a.clone().relu_();
        break;
      case 13:
        a = a.index_select(0, torch::randperm(4));
        break;
      case 14:
        a = torch::where(a > 0, a, b * 0.1);
        break;
      default:
        a = a.transpose(0, 1).reshape({6, 4}).t().add(b);
        break;
    }
    pool.push_back(a);
  }
  at::Tensor sum = pool.front();
  for (const auto& tensor : pool) sum = sum + tensor.tanh();
  return sum;
}

// LeakSanitizer, where the program has it, forgives this thread's allocations while it lives.
struct IgnoredLeaks {
  IgnoredLeaks() {
    if (__lsan_disable != nullptr) __lsan_disable();
  }
  ~IgnoredLeaks() {
    if (__lsan_enable != nullptr) __lsan_enable();
  }
};

TEST(Recompute, RandomProgramsGiveTheSameBits) {
  struct Weights : torch::nn::Module {
    Weights() {
      for (int i = 0; i < 2; ++i)
        all.push_back(register_parameter("w" + std::to_string(i), torch::randn({6, 6}) * 0.4));
    }
    Tensors all;
  };
  torch::manual_seed(4);
  Weights net;
  const auto x = torch::randn({4, 6});
  int compared = 0;
  for (uint64_t seed = 0; seed < 300; ++seed) {
    const auto program = [&](const at::Tensor& input) { return random_program(seed, net.all, input); };
    Tensors expected;
    try {
      const IgnoredLeaks libtorchs_own;  // of graphs whose backward fails
      expected = gradients(net, x, [&](const at::Tensor& input) { return program(input).pow(2).sum(); });
    } catch (const c10::Error&) {
      continue;  // the program changes in place what its own gradients need
    }
    SCOPED_TRACE("seed " + std::to_string(seed));
    expect_equal(gradients(net, x, [&](const at::Tensor& input) { return recompute(program, input).pow(2).sum(); }),
                 expected);
    ++compared;
  }
  EXPECT_GT(compared, 80);
}

TEST(Recompute, RegionsNest) {
  auto net = mlp();
  const auto x = torch::randn({5, 6});
  const auto expected =
      gradients(*net, x, [&](const at::Tensor& input) { return torch::tanh(net->forward(input)).sum(); });
  expect_equal(
      gradients(*net, x,
                [&](const at::Tensor& input) {
                  return recompute([&] { return torch::tanh(recompute([&] { return net->forward(input); })); }).sum();
                }),
      expected);
}

// The library that holds Python's autograd is stood in for by an empty one of its name.
HASTEN_PROCESS_CASE(beside_pythons_autograd) {
  const auto* const before = &torch::autograd::Engine::get_default_engine();
  auto linear = torch::nn::Linear(2, 2);
  try {
    RecomputeRegion region;
  } catch (const UsageError& error) {
    std::cout << error.what() << std::endl;
  }
  linear(torch::ones({1, 2})).sum().backward();
  return before == &torch::autograd::Engine::get_base_engine() ? 0 : 1;
}

TEST(Recompute, LeavesPythonsAutogradEngineInPlaceAndSaysSo) {
  if (testing::kSanitized) GTEST_SKIP() << "a sanitizer has to be the first library of a process";

  const auto result = testing::run_processes(1, "beside_pythons_autograd", {{"LD_PRELOAD", HASTEN_PYTHON_STAND_IN}})[0];

  EXPECT_EQ(result.exit_code, 0) << result.output;
  EXPECT_THAT(result.output, HasSubstr("Python's autograd engine serves this process"));
}

}  // namespace
}  // namespace hasten::parallel
