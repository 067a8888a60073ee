// A module's tensors in Python's order.
#include "hasten/checkpoint/state_dict.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <torch/torch.h>

#include "hasten/core/error.h"
#include "support/folder.h"

namespace hasten::checkpoint {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;

struct OwnImpl : torch::nn::Module {
  OwnImpl() {
    inner = register_module("inner", torch::nn::Sequential(torch::nn::Linear(2, 3), torch::nn::BatchNorm1d(3)));
    scale = register_parameter("scale", torch::ones({1}));
    shift = register_buffer("shift", torch::zeros({1}));
  }
  torch::nn::Sequential inner{nullptr};
  at::Tensor scale, shift;
};

TEST(StateDict, ParametersThenBuffersThenChildrenAsInPython) {
  const OwnImpl net;

  const auto state = state_dict(net);

  EXPECT_THAT(state.names(),
              ElementsAre("scale", "shift", "inner.0.weight", "inner.0.bias", "inner.1.weight", "inner.1.bias",
                          "inner.1.running_mean", "inner.1.running_var", "inner.1.num_batches_tracked"));
  EXPECT_FALSE(state.at("scale").requires_grad());
  EXPECT_EQ(state.at("scale").data_ptr(), net.scale.data_ptr());
  EXPECT_THAT(
      state.versions,
      ElementsAre(std::pair<std::string, int64_t>("", 1), std::pair<std::string, int64_t>("inner", 1),
                  std::pair<std::string, int64_t>("inner.0", 1), std::pair<std::string, int64_t>("inner.1", 2)));
}

TEST(StateDict, ExcludedNamesAndPrefixes) {
  const OwnImpl net;

  const auto state = state_dict(net, {.prefix = "net.", .exclude = {"shift", "inner.*.running_*"}});

  EXPECT_THAT(state.names(), ElementsAre("net.scale", "net.inner.0.weight", "net.inner.0.bias", "net.inner.1.weight",
                                         "net.inner.1.bias", "net.inner.1.num_batches_tracked"));
}

TEST(StateDict, AMissingNameIsNamedWithTheNearest) {
  EXPECT_THAT(testing::words_of<UsageError>([] { state_dict(OwnImpl()).at("scael"); }),
              HasSubstr("did you mean 'scale'"));
}

TEST(StateDict, CopiesFollowTheOptions) {
  const OwnImpl net;

  EXPECT_TRUE(converted(state_dict(net), 1, {.rank0_only = true}).empty());
  const auto half = converted(state_dict(net), 0, {.device = c10::Device(c10::kCPU), .dtype = at::kHalf});
  EXPECT_EQ(half.at("scale").scalar_type(), at::kHalf);
  EXPECT_EQ(half.at("inner.1.num_batches_tracked").scalar_type(), at::kLong);
}

}  // namespace
}  // namespace hasten::checkpoint
