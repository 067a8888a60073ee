#include "hasten/parallel/model/channels_last.h"

#include <gtest/gtest.h>
#include <torch/torch.h>

#include "hasten/parallel/ddp/backward.h"
#include "hasten/parallel/ddp/ddp.h"
#include "support/models.h"
#include "support/ranks.h"

namespace hasten::parallel {
namespace {

using process::Process;
using testing::Cnn;

bool is_channels_last(const at::Tensor& tensor) {
  return tensor.suggest_memory_format() == at::MemoryFormat::ChannelsLast;
}

TEST(ChannelsLast, ReordersWeightsAndChangesNoValue) {
  Cnn plain, model;
  testing::initialise(*plain, 5);
  testing::initialise(*model, 5);
  channels_last(model);

  EXPECT_TRUE(is_channels_last(model->conv->weight));  // of one channel, so only its strides tell
  EXPECT_TRUE(torch::equal(model->conv->weight, plain->conv->weight));
  EXPECT_TRUE(model->conv->weight.requires_grad() && model->conv->weight.is_leaf());
  EXPECT_TRUE(torch::equal(model->head->weight, plain->head->weight));
  const at::Tensor images = torch::arange(3 * 64).view({3, 1, 8, 8}).to(at::kFloat).sin();
  EXPECT_TRUE(is_channels_last(model->conv(images)));
  EXPECT_FALSE(is_channels_last(plain->conv(images)));
  EXPECT_TRUE(torch::allclose(model(images), plain(images), 1e-4, 1e-5));
}

TEST(ChannelsLast, ReordersVolumesAndBuffers) {
  torch::nn::Sequential model(torch::nn::Conv3d(2, 3, 3));
  model->register_buffer("mask", torch::ones({1, 2, 3, 3}));
  channels_last(*model);

  EXPECT_EQ(model->parameters()[0].suggest_memory_format(), at::MemoryFormat::ChannelsLast3d);
  EXPECT_TRUE(is_channels_last(model->buffers()[0]));
}

TEST(ChannelsLastRanks, TrainOnSeveralRanksAsOnOne) {
  const at::Tensor images = torch::arange(24 * 64).view({24, 1, 8, 8}).to(at::kDouble).sin();
  const auto train = [&](const comm::Group& group, bool reordered, std::optional<int64_t> in_place_bytes) {
    Cnn model;
    testing::initialise(*model, 5);
    model->to(at::kDouble);
    model->eval();
    if (reordered) channels_last(model);
    DdpOptions options;
    options.in_place_bytes = in_place_bytes;
    const Ddp::Models models{std::make_shared<const Ddp>(*model, group, options)};
    torch::optim::Adam adam(model->parameters(), 0.01);
    for (int step = 0; step < 5; ++step) {
      adam.zero_grad();
      const auto rows = images.chunk(group.world_size())[group.rank()];
      backward(model(rows).square().mean(), {}, {.models = models, .group = group});
      EXPECT_EQ(is_channels_last(model->conv->weight.grad()), reordered);
      adam.step();
    }
    return torch::nn::utils::parameters_to_vector(model->parameters()).detach();
  };
  const at::Tensor expected = train(comm::Group(), false, std::nullopt);
  for (const std::optional<int64_t> in_place_bytes : {std::optional<int64_t>(), std::optional<int64_t>(1)}) {
    testing::run_ranks(3, [&](Process& process) {
      const at::Tensor found = train(process.group(), true, in_place_bytes);
      EXPECT_TRUE(torch::allclose(found, expected, 1e-9, 1e-9)) << (found - expected).abs().max();
    });
  }
}

}  // namespace
}  // namespace hasten::parallel
