// Parameters in one memory: writes are seen by all, HogWild of one is the plain loop, what cannot be shared is refused.
#include "hasten/parallel/share/share_parameters.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <torch/torch.h>

#include <mutex>

#include "support/ranks.h"

namespace hasten::parallel {
namespace {

using hasten::testing::run_ranks;
using hasten::testing::run_ranks_collecting;

struct TiedNet : torch::nn::Module {
  TiedNet() { register_parameter("tied", fc->weight); }
  at::Tensor forward(const at::Tensor& x) { return fc(x); }
  torch::nn::Linear fc = register_module("fc", torch::nn::Linear(3, 2));
  at::Tensor count = register_buffer("count", torch::zeros({1}, at::kLong));
};

TEST(ShareParameters, AllRanksSeeRankZerosValuesAndEachOthersWrites) {
  run_ranks(3, [](process::Process& process) {
    TiedNet net;
    const at::Tensor weight = net.fc->weight;
    const at::NoGradGuard no_grad;
    weight.fill_(process.rank() + 1);

    share_parameters_(net, process.group());

    EXPECT_TRUE(at::equal(weight, at::ones({2, 3}))) << "the tensor is the same object, with rank 0's values";
    process.group().barrier();
    weight[process.rank() % 2][process.rank()] = 10 + process.rank();
    process.group().barrier();
    EXPECT_EQ(weight[0][0].item<float>(), 10);
    EXPECT_EQ(weight[1][1].item<float>(), 11);
    EXPECT_EQ(weight[0][2].item<float>(), 12);
    EXPECT_EQ(net.named_parameters()["tied"].data_ptr(), weight.data_ptr());
    process.group().barrier();
  });
}

TEST(ShareParameters, StepsOfAllRanksAddUpAndGradientsStayOnesOwn) {
  run_ranks(2, [](process::Process& process) {
    torch::nn::Linear net(4, 1);
    {
      const at::NoGradGuard no_grad;
      net->weight.zero_();
    }
    share_parameters_(*net, process.group());
    torch::optim::SGD optimizer(net->parameters(), torch::optim::SGDOptions(1.0));
    for (int turn = 0; turn < 2; ++turn) {
      if (turn == process.rank()) {
        net->zero_grad();
        net->weight.sum().backward();
        optimizer.step();
      }
      process.group().barrier();
    }

    EXPECT_TRUE(at::equal(net->weight.detach(), at::full({1, 4}, -2.0f)));
    EXPECT_TRUE(at::equal(net->weight.grad(), at::ones({1, 4})));
  });
}

TEST(ShareParameters, HogWildOfOneProcessIsThePlainLoop) {
  torch::nn::Linear net(4, 1);
  const void* before = net->weight.data_ptr();

  share_parameters_(*net, comm::Group());

  EXPECT_EQ(net->weight.data_ptr(), before);
}

TEST(ShareParameters, ViewsOtherShapesAndSeveralHostsAreRefusedOnAllRanks) {
  const auto views = run_ranks_collecting(2, [](process::Process& process) {
    torch::nn::Linear net(4, 2);
    if (process.rank() == 1) net->weight.set_data(torch::zeros({2, 8}).slice(1, 0, 4));
    share_parameters_(*net, process.group());
  });
  const auto shapes = run_ranks_collecting(2, [](process::Process& process) {
    torch::nn::Linear net(4 + process.rank(), 2);
    share_parameters_(*net, process.group());
  });
  const auto hosts = run_ranks_collecting(
      2,
      [](process::Process& process) {
        torch::nn::Linear net(4, 2);
        share_parameters_(*net, process.group());
      },
      {.adjust = [](int rank, comm::GroupOptions& options) { options.host = "host" + std::to_string(rank); }});

  for (size_t rank = 0; rank < 2; ++rank) {
    EXPECT_THAT(views[rank], ::testing::HasSubstr("'weight' is a view"));
    EXPECT_THAT(shapes[rank], ::testing::HasSubstr("rank 0 and rank 1 differ"));
    EXPECT_THAT(hosts[rank], ::testing::HasSubstr("needs all ranks on one host"));
  }
}

}  // namespace
}  // namespace hasten::parallel
