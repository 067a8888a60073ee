// A zoo of libtorch's modules on read-only shared parameters: forward, backward and a step, in float32 and under
// autocast, leave no private copy, so no kernel writes to what it reads. A new libtorch whose kernels do is noticed
// here.
#include <gtest/gtest.h>
#include <torch/torch.h>

#include <cmath>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "hasten/optim/steps/optimizer_step.h"
#include "hasten/parallel/ddp/backward.h"
#include "hasten/parallel/ddp/ddp.h"
#include "hasten/parallel/shard/sharding.h"
#include "hasten/precision/autocast.h"
#include "support/ranks.h"
#include "support/test_device.h"

namespace hasten::parallel {
namespace {

struct Animal {
  std::string name;
  std::shared_ptr<torch::nn::Module> module;
  std::function<at::Tensor()> forward;
};

template <class Holder, class Fn>
Animal animal(const std::string& name, Holder holder, Fn forward) {
  return {name, holder.ptr(), [holder, forward]() mutable -> at::Tensor { return forward(holder); }};
}

// A module of one input, whose output is a tensor.
template <class Holder>
Animal plain(const std::string& name, Holder holder, const at::Tensor& input) {
  return animal(name, holder, [input](Holder& module) { return module->forward(input); });
}

std::vector<Animal> zoo() {
  using namespace torch::nn;
  using testing::here;
  const auto rows = here(torch::randn({6, 8})), series = here(torch::randn({2, 4, 12})),
             image = here(torch::randn({2, 4, 8, 8})), volume = here(torch::randn({1, 4, 4, 4, 4}));
  const auto steps = here(torch::randn({5, 2, 8})), ids = here(torch::randint(10, {6}, torch::kLong));
  std::vector<Animal> all;
  all.push_back(plain("Linear", Linear(8, 5), rows));
  all.push_back(plain("Linear without bias", Linear(LinearOptions(8, 5).bias(false)), rows));
  all.push_back(animal("Bilinear", Bilinear(8, 8, 3), [rows](Bilinear& m) { return m->forward(rows, rows); }));
  all.push_back(plain("Conv1d", Conv1d(Conv1dOptions(4, 6, 3).padding(1)), series));
  all.push_back(plain("Conv2d", Conv2d(Conv2dOptions(4, 6, 3).stride(2)), image));
  all.push_back(plain("Conv2d in groups", Conv2d(Conv2dOptions(4, 8, 3).groups(4)), image));
  all.push_back(plain("Conv2d channels last", Conv2d(4, 6, 3), image.contiguous(at::MemoryFormat::ChannelsLast)));
  all.push_back(plain("Conv3d", Conv3d(Conv3dOptions(4, 3, 2)), volume));
  all.push_back(plain("ConvTranspose1d", ConvTranspose1d(ConvTranspose1dOptions(4, 3, 3)), series));
  all.push_back(plain("ConvTranspose2d", ConvTranspose2d(ConvTranspose2dOptions(4, 3, 3).stride(2)), image));
  all.push_back(plain("ConvTranspose3d", ConvTranspose3d(ConvTranspose3dOptions(4, 3, 2)), volume));
  all.push_back(plain("BatchNorm1d", BatchNorm1d(8), rows));
  all.push_back(plain("BatchNorm2d", BatchNorm2d(4), image));
  all.push_back(plain("BatchNorm3d", BatchNorm3d(4), here(torch::randn({2, 4, 3, 3, 3}))));
  all.push_back(plain("InstanceNorm2d", InstanceNorm2d(InstanceNorm2dOptions(4).affine(true)), image));
  all.push_back(plain("GroupNorm", GroupNorm(GroupNormOptions(2, 4)), image));
  all.push_back(plain("LayerNorm", LayerNorm(LayerNormOptions({8})), rows));
  all.push_back(plain("PReLU", PReLU(), rows));
  all.push_back(plain("Embedding", Embedding(10, 8), ids));
  all.push_back(
      animal("EmbeddingBag", EmbeddingBag(EmbeddingBagOptions(10, 8).mode(torch::kSum)), [ids](EmbeddingBag& m) {
        return m->forward(ids.view({2, 3}));
      }));
  all.push_back(animal("RNN", RNN(RNNOptions(8, 6)), [steps](RNN& m) { return std::get<0>(m->forward(steps)); }));
  all.push_back(
      animal("GRU", GRU(GRUOptions(8, 6).num_layers(2)), [steps](GRU& m) { return std::get<0>(m->forward(steps)); }));
  all.push_back(animal("LSTM", LSTM(LSTMOptions(8, 6).num_layers(2)),
                       [steps](LSTM& m) { return std::get<0>(m->forward(steps)); }));
  all.push_back(animal("LSTM in two directions", LSTM(LSTMOptions(8, 6).bidirectional(true)),
                       [steps](LSTM& m) { return std::get<0>(m->forward(steps)); }));
  all.push_back(animal("LSTMCell", LSTMCell(8, 6), [rows](LSTMCell& m) { return std::get<0>(m->forward(rows)); }));
  all.push_back(animal("GRUCell", GRUCell(8, 6), [rows](GRUCell& m) { return m->forward(rows); }));
  all.push_back(animal("MultiheadAttention", MultiheadAttention(MultiheadAttentionOptions(8, 2)),
                       [steps](MultiheadAttention& m) { return std::get<0>(m->forward(steps, steps, steps)); }));
  all.push_back(plain("TransformerEncoderLayer",
                      TransformerEncoderLayer(TransformerEncoderLayerOptions(8, 2).dim_feedforward(16)), steps));
  all.push_back(animal("TransformerDecoderLayer",
                       TransformerDecoderLayer(TransformerDecoderLayerOptions(8, 2).dim_feedforward(16)),
                       [steps](TransformerDecoderLayer& m) { return m->forward(steps, steps); }));
  return all;
}

void train_once(Animal& one, process::Process& process, bool low) {
  const std::string name = one.name + (low ? " in bfloat16" : "");
  const auto group = process.group();
  one.module->to(testing::test_device());
  Sharding sharding(group, {.stage = ShardStage::kParameters});
  torch::optim::SGD sgd(one.module->parameters(), 0.1);
  DdpOptions options;
  options.exchange = sharding.make_exchange(group);
  const auto ddp = std::make_shared<const Ddp>(*one.module, group, options);
  for (int step = 0; step < 2; ++step) {
    at::Tensor loss;
    {
      std::optional<precision::Autocast> scope;
      if (low) scope.emplace(testing::test_device().type(), precision::AutocastOptions{.dtype = at::kBFloat16});
      loss = one.forward().to(at::kFloat).square().mean();
    }
    sgd.zero_grad();
    backward(loss, {}, {.models = {ddp}, .group = group});
    EXPECT_EQ(sharding.num_private_copies(), 0) << name << " wrote to a parameter in step " << step;
    sharding.step(sgd, [&] { return optim::optimizer_step(sgd); });
    EXPECT_TRUE(std::isfinite(loss.item<double>())) << name;
  }
  one.module->eval();
  {
    const torch::NoGradGuard no_grad;
    one.forward();
  }
  EXPECT_EQ(sharding.num_private_copies(), 0) << name << " wrote to a parameter in evaluation";
  process.wait_for_everyone();
}

bool processor_has_low_lstm() {
#if defined(__x86_64__)
  return __builtin_cpu_supports("avx512bf16") != 0;
#else
  return false;
#endif
}

TEST(ShardZoo, no_kernel_writes_to_the_parameters_that_it_reads) {
  testing::run_ranks(2, [](auto& process) {
    for (const bool low : {false, true}) {
      for (auto& one : zoo()) {
        // oneDNN has no LSTM in bfloat16 for processors without that type.
        const bool is_lstm = one.name.starts_with("LSTM") && one.name != "LSTMCell";
        // The pretend device has no recurrent kernels.
        const bool is_recurrent = is_lstm || one.name.starts_with("GRU") || one.name.ends_with("Cell");
        if (testing::on_device() && (is_recurrent || one.name == "RNN")) continue;
        if (low && is_lstm && !processor_has_low_lstm()) continue;
        train_once(one, process, low);
      }
    }
  });
}

}  // namespace
}  // namespace hasten::parallel
