// Models placed on pretend GPUs: values equal the CPU's, weights are streamed in time, and memory stays within limits.
#include <gtest/gtest.h>
#include <torch/torch.h>

#include <filesystem>
#include <map>
#include <set>

#include "hasten/core/error.h"
#include "hasten/offload/hooks/cpu_offload_hook.h"
#include "hasten/offload/hooks/layerwise_casting.h"
#include "hasten/offload/load/placement.h"
#include "offload/stack_net.h"
#include "offload/units/peer_copies.h"
#include "offload/units/pinned_ring.h"
#include "support/device.h"
#include "support/folder.h"

namespace hasten::offload {
namespace {

using testing::pretend::counts;

// A linear layer over another module's weight.
struct TiedHeadImpl : torch::nn::Module {
  explicit TiedHeadImpl(const at::Tensor& tied) { weight = register_parameter("weight", tied); }
  at::Tensor forward(const at::Tensor& x) { return torch::linear(x, weight); }
  at::Tensor weight;
};
TORCH_MODULE(TiedHead);

// Layers with residual sums, a buffer, a mask that all layers take, and a head that is tied to the embedding.
struct ResidualImpl : torch::nn::Module {
  ResidualImpl() : torch::nn::Module("Residual") {
    table = register_module("table", torch::nn::Embedding(32, 64));
    layers = register_module("layers", torch::nn::ModuleList());
    for (int i = 0; i < 4; ++i) layers->push_back(torch::nn::Linear(64, 64));
    norm = register_module("norm", torch::nn::LayerNorm(torch::nn::LayerNormOptions({64})));
    head = register_module("head", TiedHead(table->weight));
    scale = register_buffer("scale", torch::full({64}, 0.5));
  }
  at::Tensor forward(const at::Tensor& ids, const at::Tensor& mask) {
    at::Tensor x = table(ids);
    for (const auto& layer : *layers) x = x + layer->as<torch::nn::Linear>()->forward(x) * mask * scale;
    return head(norm(x));
  }
  torch::nn::Embedding table{nullptr};
  torch::nn::ModuleList layers{nullptr};
  torch::nn::LayerNorm norm{nullptr};
  TiedHead head{nullptr};
  at::Tensor scale;
};
TORCH_MODULE(Residual);

class Placed : public StackInFile {
 protected:
  void SetUp() override {
    ASSERT_TRUE(counts() != nullptr);
    counts()->limit_bytes = 0;
    counts()->slow_ms = 0;
    counts()->peak_bytes = counts()->bytes;
    torch::manual_seed(3);
    residual_ = Residual();
    ids_ = torch::randint(32, {3, 5});
    mask_ = torch::rand({3, 5, 1});
    logits_ = residual_->forward(ids_, mask_).detach();
  }
  void TearDown() override {
    counts()->limit_bytes = 0;
    counts()->slow_ms = 20;
  }
  void expect_wanted(const at::Tensor& output) const { testing::expect_near({output.detach().cpu()}, {wanted_}, 1e-5); }
  void expect_logits(const at::Tensor& output) const { testing::expect_near({output.detach().cpu()}, {logits_}, 1e-5); }
  at::Tensor weight(int layer) { return net_->layers[static_cast<size_t>(layer)]->as<torch::nn::Linear>()->weight; }

