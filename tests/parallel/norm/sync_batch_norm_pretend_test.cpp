// SyncBatchNorm of ranks with a pretend GPU each: gradients by CUDA's kernels are those of one process on all rows.
#include "hasten/parallel/norm/sync_batch_norm.h"

#include <c10/core/DeviceGuard.h>
#include <gtest/gtest.h>
#include <torch/torch.h>

#include "support/device.h"
#include "support/nccl_double.h"
#include "support/ranks.h"

namespace hasten::parallel {
namespace {

struct Gradients {
  at::Tensor x, weight, bias;
};

Gradients backward_of(torch::nn::BatchNorm2d norm, const at::Tensor& rows, const at::Tensor& factors) {
  const at::Tensor x = rows.detach().clone().requires_grad_();
  (norm(x) * factors).sum().backward();
  return {x.grad().cpu(), norm->weight.grad().cpu(), norm->bias.grad().cpu()};
}

void expect_ranks_equal_one(bool channels_last) {
  torch::manual_seed(2);
  auto rows = torch::randn({6, 4, 5, 3}), factors = torch::randn({6, 4, 5, 3});
  if (channels_last) rows = rows.contiguous(at::MemoryFormat::ChannelsLast);
  const auto wanted = backward_of(torch::nn::BatchNorm2d(4), rows, factors);
  std::vector<torch::nn::BatchNorm2d> norms;
  for (int i = 0; i < 2; ++i) norms.emplace_back(4);
  std::vector<Gradients> found(2);

  const testing::UsesNcclDouble with_double;
  testing::run_ranks(2,
                     [&](process::Process& process) {
                       const auto rank = static_cast<size_t>(process.rank());
                       const c10::Device device(c10::kCUDA, static_cast<c10::DeviceIndex>(rank));
                       const c10::DeviceGuard guard(device);
                       // Uneven shares: two rows and four.
                       const int64_t begin = rank == 0 ? 0 : 2, count = rank == 0 ? 2 : 4;
                       norms[rank]->to(device);
                       convert_sync_batchnorm(*norms[rank], process.group());
                       found[rank] = backward_of(norms[rank], rows.narrow(0, begin, count).to(device),
                                                 factors.narrow(0, begin, count).to(device));
                     },
                     {.check = false});

  testing::expect_near({torch::cat({found[0].x, found[1].x})}, {wanted.x}, 1e-4);
  testing::expect_near({found[0].weight + found[1].weight}, {wanted.weight}, 1e-4);
  testing::expect_near({found[0].bias + found[1].bias}, {wanted.bias}, 1e-4);
}

TEST(SyncBatchNormOnDevices, GradientsAreThoseOfAllRows) {
  expect_ranks_equal_one(false);
}

TEST(SyncBatchNormOnDevices, GradientsOfChannelsLastAreToo) {
  expect_ranks_equal_one(true);
}

// A rank without data answers the others' statistics from a thread of its own.
TEST(SyncBatchNormOnDevices, ARankWithoutDataAnswersOnItsDevice) {
  const testing::UsesNcclDouble with_double;
  testing::run_ranks(2,
                     [&](process::Process& process) {
                       const c10::Device device(c10::kCUDA, static_cast<c10::DeviceIndex>(process.rank()));
                       const c10::DeviceGuard guard(device);
                       torch::nn::BatchNorm1d norm(3);
                       norm->to(device);
                       convert_sync_batchnorm(*norm, process.group());
                       const UnevenBatchNorms uneven(*norm);
                       if (process.rank() == 0) {
                         const at::Tensor rows = torch::tensor({{1.F, 2.F, 3.F}, {3.F, 6.F, 5.F}}).to(device);
                         const at::Tensor wanted = torch::tensor({{-1.F, -1.F, -1.F}, {1.F, 1.F, 1.F}});
                         testing::expect_near({norm(rows).detach().cpu()}, {wanted}, 1e-3);
                       }
                       uneven.answer([] {});
                     },
                     {.check = false});

  EXPECT_EQ(testing::UsesNcclDouble::calls_on_other_devices(), 0);
}

}  // namespace
}  // namespace hasten::parallel
