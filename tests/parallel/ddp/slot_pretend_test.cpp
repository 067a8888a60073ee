// Gradients in buckets of a device begin where its kernels read 16 bytes at once.
#include "parallel/ddp/slot.h"

#include <gtest/gtest.h>
#include <torch/torch.h>

#include "parallel/shard/trained.h"
#include "support/device.h"

namespace hasten::parallel {
namespace {

TEST(SlotsOnDevices, BeginAtMultiplesOfSixteenBytes) {
  std::vector<at::Tensor> here, there, doubles;
  for (const int64_t count : {1, 3, 4, 5}) {
    here.push_back(torch::zeros({count}));
    there.push_back(here.back().to(testing::kGpu));
    doubles.push_back(there.back().to(at::kDouble));
  }
  const auto place = [](const std::vector<at::Tensor>& parameters) {
    std::vector<int64_t> offsets;
    const int64_t end = place_slots(parameters, nullptr, offsets);
    offsets.push_back(end);
    return offsets;
  };

  EXPECT_EQ(place(here), (std::vector<int64_t>{0, 1, 4, 8, 13}));
  EXPECT_EQ(place(there), (std::vector<int64_t>{0, 4, 8, 12, 17}));
  EXPECT_EQ(place(doubles), (std::vector<int64_t>{0, 2, 6, 10, 15}));
}

TEST(SlotsOnDevices, GradientsOfOddSizesAreAlignedBehindABackward) {
  shard_testing::run_ranks(2, [](auto& process) {
    const c10::Device device(at::kCUDA, static_cast<c10::DeviceIndex>(process.group().rank()));
    torch::nn::Sequential net(torch::nn::Linear(3, 5), torch::nn::Linear(5, 7), torch::nn::Linear(7, 1));
    net->to(device);
    const auto ddp = std::make_shared<const Ddp>(*net, process.group());

    backward(net->forward(torch::ones({2, 3}, device)).sum(), {}, {.models = {ddp}, .group = process.group()});

    for (const auto& item : net->named_parameters()) {
      EXPECT_EQ(reinterpret_cast<uintptr_t>(item.value().grad().const_data_ptr()) % 16, 0U) << item.key();
    }
    process.group().barrier();
  });
}

}  // namespace
}  // namespace hasten::parallel
