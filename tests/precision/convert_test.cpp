// Casts of a model's buffers: which of them change, and which stay.
#include "hasten/precision/convert.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <torch/torch.h>

#include "hasten/core/error.h"
#include "support/folder.h"

namespace hasten::precision {
namespace {

struct BuffersImpl : torch::nn::Module {
  BuffersImpl() {
    register_module("norm", norm);
    register_module("route", route);
    scale = register_buffer("scale", torch::full({2}, 1.0 + 1.0 / 512));
    count = register_buffer("count", torch::zeros({1}, at::kLong));
    route->register_buffer("bias_correction", torch::ones({2}));
  }
  at::Tensor scale, count;
  torch::nn::BatchNorm1d norm{2};
  torch::nn::Sequential route;
};
TORCH_MODULE(Buffers);

TEST(CastBuffers, FloatingOnesAreCastInPlaceButNotStatistics) {
  Buffers net;

  EXPECT_EQ(cast_buffers(*net, {.dtype = at::kBFloat16}), 2);

  // The module's own member is the same tensor.
  EXPECT_EQ(net->scale.scalar_type(), at::kBFloat16);
  EXPECT_EQ(net->scale[0].item<float>(), 1.0F);
  EXPECT_EQ(net->named_buffers()["route.bias_correction"].scalar_type(), at::kBFloat16);
  EXPECT_EQ(net->count.scalar_type(), at::kLong);
  EXPECT_EQ(net->norm->running_mean.scalar_type(), at::kFloat);
  EXPECT_EQ(cast_buffers(*net, {.dtype = at::kBFloat16}), 0);
}

TEST(CastBuffers, NamesThatMatchStayOrBecomeFloat32) {
  Buffers net;
  net->scale.set_data(net->scale.to(at::kHalf));

  EXPECT_EQ(cast_buffers(*net, {.dtype = at::kBFloat16, .keep_float32 = {"route*correction"}}), 1);
  EXPECT_EQ(net->named_buffers()["route.bias_correction"].scalar_type(), at::kFloat);
  // Without a dtype for the others.
  EXPECT_EQ(cast_buffers(*net, {.keep_float32 = {"scale", "bias_correction"}}), 1);
  EXPECT_EQ(net->scale.scalar_type(), at::kFloat);
  EXPECT_EQ(cast_buffers(*net, {}), 0);
  EXPECT_THAT(testing::words_of<UsageError>([&] { cast_buffers(*net, {.keep_float32 = {"rou(te"}}); }),
              ::testing::HasSubstr("'rou(te'"));
}

TEST(CastBuffers, AModelOnTheStackIsCastToo) {
  struct Net : torch::nn::Module {
    Net() { register_buffer("table", torch::ones({2})); }
  } net;
  EXPECT_EQ(cast_buffers(net, {.dtype = at::kHalf}), 1);
  EXPECT_EQ(net.buffers()[0].scalar_type(), at::kHalf);
}

}  // namespace
}  // namespace hasten::precision
