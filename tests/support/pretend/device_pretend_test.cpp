// The pretend device: what it computes is the CPU's, and what a GPU may do late it does late.
#include <ATen/core/CachingHostAllocator.h>
#include <c10/core/Event.h>
#include <c10/core/StreamGuard.h>
#include <c10/core/impl/VirtualGuardImpl.h>
#include <gtest/gtest.h>
#include <torch/torch.h>

#include <functional>
#include <tuple>
#include <vector>

#include "support/pretend/counts.h"

namespace hasten::testing::pretend {
namespace {

const c10::Device kGpu(c10::kCUDA, 0);
const auto kPinned = torch::TensorOptions().pinned_memory(true);

c10::impl::VirtualGuardImpl guard() {
  return c10::impl::VirtualGuardImpl(c10::kCUDA);
}
bool all_nan(const at::Tensor& tensor) {
  return tensor.isnan().all().item<bool>();
}

TEST(PretendDevice, IsACudaDeviceToPrograms) {
  EXPECT_TRUE(torch::cuda::is_available());
  EXPECT_EQ(torch::cuda::device_count(), 4u);
  EXPECT_TRUE(torch::ones({2}, kGpu).is_cuda());
  ASSERT_NE(counts(), nullptr);
}

TEST(PretendDevice, KernelsViewsAndReductionsGiveTheCpusBits) {
  const auto a = torch::randn({6, 5}), b = torch::randn({5, 7});
  const auto x = a.to(kGpu), y = b.to(kGpu);

  EXPECT_TRUE(x.mm(y).cpu().equal(a.mm(b)));
  EXPECT_TRUE((x.t() + 1).cpu().equal(a.t() + 1));
  EXPECT_TRUE(x.select(1, 2).sum().cpu().equal(a.select(1, 2).sum()));
  EXPECT_TRUE(x.view({3, 10}).slice(1, 2, 8, 2).contiguous().cpu().equal(a.view({3, 10}).slice(1, 2, 8, 2)));
  EXPECT_TRUE(x.to(torch::kDouble).softmax(1).cpu().equal(a.to(torch::kDouble).softmax(1)));
}

TEST(PretendDevice, WritesThroughViewsArrive) {
  const auto there = torch::zeros({4, 4}, kGpu), here = torch::zeros({4, 4});
  for (const auto& x : {there, here}) {
    x.narrow(0, 1, 2).fill_(3);
    x.t()[0].add_(1);
  }

  EXPECT_TRUE(there.cpu().equal(here));
}

torch::nn::Sequential make_net() {
  torch::manual_seed(1);
  return torch::nn::Sequential(torch::nn::Conv2d(torch::nn::Conv2dOptions(1, 4, 3).padding(1).bias(false)),
                               torch::nn::BatchNorm2d(4), torch::nn::ReLU(), torch::nn::MaxPool2d(2),
                               torch::nn::Flatten(), torch::nn::Linear(4 * 16, 10));
}

// Returns parameters and running statistics after three steps.
std::vector<at::Tensor> train(c10::Device device) {
  auto net = make_net();
  net->to(device);
  torch::optim::AdamW adam(net->parameters(), 1e-2);
  for (int step = 0; step < 3; ++step) {
    torch::manual_seed(step);
    const auto x = torch::randn({8, 1, 8, 8}), target = torch::randint(10, {8});
    adam.zero_grad();
    torch::nn::functional::cross_entropy(net->forward(x.to(device)), target.to(device)).backward();
    adam.step();
  }
  auto all = net->parameters();
  for (const auto& buffer : net->buffers()) all.push_back(buffer);
  return all;
}

TEST(PretendDevice, AConvolutionNetWithBatchNormTrainsAsOnTheCpu) {
  const auto there = train(kGpu), here = train(c10::kCPU);
  for (size_t i = 0; i < here.size(); ++i) EXPECT_TRUE(torch::allclose(there[i].cpu(), here[i], 1e-5, 1e-5)) << i;
}

// Gradients of all parameters of a model's squared outputs.
template <class Model, class Outputs>
std::vector<at::Tensor> gradients(Model model, const Outputs& outputs, c10::Device device) {
  for (auto& parameter : model->parameters()) {
    at::NoGradGuard no_grad;
    parameter.copy_(torch::linspace(-0.5, 0.5, parameter.numel()).view(parameter.sizes()));
  }
  model->to(device);
  outputs(model).square().sum().backward();
  std::vector<at::Tensor> found;
  for (const auto& parameter : model->parameters()) found.push_back(parameter.grad().cpu());
  return found;
}

TEST(PretendDevice, RecurrentCellsAndTransposedConvolutionsHaveTheCpusGradients) {
  const auto cells = [](c10::Device device) {
    const auto outputs = [&](auto& lstm) {
      return std::get<0>(lstm->forward(torch::linspace(-1, 1, 4 * 2 * 3).view({4, 2, 3}).to(device)));
    };
    return gradients(torch::nn::LSTM(torch::nn::LSTMOptions(3, 5).num_layers(2)), outputs, device);
  };
  const auto volumes = [](c10::Device device) {
    const auto outputs = [&](auto& up) {
      return up->forward(torch::linspace(-1, 1, 2 * 2 * 27).view({2, 2, 3, 3, 3}).to(device));
    };
    return gradients(torch::nn::ConvTranspose3d(torch::nn::ConvTranspose3dOptions(2, 3, 2).stride(2)), outputs, device);
  };
  for (const auto& of : {std::function(cells), std::function(volumes)}) {
    const auto there = of(kGpu), here = of(c10::kCPU);
    for (size_t i = 0; i < here.size(); ++i) EXPECT_TRUE(torch::allclose(there[i], here[i], 1e-4, 1e-4)) << i;
  }
}

TEST(PretendDevice, ForeachKernelsAndUnscalingRun) {
  std::vector<at::Tensor> tensors{torch::ones({3}, kGpu), torch::ones({2, 2}, kGpu)};
  at::_foreach_mul_(tensors, 2.0);
  auto found = torch::zeros({}, kGpu);
  at::_amp_foreach_non_finite_check_and_unscale_(tensors, found, torch::full({}, 0.5, kGpu));

  EXPECT_TRUE(tensors[1].cpu().equal(torch::ones({2, 2})));
  EXPECT_EQ(found.item<float>(), 0);
  EXPECT_EQ(at::_foreach_norm(tensors, 2).size(), 2u);
}

TEST(PretendDevice, AttentionEmbeddingAndDropoutHaveGradients) {
  const auto q = torch::randn({1, 2, 4, 8}, kGpu).requires_grad_();
  torch::nn::Embedding words(5, 8);
  words->to(kGpu);
  const auto x = words(torch::tensor({0, 1, 2}).to(kGpu)).unsqueeze(1);
  (torch::scaled_dot_product_attention(q, q, q).sum() + x.sum() + torch::dropout(q, 0.5, true).sum()).backward();

  EXPECT_TRUE(q.grad().is_cuda());
  EXPECT_TRUE(words->weight.grad().is_cuda());
}

TEST(PretendDevice, RandomNumbersComeFromTheDevicesGenerator) {
  auto generator = at::globalContext().defaultGenerator(kGpu);
  const auto before = generator.get_state();
  const auto a = torch::randn({4}, kGpu).cpu();
  const auto dropped = torch::dropout(torch::ones({64}, kGpu), 0.5, true).cpu();
  torch::randn({4});
  generator.set_state(before);

  EXPECT_TRUE(torch::randn({4}, kGpu).cpu().equal(a));
  EXPECT_TRUE(torch::dropout(torch::ones({64}, kGpu), 0.5, true).cpu().equal(dropped));
}

TEST(PretendDevice, AGeneratorOfTheCpuIsRefused) {
  EXPECT_THROW(torch::ones({4}, kGpu).normal_(0, 1, at::detail::createCPUGenerator(1)), c10::Error);
  EXPECT_TRUE(torch::ones({4}, kGpu).normal_(0, 1, at::globalContext().defaultGenerator(kGpu)).is_cuda());
}

TEST(PretendDevice, AKernelRefusesTensorsOfTwoDevices) {
  EXPECT_THROW(torch::ones({2, 2}, kGpu) + torch::ones({2, 2}), c10::Error);
  EXPECT_THROW(torch::ones({2}, kGpu) + torch::ones({2}, c10::Device(c10::kCUDA, 1)), c10::Error);
  EXPECT_TRUE((torch::ones({2}, kGpu) + torch::ones({})).is_cuda());
}

TEST(PretendDevice, AKernelRefusesAStorageThatHasNoMemory) {
  const auto tensor = torch::ones({4}, kGpu);
  tensor.storage().set_data_ptr({nullptr, kGpu});
  tensor.storage().set_nbytes(0);
  EXPECT_THROW(tensor + 1, c10::Error);
}

TEST(PretendDevice, FromBlobOfANullPointerThrows) {
  EXPECT_THROW(torch::from_blob(nullptr, {0, 3}, torch::TensorOptions().device(kGpu)), c10::Error);
}

TEST(PretendDevice, MoreThanTheLimitIsOutOfMemory) {
  counts()->limit_bytes = counts()->bytes[0] + (1 << 20);
  EXPECT_THROW(torch::empty({1 << 20}, kGpu), c10::OutOfMemoryError);
  counts()->limit_bytes = 0;
  EXPECT_TRUE(torch::empty({1 << 20}, kGpu).defined());
}

TEST(PretendDevice, ItemAndCopiesToTheHostAreWaitsAndKernelsAreNot) {
  const auto x = torch::ones({4}, kGpu);
  const auto waits = counts()->waits, kernels = counts()->kernels;
  const auto y = (x + 1).mul_(2);
  EXPECT_EQ(counts()->waits - waits, 0);
  EXPECT_EQ(counts()->kernels - kernels, 2);

  y.sum().item<float>();
  y.cpu();
  EXPECT_EQ(counts()->waits - waits, 2);
}

TEST(PretendDevice, ACopyToTheDeviceShowsNanUntilItsEvent) {
  const auto pinned = torch::ones({100}).pin_memory();
  const auto stream = guard().getStreamFromGlobalPool(kGpu);
  c10::Event sent(c10::kCUDA);
  at::Tensor there;
  {
    const c10::StreamGuard on(stream);
    there = pinned.to(kGpu, true);
    sent.record(stream);
  }

  EXPECT_TRUE(all_nan(there));
  sent.block(guard().getStream(kGpu));
  EXPECT_TRUE(there.cpu().equal(torch::ones({100})));
}

TEST(PretendDevice, APinnedSourceThatIsWrittenTooEarlyShows) {
  const auto pinned = torch::ones({100}).pin_memory();
  const auto there = pinned.to(kGpu, true);
  pinned.fill_(2);
  EXPECT_TRUE(there.cpu().equal(torch::full({100}, 2.F)));
}

TEST(PretendDevice, PinnedMemoryThatIsReadBeforeItsEventHoldsNan) {
  const auto there = torch::ones({100}, kGpu), host = torch::empty({100}, kPinned);
  c10::Event event(c10::kCUDA);
  host.copy_(there, true);
  event.record(guard().getStream(kGpu));

  EXPECT_TRUE(all_nan(host));
  event.synchronize();
  EXPECT_TRUE(host.equal(torch::ones({100})));
}

TEST(PretendDevice, FreedMemoryThatAnotherStreamReadsShowsNanUnlessItWasRecorded) {
  const auto stream = guard().getStreamFromGlobalPool(kGpu);
  const auto host = torch::empty({2, 100}, kPinned);
  for (const bool records : {false, true}) {
    auto there = torch::ones({100}, kGpu);
    const c10::StreamGuard on(stream);
    host[records ? 1 : 0].copy_(there, true);
    if (records) guard().recordDataPtrOnStream(there.storage().data_ptr(), stream);
  }
  guard().synchronizeStream(stream);

  EXPECT_TRUE(all_nan(host[0]));
  EXPECT_TRUE(host[1].equal(torch::ones({100})));
}

TEST(PretendDevice, FreshMemoryHoldsNan) {
  EXPECT_TRUE(all_nan(torch::empty({100}, kGpu)));
}

}  // namespace
}  // namespace hasten::testing::pretend
