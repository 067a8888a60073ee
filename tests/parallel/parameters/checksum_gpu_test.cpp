// Checksums of tensors on a GPU: equal for equal values, with one wait for all.
#include "hasten/parallel/parameters/checksum.h"

#include <gtest/gtest.h>
#include <torch/torch.h>

#include "support/device.h"

namespace hasten::parallel {
namespace {

using testing::kGpu;

class ChecksumGpu : public testing::OnGpu {};

std::vector<at::Tensor> tensors_on(c10::Device device) {
  auto generator = at::detail::createCPUGenerator(5);
  std::vector<at::Tensor> tensors;
  for (const auto dtype : {at::kFloat, at::kDouble, at::kBFloat16, at::kHalf}) {
    tensors.push_back(at::randn({7, 5}, generator).to(dtype).to(device));
  }
  tensors.push_back(torch::arange(9, at::kLong).to(device));
  tensors.push_back(torch::zeros({0}).to(device));
  tensors.emplace_back();
  return tensors;
}

TEST_F(ChecksumGpu, ANumberIsThatOfEqualValuesAndChangesWithOne) {
  auto there = tensors_on(kGpu);
  const auto before = checksums(there);
  EXPECT_TRUE(before.equal(checksums(tensors_on(kGpu))));
  EXPECT_EQ(before[5].item<int64_t>(), 0);

  there[1][3][2] += 1e-9;
  const auto after = checksums(there);
  EXPECT_NE(after[1].item<int64_t>(), before[1].item<int64_t>());
  EXPECT_EQ(after[0].item<int64_t>(), before[0].item<int64_t>());
}

TEST_F(ChecksumGpu, TheHostWaitsOnceForAllTensors) {
  const auto tensors = tensors_on(kGpu);
  EXPECT_LE(testing::waits_of([&] { checksums(tensors); }), 1);
}

}  // namespace
}  // namespace hasten::parallel
