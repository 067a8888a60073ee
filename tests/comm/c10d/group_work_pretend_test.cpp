// Futures of operations on GPUs, with a double of NCCL that finishes late: streams and devices behind them.
#include <ATen/core/ivalue.h>
#include <c10/core/DeviceGuard.h>
#include <c10/core/StreamGuard.h>
#include <c10/core/impl/VirtualGuardImpl.h>
#include <gtest/gtest.h>
#include <torch/types.h>

#include <functional>
#include <future>
#include <vector>

#include "hasten/comm/c10d/group_backend.h"
#include "support/nccl_double.h"
#include "support/ranks.h"

namespace hasten::comm {
namespace {

using Tensors = GroupBackend::Tensors;
using Future = c10::ivalue::Future;

constexpr int kRanks = 2;

c10::Stream new_stream(c10::Device device) {
  return c10::impl::VirtualGuardImpl(c10::kCUDA).getStreamFromGlobalPool(device);
}

// Runs as ranks of torch.distributed with a GPU each, whose current stream is one of their own.
void run_in_streams(const std::function<void(GroupBackend& backend, c10::Device device)>& fn) {
  const testing::UsesNcclDouble with_double;
  testing::run_ranks(kRanks, [&](process::Process& process) {
    const c10::Device device(c10::kCUDA, static_cast<c10::DeviceIndex>(process.rank()));
    const c10::DeviceGuard on_device(device);
    const c10::StreamGuard in_stream(new_stream(device));
    const auto backend = c10::make_intrusive<GroupBackend>(process.group(), "hasten");
    fn(*backend, device);
  });
}

TEST(GroupWorkOnDevices, AFutureThatWasWaitedForOrdersAnyStreamBehindItsResult) {
  run_in_streams([](GroupBackend& backend, c10::Device device) {
    Tensors tensors{torch::ones({4}, device)};

    const auto future = backend.allreduce(tensors, {})->getFuture();
    const c10::StreamGuard elsewhere(new_stream(device));
    future->wait();

    EXPECT_EQ(future->value().toTensorVector().at(0).sum().item<float>(), 4 * kRanks);
  });
}

TEST(GroupWorkOnDevices, ACallbackOfAFutureRunsBehindItsResultWithItsDeviceAsCurrent) {
  run_in_streams([](GroupBackend& backend, c10::Device device) {
    Tensors tensors{torch::ones({4}, device)};
    std::promise<std::pair<float, c10::Device>> seen;

    const auto future = backend.allreduce(tensors, {})->getFuture();
    future->addCallback([&](Future& done) {
      const at::Tensor doubled = done.value().toTensorVector().at(0) * torch::full({4}, 2.F, c10::kCUDA);
      seen.set_value({doubled.sum().item<float>(), c10::impl::VirtualGuardImpl(c10::kCUDA).getDevice()});
    });

    const auto [sum, current] = seen.get_future().get();
    EXPECT_EQ(sum, 8 * kRanks);
    EXPECT_EQ(current, device);
  });
}

TEST(GroupWorkOnDevices, ResultsOfSeveralTensorsAreBehindOneFuture) {
  run_in_streams([](GroupBackend& backend, c10::Device device) {
    std::vector<Tensors> lists{{torch::zeros({3}, device), torch::zeros({3}, device)}};
    Tensors mine{torch::full({3}, static_cast<float>(backend.getRank() + 1), device)};

    const auto then = backend.allgather(lists, mine, {})
                          ->getFuture()
                          ->then(
                              [](Future& done) {
                                const auto parts = done.value().toTensorVector();
                                return c10::IValue(parts.at(0) + 10 * parts.at(1));
                              },
                              c10::TensorType::get());
    then->wait();

    EXPECT_TRUE(then->value().toTensor().cpu().equal(torch::full({3}, 21.F)));
  });
}

TEST(GroupWorkOnDevices, AFutureOfResultsOnTheHostHasNoDevices) {
  run_in_streams([](GroupBackend& backend, c10::Device) {
    Tensors tensors{torch::ones({4})};

    const auto future = backend.allreduce(tensors, {})->getFuture();
    future->wait();

    EXPECT_TRUE(future->devices().empty());
    EXPECT_EQ(future->value().toTensorVector().at(0).sum().item<float>(), 4 * kRanks);
  });
}

}  // namespace
}  // namespace hasten::comm
