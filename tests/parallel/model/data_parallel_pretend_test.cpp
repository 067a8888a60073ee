// Threads of data_parallel on several GPUs: they have the device and the streams of the thread that starts them.
#include "hasten/parallel/model/data_parallel.h"

#include <c10/core/DeviceGuard.h>
#include <c10/core/StreamGuard.h>
#include <c10/core/impl/VirtualGuardImpl.h>
#include <gtest/gtest.h>
#include <torch/torch.h>

#include <map>
#include <mutex>
#include <vector>

namespace hasten::parallel {
namespace {

c10::Device gpu(int index) {
  return {c10::kCUDA, static_cast<c10::DeviceIndex>(index)};
}

TEST(DataParallelOnDevices, ThreadsBeginWithTheDeviceAndStreamsOfTheOneThatStartsThem) {
  const c10::impl::VirtualGuardImpl cuda(c10::kCUDA);
  const c10::DeviceGuard on_device(gpu(2));
  const auto other = cuda.getStreamFromGlobalPool(gpu(1));
  const c10::StreamGuard on_stream(other);  // makes its device current
  cuda.setDevice(gpu(2));
  std::vector<c10::Device> devices(3, gpu(0));
  std::vector<c10::Stream> streams(3, cuda.getDefaultStream(gpu(1)));

  detail::run_in_threads(3, [&](size_t i) {
    devices[i] = cuda.getDevice();
    streams[i] = cuda.getStream(gpu(1));
  });

  EXPECT_EQ(devices, std::vector<c10::Device>(3, gpu(2)));
  EXPECT_EQ(streams, std::vector<c10::Stream>(3, other));
}

// Makes a tensor on the current device, and beside each forward writes down which one that is.
struct ScaledImpl : torch::nn::Cloneable<ScaledImpl> {
  ScaledImpl() { reset(); }
  void reset() override { linear = register_module("linear", torch::nn::Linear(4, 2)); }
  at::Tensor forward(const at::Tensor& x) {
    {
      const std::lock_guard lock(seen->mutex);
      seen->current[x.device().index()] = c10::impl::VirtualGuardImpl(c10::kCUDA).getDevice().index();
    }
    return linear(x) * torch::full({x.size(0), 1}, 2.F, c10::kCUDA);
  }
  struct Seen {
    std::mutex mutex;
    std::map<int, int> current;
  };
  std::shared_ptr<Seen> seen = std::make_shared<Seen>();
  torch::nn::Linear linear{nullptr};
};
TORCH_MODULE(Scaled);

TEST(DataParallelOnDevices, EachForwardHasItsOwnDeviceAsTheCurrentOne) {
  Scaled alone, model;
  {
    const torch::NoGradGuard no_grad;
    for (size_t i = 0; i < 2; ++i) model->parameters()[i].copy_(alone->parameters()[i]);
  }
  alone->to(gpu(0));
  model->to(gpu(1));
  const auto x = torch::arange(20.).view({5, 4}), on_first = x.to(gpu(0)), on_second = x.to(gpu(1));
  const c10::DeviceGuard elsewhere(gpu(0));

  const auto output = data_parallel(model, {gpu(1), gpu(0), gpu(2)})(on_second);
  output.sum().backward();
  alone->forward(on_first).sum().backward();

  const std::map<int, int> each_its_own = {{0, 0}, {1, 1}, {2, 2}};
  EXPECT_EQ(model->seen->current, each_its_own);
  EXPECT_EQ(output.device(), gpu(1));
  EXPECT_EQ(c10::impl::VirtualGuardImpl(c10::kCUDA).getDevice(), gpu(0));
  for (size_t i = 0; i < 2; ++i) {
    EXPECT_TRUE(torch::allclose(model->parameters()[i].grad().cpu(), alone->parameters()[i].grad().cpu()));
  }
}

}  // namespace
}  // namespace hasten::parallel
