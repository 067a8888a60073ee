// Regions in which the ranks communicate.
#include <ATen/CPUGeneratorImpl.h>
#include <gtest/gtest.h>
#include <torch/torch.h>

#include "hasten/comm/group/group.h"
#include "hasten/parallel/recompute/recompute.h"
#include "support/ranks.h"

namespace hasten::parallel {
namespace {

TEST(RecomputeRanks, ACollectiveInPlaceInsideARegionGivesTheGradientsOfThePlainRun) {
  testing::run_ranks(2, [](process::Process& process) {
    const comm::Group group = process.group();
    const auto generator = at::make_generator<at::CPUGeneratorImpl>(3);
    const at::Tensor start = torch::randn({8, 8}, generator);
    const at::Tensor input = torch::randn({4, 8}, generator) * (process.rank() + 1.0);
    using Change = std::function<void(const at::Tensor&)>;
    const std::vector<Change> changes = {
        [&](const at::Tensor& largest) { group.all_reduce_(largest, comm::ReduceOp::kMax); },
        [&](const at::Tensor& largest) { group.broadcast_(largest, 1); },
        [&](const at::Tensor& largest) { process.rank() == 0 ? group.send(largest, 1) : group.receive_(largest, 0); },
    };
    for (const Change& change : changes) {
      const auto gradient = [&](bool region) {
        const at::Tensor weight = start.clone().requires_grad_();
        const auto forward = [&](const at::Tensor& x) {
          const at::Tensor h = at::matmul(x, weight), largest = h.detach().abs().amax();
          change(largest);
          return at::matmul((h / largest).sin(), weight);
        };
        const at::Tensor y = region ? recompute(forward, input) : forward(input);
        y.sum().backward();
        return weight.grad().clone();
      };

      EXPECT_TRUE(gradient(true).equal(gradient(false)));
    }
  });
}

}  // namespace
}  // namespace hasten::parallel
