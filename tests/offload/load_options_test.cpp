// Options of loading, groups of models on one device, and what empty construction leaves alone.
#include <gtest/gtest.h>
#include <torch/torch.h>

#include <filesystem>
#include <map>
#include <thread>

#include "hasten/core/error.h"
#include "hasten/offload/hooks/cpu_offload_hook.h"
#include "offload/load/memory_source.h"
#include "offload/stack_net.h"

namespace hasten::offload {
namespace {

class LoadOptionsTest : public StackInFile {
 protected:
  static torch::nn::LinearImpl& layer(Stack& net, int i) {
    return *net->layers[static_cast<size_t>(i)]->as<torch::nn::Linear>();
  }
};

TEST_F(LoadOptionsTest, NamesAreMappedRenamedOrLeftOut) {
  auto net = empty_weights([] { return Stack(); });
  NamedTensors tensors;
  for (const auto& item : net_->named_parameters())
    tensors.emplace_back("old.block_" + item.key().substr(7), item.value().detach());
  tensors.emplace_back("old.masked_bias", torch::ones({1}));
  const LoadOptions options{.strict = true, .rename = {{"^old\\.masked_bias$", ""}, {"^old\\.block_", "layers."}}};

  const auto report = load_checkpoint_in_model(*net, *memory_source(tensors), options);
  EXPECT_TRUE(report.missing.empty() && report.unexpected.empty());
  EXPECT_TRUE(testing::same_values(net->forward(x_), wanted_));

  // key_map goes first: here it takes layer 0 for layer 5.
  const auto mapped = [](const std::string& name) {
    return name.starts_with("layers.5.") ? "old.block_0." + name.substr(9) : "old.block_" + name.substr(7);
  };
  load_checkpoint_in_model(*net, *memory_source(tensors), {.key_map = mapped});
  EXPECT_TRUE(layer(net, 5).weight.equal(layer(net_, 0).weight));
}

TEST_F(LoadOptionsTest, TransposedWeightsAreViewsWithoutACopy) {
  Stack transposed;
  {
    const torch::NoGradGuard no_grad;
    for (int i = 0; i < 6; ++i) {
      set_tensor(layer(transposed, i).weight, layer(net_, i).weight.detach().t().contiguous());
      set_tensor(layer(transposed, i).bias, layer(net_, i).bias.detach());
    }
  }
  save_weights(*transposed, path("transposed.safetensors"));
  const torch::NoGradGuard no_grad;
  auto net = empty_weights([] { return Stack(); });

  const auto report = load_checkpoint_in_model(*net, path("transposed.safetensors"), {.transpose = {"weight$"}});

  EXPECT_EQ(report.copied_bytes, 0);
  EXPECT_FALSE(layer(net, 0).weight.is_contiguous());
  EXPECT_TRUE(layer(net, 0).weight.equal(layer(net_, 0).weight));
  EXPECT_TRUE(torch::allclose(net->forward(x_), wanted_, 1e-4, 1e-5));
}

TEST_F(LoadOptionsTest, ReadingAndLockingCopyToThisProcess) {
  const torch::NoGradGuard no_grad;
  for (const LoadOptions& options : {LoadOptions{.io = Io::kRead}, LoadOptions{.resident = Resident::kLocked}}) {
    auto net = empty_weights([] { return Stack(); });
    std::filesystem::copy_file(path("model.safetensors"), path("copy.safetensors"),
                               std::filesystem::copy_options::overwrite_existing);

    const auto report = load_checkpoint_in_model(*net, path("copy.safetensors"), options);
    std::filesystem::resize_file(path("copy.safetensors"), 0);

    EXPECT_EQ(report.mapped_bytes, 0);
    EXPECT_TRUE(testing::same_values(net->forward(x_), wanted_));
  }
}

TEST_F(LoadOptionsTest, BuffersThatNoFileHasKeepTheirValuesWithoutAWord) {
  struct MaskedImpl : StackImpl {
    MaskedImpl() { mask = register_buffer("mask", torch::ones({3, 3}).tril()); }
    at::Tensor mask;
  };
  auto net = empty_weights([] { return std::make_shared<MaskedImpl>(); });

  const auto report =
      load_checkpoint_in_model(*net, path("model.safetensors"), {.strict = true, .not_saved = {"^mask$"}});

  EXPECT_TRUE(report.text().empty());
  EXPECT_TRUE(net->mask.equal(torch::ones({3, 3}).tril()));
  EXPECT_THROW(load_checkpoint_in_model(*net, path("model.safetensors"), {.strict = true}), DataError);
  EXPECT_THROW(load_checkpoint_in_model(*net, path("model.safetensors"), {.not_saved = {"("}}), UsageError);
}

TEST_F(LoadOptionsTest, AFolderForOffloadingIsWrittenOnlyIfAsked) {
  const torch::NoGradGuard no_grad;
  DispatchOptions options{.device_map = DeviceMap{{"", "disk"}}, .offload_folder = path("folder")};
  EXPECT_TRUE(testing::same_values(load(options)(x_), wanted_));
  EXPECT_FALSE(std::filesystem::exists(path("folder")));
  options.copy_to_offload_folder = true;

  const auto model = load(options);
  std::filesystem::resize_file(path("model.safetensors"), 0);

  EXPECT_TRUE(testing::same_values(model->forward(x_), wanted_)) << "weights lie in the folder";
}

TEST_F(LoadOptionsTest, AnUndispatchedModelIsStreamedNoLonger) {
  const torch::NoGradGuard no_grad;
  const auto model = load(limited());
  model(x_);
  const int64_t drops = model.stream_counts().drops;

  undispatch(model.module());
  EXPECT_TRUE(testing::same_values(model->forward(x_), wanted_));

  EXPECT_EQ(model.stream_counts().drops, drops);
  const_cast<float*>(model->layers[5]->as<torch::nn::Linear>()->weight.const_data_ptr<float>())[0] +=
      1;  // may be written to
}

TEST(OffloadGroup, TheLeastRecentlyUsedModelsLeaveFirst) {
  const OffloadGroup group(2 * 4 * 20);  // two models of 20 floats
  auto make = [&] { return cpu_offload_with_hook(torch::nn::Linear(4, 4), at::kCPU, nullptr, &group); };
  auto [a, hook_a] = make();
  auto [b, hook_b] = make();
  auto [c, hook_c] = make();
  const auto on_device = [&] {
    return std::vector<bool>{hook_a.is_on_device(), hook_b.is_on_device(), hook_c.is_on_device()};
  };
  const at::Tensor x = torch::ones({1, 4});

  a(x);
  b(x);
  EXPECT_EQ(on_device(), (std::vector<bool>{true, true, false}));
  a(x);
  c(x);
  EXPECT_EQ(on_device(), (std::vector<bool>{true, false, true}));
  hook_a.offload();
  EXPECT_EQ(on_device(), (std::vector<bool>{false, false, true}));
}

TEST(EmptyWeights, ForeignMemoryAndOtherThreadsAreLeftAlone) {
  struct ForeignImpl : torch::nn::Module {
    ForeignImpl() {
      blob = register_buffer("blob", torch::from_blob(values, {2}));
      std::thread([&] { other = torch::ones({2}); }).join();
      weight = register_parameter("weight", torch::zeros({2}));
    }
    float values[2] = {3, 4};
    at::Tensor blob, other, weight;
  };

  auto net = empty_weights([] { return std::make_shared<ForeignImpl>(); });

  EXPECT_EQ(net->blob[1].item<float>(), 4);
  EXPECT_FALSE(net->other.is_meta());
  EXPECT_TRUE(net->weight.is_meta());
}

}  // namespace
}  // namespace hasten::offload