  Residual residual_{nullptr};
  at::Tensor ids_, mask_, logits_;
};

DeviceMap by_layers(const std::vector<Device>& devices) {
  DeviceMap map;
  for (size_t i = 0; i < devices.size(); ++i) map.set("layers." + std::to_string(i), devices[i]);
  return map;
}

DeviceMap of_residual(const std::vector<Device>& layers, const Device& table, const Device& head) {
  DeviceMap map = by_layers(layers);
  map.set("table", table);
  map.set("norm", head);
  map.set("head", head);
  map.set("scale", table);
  return map;
}

TEST_F(Placed, WeightsLieWhereTheMapHasThemAndResultsComeBack) {
  const auto model = dispatch_model(net_, by_layers({0, 0, 1, 1, 2, 3}));

  const at::Tensor output = model(x_);

  EXPECT_EQ(weight(0).device(), c10::Device(c10::kCUDA, 0));
  EXPECT_EQ(weight(3).device(), c10::Device(c10::kCUDA, 1));
  EXPECT_EQ(weight(5).device(), c10::Device(c10::kCUDA, 3));
  EXPECT_TRUE(output.is_cpu());
  expect_wanted(output);
}

TEST_F(Placed, ForwardPastTheHandleMovesInputs) {
  const auto model = dispatch_model(net_, by_layers({0, 0, 1, 1, 2, 3}));

  const at::Tensor output = net_->forward(x_);

  EXPECT_EQ(output.device(), c10::Device(c10::kCUDA, 3));
  expect_wanted(output);
}

TEST_F(Placed, SumsMasksAndBuffersMeetWhereTheLayersAre) {
  const auto model = dispatch_model(residual_, of_residual({0, 1, 2, 3}, 0, 3));

  expect_logits(model(ids_, mask_));
}

TEST_F(Placed, AResidualSumPastTheHandleIsSeen) {
  torch::nn::Sequential net(torch::nn::Linear(8, 8), torch::nn::Linear(8, 8));
  const auto x = torch::randn({2, 8});
  const auto first = net->at<torch::nn::LinearImpl>(0).forward(x);
  const auto wanted = (first + net->at<torch::nn::LinearImpl>(1).forward(first)).detach();
  const auto model = dispatch_model(net, DeviceMap{{"0", 0}, {"1", 1}});

  const auto there = net->at<torch::nn::LinearImpl>(0).forward(x);
  const auto sum = there + net->at<torch::nn::LinearImpl>(1).forward(there);

  EXPECT_EQ(sum.device(), c10::Device(c10::kCUDA, 1));
  testing::expect_near({sum.detach().cpu()}, {wanted}, 1e-5);
}

TEST_F(Placed, ATiedWeightHasACopyOnEachDeviceThatFollowsIt) {
  const auto model = dispatch_model(residual_, of_residual({0, 0, 1, 1}, 0, 1));
  expect_logits(model(ids_, mask_));
  const auto bytes = counts()->bytes[1];

  const at::NoGradGuard no_grad;
  residual_->table->weight.mul_(2);
  const auto doubled = model(ids_, mask_);

  EXPECT_EQ(counts()->bytes[1], bytes);
  EXPECT_GT((doubled - logits_).abs().max().item<float>(), 0.1);
  auto alone = Residual();
  for (const auto& item : alone->named_parameters())
    item.value().copy_(residual_->named_parameters()[item.key()].cpu());
  testing::expect_near({doubled}, {alone->forward(ids_, mask_)}, 1e-5);
}

TEST_F(Placed, WeightsOfCpuAndDiskAreStreamedToTheMainDevice) {
  const auto map = by_layers({0, "cpu", "cpu", "disk", "disk", "disk"});
  const auto model = dispatch_model(net_, map, {.no_split_module_classes = {"Linear"}, .offload_dir = path("offload")});
  const auto before = counts()->bytes[0];

  for (int pass = 0; pass < 3; ++pass) expect_wanted(model(x_));

  EXPECT_TRUE(weight(1).is_cpu());
  EXPECT_TRUE(is_offloaded(weight(1)));
  EXPECT_TRUE(is_offloaded(weight(4)));
  EXPECT_FALSE(is_offloaded(weight(0)));
  EXPECT_GE(model.stream_counts().reads, 15);
  // Two units, and activations.
  EXPECT_LE(counts()->peak_bytes[0], before + 2 * (kLayerBytes + 1024) + 16384);
}

// Both devices hold layers between layers that are streamed to the first.
TEST_F(Placed, PartsOfTwoDevicesMemoryAndDiskComputeTogether) {
  auto plain = Stack();
  for (const auto& item : plain->named_parameters()) item.value().data().copy_(net_->named_parameters()[item.key()]);
  plain->forward(x_).square().sum().backward();
  const auto map = by_layers({0, "cpu", 1, "disk", 1, "disk"});
  const auto model = dispatch_model(net_, map, {.no_split_module_classes = {"Linear"}, .offload_dir = path("offload")});
  const auto before = counts()->bytes;

  for (int pass = 0; pass < 3; ++pass) expect_wanted(model(x_));

  EXPECT_EQ(weight(2).device(), c10::Device(c10::kCUDA, 1));
  EXPECT_TRUE(is_offloaded(weight(1)) && is_offloaded(weight(3)) && is_offloaded(weight(5)));
  EXPECT_GE(model.stream_counts().reads, 9);
  // Two units on the first, and activations.
  EXPECT_LE(counts()->peak_bytes[0], before[0] + 2 * (kLayerBytes + 1024) + 32768);
  EXPECT_LE(counts()->peak_bytes[1], before[1] + 32768);

  model(x_).square().sum().backward();

  for (const auto& item : net_->named_parameters()) {
    SCOPED_TRACE(item.key());
    testing::expect_near({item.value().grad().cpu()}, {plain->named_parameters()[item.key()].grad()}, 1e-4);
  }
}

TEST_F(Placed, TheNextUnitIsOnItsWayWhileOneIsInUse) {
  const auto model =
      dispatch_model(net_, DeviceMap{{"", "cpu"}}, {.no_split_module_classes = {"Linear"}, .main_device = Device(0)});
  model(x_);

  const auto before = model.stream_counts().reads;
  weight(0).sum();
  const auto after = model.stream_counts().reads;

  // Unit 0 came after the last one; its use starts unit 1.
  EXPECT_EQ(after - before, 1);
}

TEST_F(Placed, WeightsGoThroughPinnedMemory) {
  const auto model =
      dispatch_model(net_, DeviceMap{{"", "cpu"}}, {.no_split_module_classes = {"Linear"}, .main_device = Device(0)});
  const auto x = x_.to(testing::kGpu);
  model(x);

  at::Tensor output;
  const auto copies = counts()->late_copies;
  for (int i = 0; i < 2; ++i) output = model(x);

  EXPECT_GE(counts()->late_copies - copies, 12);
  EXPECT_TRUE(output.is_cuda());
  expect_wanted(output);
}

TEST_F(Placed, AMapBalancesOverGpusByTheirFreeBytes) {
  counts()->limit_bytes = 3 * kLayerBytes;

  const auto limits = max_memory();
  const auto free = counts()->limit_bytes - counts()->bytes[1];
  auto model = load({.device_map = "balanced", .no_split_module_classes = {"Linear"}});

  ASSERT_NE(limits.find(Device(3)), nullptr);
  EXPECT_EQ(*limits.find(Device(1)), static_cast<double>(free));
  std::set<std::string> devices;
  for (const auto& tensor : model->parameters()) devices.insert(tensor.device().str());
  EXPECT_GE(devices.size(), 3U);
  expect_wanted(model(x_));
}

TEST_F(Placed, NoCopyStaysBeyondMaxMemory) {
  for (const char* map : {"auto", "balanced_low_0", "sequential"}) {
    counts()->peak_bytes = counts()->bytes;
    const auto start = counts()->bytes[0];
    auto model = load({.device_map = map,
                       .max_memory = {{0, 3 * kLayerBytes + 8192}, {"cpu", int64_t{1} << 30}},
                       .no_split_module_classes = {"Linear"}});
    for (int i = 0; i < 2; ++i) expect_wanted(model(x_));

    EXPECT_LE(counts()->peak_bytes[0] - start, 3 * kLayerBytes + 8192 + 16384) << map;
    EXPECT_GT(model.stream_counts().reads, 0) << map;
  }
}

TEST_F(Placed, ADtypeIsCastOnTheDevice) {
  auto model = load({.device_map = DeviceMap{{"layers.0", 0},
                                             {"layers.1", "cpu"},
                                             {"layers.2", "disk"},
                                             {"layers.3", "disk"},
                                             {"layers.4", 0},
                                             {"layers.5", "disk"}},
                     .dtype = at::kBFloat16});

  const auto output = model(x_.to(at::kBFloat16));

  EXPECT_EQ(output.scalar_type(), at::kBFloat16);
  testing::expect_near({output}, {wanted_}, 0.05);
}

TEST_F(Placed, BackwardReadsStreamedUnitsAgain) {
  auto plain = Stack();
  for (const auto& item : plain->named_parameters()) item.value().data().copy_(net_->named_parameters()[item.key()]);
  plain->forward(x_).square().sum().backward();
  const auto model =
      dispatch_model(net_, DeviceMap{{"", "cpu"}}, {.no_split_module_classes = {"Linear"}, .main_device = Device(0)});

  model(x_).square().sum().backward();

  for (const auto& item : net_->named_parameters()) {
    ASSERT_TRUE(item.value().grad().defined()) << item.key();
    EXPECT_TRUE(item.value().grad().is_cpu());
    testing::expect_near({item.value().grad()}, {plain->named_parameters()[item.key()].grad()}, 1e-4);
  }
}

TEST_F(Placed, BackwardPassesBordersOfDevices) {
  residual_->forward(ids_, mask_).square().sum().backward();
  std::map<std::string, at::Tensor> wanted;
  for (const auto& item : residual_->named_parameters()) {
    if (!item.value().grad().defined()) continue;  // of a tied name, taken before
    wanted[item.key()] = item.value().grad().clone();
    item.value().mutable_grad() = at::Tensor();
  }
  const auto model = dispatch_model(residual_, of_residual({0, 1, "cpu", 3}, 0, 3));

  model(ids_, mask_).square().sum().backward();

  for (const auto& [name, gradient] : wanted) {
    SCOPED_TRACE(name);
    testing::expect_near({residual_->named_parameters()[name].grad().cpu()}, {gradient}, 1e-3);
  }
}

TEST_F(Placed, BackwardAfterTheHandleIsRefused) {
  at::Tensor loss;
  {
    const auto model = dispatch_model(net_, DeviceMap{{"", "cpu"}}, {.main_device = Device(0)});
    loss = model(x_).sum();
  }

  EXPECT_NE(testing::words_of<UsageError>([&] { loss.backward(); }).find("Keep its handle"), std::string::npos);
}

TEST_F(Placed, AWriteToAStreamedWeightIsReadAtTheNextUse) {
  const auto model =
      dispatch_model(net_, DeviceMap{{"", "disk"}}, {.main_device = Device(0), .offload_dir = path("offload")});
  model(x_);

  const at::NoGradGuard no_grad;
  weight(2).zero_();
  net_->layers[2]->as<torch::nn::Linear>()->bias.fill_(1);
  const auto output = model(x_);

  auto plain = Stack();
  for (const auto& item : plain->named_parameters()) item.value().copy_(net_->named_parameters()[item.key()]);
  testing::expect_near({output}, {plain->forward(x_)}, 1e-5);
  EXPECT_GT(model.stream_counts().resident_bytes, 0);
}

TEST_F(Placed, CpuOffloadComputesOnItsDevice) {
  net_->to(testing::kGpu);

  const auto model = cpu_offload(net_, Device(1));

  EXPECT_TRUE(weight(0).is_cpu());
  expect_wanted(model(x_));
  EXPECT_GT(model.stream_counts().reads, 0);
}

TEST_F(Placed, DiskOffloadComputesOnItsDevice) {
  const auto model = disk_offload(net_, path("folder"), {.main_device = Device(0)});

  expect_wanted(model(x_));
  EXPECT_TRUE(is_offloaded(weight(0)));
  undispatch(*net_);
  EXPECT_FALSE(is_offloaded(*net_));
  expect_wanted(net_->forward(x_));
}

TEST_F(Placed, BuffersStayOnTheDeviceUnlessTheyAreOffloaded) {
  const auto map = of_residual({"cpu", "cpu", "cpu", "cpu"}, "cpu", "cpu");
  {
    const auto model = dispatch_model(residual_, map, {.main_device = Device(0)});
    EXPECT_TRUE(residual_->scale.is_cuda());
    expect_logits(model(ids_, mask_));
  }
  residual_->scale.set_data(residual_->scale.cpu());
  const auto model = dispatch_model(residual_, map, {.main_device = Device(0), .offload_buffers = true});

  EXPECT_TRUE(residual_->scale.is_cpu());
  expect_logits(model(ids_, mask_));
}

TEST_F(Placed, ACpuAsMainDeviceComputesThere) {
  const auto model = dispatch_model(net_, by_layers({0, 0, "cpu", "cpu", 1, 1}), {.main_device = Device("cpu")});

  expect_wanted(model(x_));
  EXPECT_TRUE(weight(2).is_cpu());
  EXPECT_EQ(model.stream_counts().reads, 0);
}

TEST_F(Placed, AMapOfTheCpuAloneBringsWeightsBackFromTheirGpu) {
  for (const DeviceMap& map : {DeviceMap{{"", "cpu"}}, by_layers(std::vector<Device>(6, "cpu"))}) {
    const int64_t before = counts()->bytes[1];
    net_->to(c10::Device(c10::kCUDA, 1));
    const auto model = dispatch_model(net_, map);

    for (const at::Tensor& parameter : net_->parameters()) EXPECT_TRUE(parameter.is_cpu());
    EXPECT_EQ(counts()->bytes[1], before);
    expect_wanted(model(x_));
    EXPECT_EQ(model(x_.to(c10::Device(c10::kCUDA, 1))).device(), c10::Device(c10::kCUDA, 1));
    undispatch(*net_);
  }
}

TEST_F(Placed, AMapWithoutAGpuBringsBuffersBackToo) {
  residual_->to(c10::Device(c10::kCUDA, 0));
  const auto model = dispatch_model(residual_, of_residual({"cpu", "disk", "disk", "cpu"}, "cpu", "cpu"),
                                    {.offload_dir = path("rest")});

  EXPECT_TRUE(residual_->scale.is_cpu());
  expect_logits(model(ids_, mask_));
}

TEST_F(Placed, LayerwiseCastsReachStreamedWeights) {
  const auto casts = layerwise_casting(*net_, at::kBFloat16, at::kFloat);
  const auto rounded = net_->forward(x_).detach();
  const auto model = dispatch_model(net_, by_layers({0, 0, "cpu", "cpu", "cpu", 0}));

  testing::expect_near({model(x_)}, {rounded}, 1e-5);
  EXPECT_EQ(weight(2).scalar_type(), at::kBFloat16);
}

TEST_F(Placed, PlacementsOfBlocksHaveDevicesOfTheirOwn) {
  auto weights = std::make_shared<files::Catalog>(files::Catalog::open(path("model.safetensors")));
  const Placement first{.execution_device = Device(0), .offload = true, .io_same_device = true, .weights_map = weights};
  const Placement second{.execution_device = Device(1)};

  {
    const auto model = place(net_, first, {.per_block = {{"layers.5", second}}});

    EXPECT_EQ(weight(5).device(), c10::Device(c10::kCUDA, 1));
    EXPECT_TRUE(weight(0).is_cpu());
    expect_wanted(model(x_));
    EXPECT_GT(model.stream_counts().reads, 0);
    remove_placement(*net_);
  }
  net_->to(at::kCPU);
  expect_wanted(net_->forward(x_));
}

TEST_F(Placed, AReloadedCheckpointGoesToTheSamePlaces) {
  auto model = load({.device_map = by_layers({0, 1, "cpu", "disk", 0, 1})});
  expect_wanted(model(x_));
  auto other = Stack();
  save_weights(*other, path("other.safetensors"));

  model.reload(path("other.safetensors"));

  testing::expect_near({model(x_)}, {other->forward(x_)}, 1e-5);
  EXPECT_EQ(model->layers[1]->as<torch::nn::Linear>()->weight.device(), c10::Device(c10::kCUDA, 1));
}

TEST_F(Placed, DevicesThatAreNotThereAreRefusedByName) {
  EXPECT_NE(testing::words_of<UsageError>([&] {
              dispatch_model(net_, DeviceMap{{"", 7}});
            }).find("names the devices 7"),
            std::string::npos);
  EXPECT_NE(testing::words_of<UsageError>([&] { cpu_offload(net_, Device("mps")); }).find("names the devices mps"),
            std::string::npos);
  auto empty = empty_weights([] { return Stack(); });
  EXPECT_NE(testing::words_of<UsageError>([&] {
              dispatch_model(empty, DeviceMap{{"", 0}});
            }).find("layers.0.weight"),
            std::string::npos);
}

TEST_F(Placed, AFullDeviceSaysSo) {
  counts()->limit_bytes = counts()->bytes[0] + kLayerBytes;

  EXPECT_THROW(dispatch_model(net_, DeviceMap{{"", 0}}), c10::OutOfMemoryError);
}

TEST_F(Placed, ModelsTakeTurnsOnADevice) {
  auto [first, first_hook] = cpu_offload_with_hook(net_, testing::kGpu);
  auto [second, second_hook] = cpu_offload_with_hook(Stack(), testing::kGpu, first_hook);

  const auto middle = first(x_);
  EXPECT_TRUE(weight(0).is_cuda());
  const auto host = weight(0).cpu();
  second(middle);

  EXPECT_TRUE(weight(0).is_cpu());
  EXPECT_TRUE(weight(0).equal(host));
  expect_wanted(middle);
  const auto copies = counts()->copies;
  first_hook.offload();
  second_hook.offload();  // unchanged weights take no copy
  EXPECT_EQ(counts()->copies, copies);
}

TEST_F(Placed, WhatAModelWritesOnItsDeviceComesBackWithIt) {
  auto [model, hook] = cpu_offload_with_hook(net_, testing::kGpu);
  model(x_);

  const at::NoGradGuard no_grad;
  weight(1).fill_(3);
  hook.offload();

  EXPECT_TRUE(weight(1).is_cpu());
  EXPECT_TRUE(weight(1).eq(3).all().item<bool>());
}

TEST_F(Placed, ABrokenWayBetweenDevicesGoesThroughTheHost) {
  int direct = 0;
  detail::PeerCopies broken([&](const at::Tensor& tensor, c10::Device device) {
    ++direct;
    return torch::zeros_like(tensor, tensor.options().device(device));
  });
  const auto there = torch::arange(8, testing::kGpu);

  const auto moved = broken.moved(there, c10::Device(c10::kCUDA, 1));

  EXPECT_TRUE(moved.cpu().equal(torch::arange(8)));
  broken.moved(there, c10::Device(c10::kCUDA, 1));
  EXPECT_EQ(direct, 1);
}

TEST(PinnedRing, BytesOfAnySizeArriveAndErrorsDoToo) {
  const auto values = torch::randn({5000});
  const auto there = torch::zeros({5000}, testing::kGpu);
  PinnedRing ring(testing::kGpu, {.piece_bytes = 1000, .num_threads = 2});
  const auto stream = c10::impl::VirtualGuardImpl(c10::kCUDA).getStream(testing::kGpu);
  counts()->slow_ms = 0;

  std::vector<PinnedRing::Part> parts;
  parts.push_back({fill_from(values), there.view(at::kByte)});
  ring.send(std::move(parts)).block(stream);
  EXPECT_TRUE(there.cpu().equal(values));

  parts.clear();
  parts.push_back(
      {[](char*, int64_t, int64_t) { throw DataError(Origin{"test"}, "file", "cut"); }, there.view(at::kByte)});
  auto sent = ring.send(std::move(parts));
  EXPECT_THROW(sent.wait(), DataError);
  EXPECT_THROW(PinnedRing(testing::kGpu, {.piece_bytes = 0}), UsageError);
  counts()->slow_ms = 20;
}

TEST(PinnedRing, ToDeviceKeepsStridesAndTypes) {
  const auto large = torch::randn({800, 700}).t();
  const auto small = torch::arange(3);

  const auto there = to_device({large, small}, testing::kGpu);

  EXPECT_EQ(there[0].strides(), large.strides());
  EXPECT_TRUE(there[0].cpu().equal(large));
  EXPECT_TRUE(there[1].cpu().equal(small));
}

}  // namespace
}  // namespace hasten::offload
