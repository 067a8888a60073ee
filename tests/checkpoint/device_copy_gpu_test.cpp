// Snapshots of device tensors in a stream of their own: steps and loads that follow do not change what is saved.
#include "checkpoint/save/device_copy.h"

#include <gtest/gtest.h>
#include <torch/torch.h>

#include "checkpoint/save/held_memory.h"
#include "hasten/accelerator.h"
#include "hasten/checkpoint/weights.h"
#include "hasten/files/folders/manifest.h"
#include "support/folder.h"

namespace hasten::checkpoint {
namespace {

class DeviceCopyGpu : public testing::InFolder {
 protected:
  void SetUp() override {
    ASSERT_TRUE(torch::cuda::is_available()) << "tests labelled gpu need a CUDA libtorch and a GPU";
  }
};

TEST_F(DeviceCopyGpu, ATensorThatIsWrittenAfterHoldIsCopiedAsItWas) {
  const at::Tensor tensor = torch::arange(1 << 24, torch::dtype(torch::kFloat).device(torch::kCUDA));
  const at::Tensor before = tensor.cpu();
  HeldMemory memory;
  char* to = memory.buffers({tensor.nbytes()}, true)[0];

  DeviceCopy copy(tensor.device());
  copy.add(to, tensor);
  copy.close();
  copy.hold();
  tensor.zero_();
  copy.finish();

  EXPECT_EQ(reinterpret_cast<uintptr_t>(to) % 4096, 0u);
  EXPECT_TRUE(at::from_blob(to, before.sizes(), before.options()).equal(before));
}

TEST_F(DeviceCopyGpu, PinnedMemoryHasTheSizeThatIsAskedForAndGrows) {
  HeldMemory memory;
  constexpr size_t kBytes = (size_t{5} << 20) + 12345;
  const auto is_pinned = [](char* at) { return at::from_blob(at, {16}, at::kByte).is_pinned(); };

  for (const size_t bytes : {kBytes, 2 * kBytes}) {
    const auto buffers = memory.buffers({bytes, 100}, true);

    EXPECT_TRUE(is_pinned(buffers[0]));
    EXPECT_TRUE(is_pinned(buffers[0] + bytes - 16));
    EXPECT_TRUE(is_pinned(buffers[1]));
    EXPECT_LT(memory.capacity(), bytes + 3 * 4096);
  }
}

TEST_F(DeviceCopyGpu, AStepRightAfterTheSaveDoesNotReachTheFiles) {
  AcceleratorOptions options{.tune_allocator = false};
  options.project = {.project_dir = folder_, .automatic_checkpoint_naming = true};
  Accelerator accelerator(options);
  torch::nn::Linear net(2048, 2048);
  torch::optim::AdamW adam(net->parameters(), 0.1);
  auto [model, optimizer] = accelerator.prepare(net, adam);
  const auto step = [&] {
    accelerator.backward(model(torch::ones({8, 2048}, torch::kCUDA)).square().mean());
    optimizer.step();
    optimizer.zero_grad();
  };
  step();
  const at::Tensor before = net->weight.detach().cpu();

  const auto save = accelerator.save_state();
  for (int i = 0; i < 5; ++i) step();
  save.wait();

  EXPECT_TRUE(files::verify_folder(save.path()).errors.empty());
  accelerator.load_state(save.path());
  EXPECT_TRUE(net->weight.is_cuda());
  EXPECT_TRUE(net->weight.detach().cpu().equal(before));
}

}  // namespace
}  // namespace hasten::checkpoint
