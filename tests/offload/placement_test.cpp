// Placement of parts of a model, with_weights, arguments that move or stay, and identities of dispatched models.
#include "hasten/offload/load/placement.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <torch/torch.h>

#include <atomic>
#include <filesystem>
#include <fstream>
#include <map>
#include <optional>
#include <random>
#include <tuple>

#include "hasten/core/error.h"
#include "offload/stack_net.h"
#include "offload/units/unit_plan.h"

namespace hasten::offload {
namespace {

class PlacementTest : public StackInFile {
 protected:
  std::shared_ptr<const files::TensorSource> weights() const {
    return std::make_shared<files::Catalog>(files::Catalog::open(path("model.safetensors")));
  }
  torch::nn::LinearImpl& layer(int i) const {
    return *net_.ptr()->layers[static_cast<size_t>(i)]->as<torch::nn::Linear>();
  }
};

TEST_F(PlacementTest, AnOffloadedPartIsReadForItsOperatorsAndComesBack) {
  const torch::NoGradGuard no_grad;
  const at::Tensor before = layer(2).weight.detach().clone();
  {
    const auto placed = place(net_, {.offload = true, .weights_map = weights()});
    for (int pass = 0; pass < 2; ++pass) EXPECT_TRUE(placed(x_).equal(wanted_));
    EXPECT_GE(placed.stream_counts().drops, 6);
    EXPECT_TRUE(is_offloaded(layer(2).weight));
    remove_placement(*net_);
  }
  std::filesystem::resize_file(path("model.safetensors"), 0);  // nothing lies over the file any more

  EXPECT_FALSE(is_offloaded(*net_));
  EXPECT_TRUE(net_->forward(x_).equal(wanted_));
  layer(2).weight.add_(1);
  EXPECT_TRUE(layer(2).weight.equal(before + 1));
}

TEST_F(PlacementTest, BlocksHaveTheirOwnAndAModuleHasItsPlaceInTheModel) {
  const torch::NoGradGuard no_grad;
  const auto some = place(net_, {},
                          {.per_block = {{"layers.1", {.offload = true, .weights_map = weights()}},
                                         {"layers.4", {.offload = true, .weights_map = weights()}}}});
  EXPECT_TRUE(some(x_).equal(wanted_));
  for (int i = 0; i < 6; ++i) EXPECT_EQ(is_offloaded(layer(i).weight), i == 1 || i == 4) << i;

  const auto one = place(net_->layers[3], {.offload = true, .weights_map = weights()}, {.module_name = "layers.3"});
  EXPECT_TRUE(net_->forward(x_).equal(wanted_));
  EXPECT_TRUE(is_offloaded(layer(3).weight));
}

TEST_F(PlacementTest, ABlockWithItsSubmodulesIsOneUnit) {
  const torch::NoGradGuard no_grad;
  const auto whole = place(net_, {.offload = true, .weights_map = weights(), .place_submodules = true});

  EXPECT_TRUE(whole(x_).equal(wanted_));
  ASSERT_EQ(whole.report().units.size(), 1u);
  EXPECT_EQ(whole.report().units[0].bytes, 6 * kLayerBytes);
}

TEST_F(PlacementTest, AnEmptyModuleIsFilledAndStaysOverItsFiles) {
  const torch::NoGradGuard no_grad;
  auto net = empty_weights([] { return Stack(); });
  const auto placed = place(net, {.offload = true, .weights_map = weights()});
  EXPECT_TRUE(placed(x_).equal(wanted_));

  remove_placement(*net);

  EXPECT_TRUE(net->forward(x_).equal(wanted_));
}

TEST_F(PlacementTest, BadPlacementsAreNamedBeforeAnyTensorChanges) {
  const auto words = [&](const Placement& placement, const PlaceOptions& options = {}) {
    return testing::words_of<UsageError>([&] { place(net_, placement, options); });
  };

  EXPECT_NE(words({}, {.per_block = {{"layer.1", {}}}}).find("did you mean 'layers.1'?"), std::string::npos);
  EXPECT_NE(words({.execution_device = 3}).find("names the devices 3"), std::string::npos);
  EXPECT_NE(words({.offload = true, .weights_map = weights()}, {.module_name = "model"})
                .find("weights_map has no model.layers.0.weight, "),
            std::string::npos);
  EXPECT_FALSE(is_offloaded(*net_));
}

TEST_F(PlacementTest, WithWeightsKeepsAStreamedUnitWhileItRuns) {
  const torch::NoGradGuard no_grad;
  const auto model = load(limited());
  model(x_);
  auto& streamed = *model->layers[4]->as<torch::nn::Linear>();

  const auto drops = [&] { return model.stream_counts().drops; };
  const int64_t before = drops();
  const double sum = with_weights(streamed, [&] {
    EXPECT_TRUE(model(x_).equal(wanted_));
    EXPECT_EQ(drops() - before, 4) << "layers 1, 2, 3 and 5, and not layer 4";
    return at::from_blob(const_cast<float*>(streamed.weight.const_data_ptr<float>()), {192, 192}).sum().item<double>();
  });

  EXPECT_EQ(sum, layer(4).weight.sum().item<double>());
}

TEST_F(PlacementTest, WithWeightsLetsPointersWriteIfAsked) {
  const torch::NoGradGuard no_grad;
  const auto model = load(limited());
  auto& streamed = *model->layers[4]->as<torch::nn::Linear>();

  with_weights(streamed, [&] { const_cast<float*>(streamed.weight.const_data_ptr<float>())[0] = 5; },
               {.writable = true});
  for (int pass = 0; pass < 2; ++pass) model(x_);

  EXPECT_EQ(streamed.weight[0][0].item<float>(), 5);
}

TEST_F(PlacementTest, WithWeightsMovesThemToADeviceAndBack) {
  const torch::NoGradGuard no_grad;
  const auto model = load(limited());
  auto& streamed = *model->layers[4]->as<torch::nn::Linear>();

  with_weights(streamed, [&] { EXPECT_TRUE(streamed.weight.is_meta() && streamed.bias.is_meta()); },
               {.device = at::kMeta});

  EXPECT_TRUE(streamed.weight.is_cpu());
  for (int pass = 0; pass < 2; ++pass) EXPECT_TRUE(model(x_).equal(wanted_));
  auto empty = empty_weights([] { return Stack(); });
  const auto words = testing::words_of<UsageError>([&] { with_weights(*empty, [] {}, {.recurse = true}); });
  EXPECT_NE(words.find("'layers.0.weight' of Stack is empty"), std::string::npos) << words;
}

TEST(ArgumentTransfer, MovesTensorsButThoseOfSkippedKeysAndNumbers) {
  // The only other device of a build without accelerators.
  const detail::ArgumentTransfer transfer(at::Device(at::kMeta), {"mask", "#2"}, /*back=*/false);
  const at::Tensor x = torch::ones({2});
  const std::map<std::string, at::Tensor> named{{"ids", x}, {"mask", x}};

  EXPECT_TRUE(transfer.moved(0, x).is_meta());
  EXPECT_FALSE(transfer.moved(2, x).is_meta());
  EXPECT_TRUE(transfer.moved(1, named).at("ids").is_meta());
  EXPECT_FALSE(transfer.moved(1, named).at("mask").is_meta());
  const auto nested =
      transfer.moved(0, std::make_tuple(std::vector<at::Tensor>{x}, std::optional<at::Tensor>(x), 3, named));
  EXPECT_TRUE(std::get<0>(nested)[0].is_meta() && std::get<1>(nested)->is_meta());
  EXPECT_FALSE(std::get<3>(nested).at("mask").is_meta());
  EXPECT_FALSE(detail::ArgumentTransfer().moved(0, x).is_meta());
}

// Which tensors of a forward are where: an input that the handle has to leave alone.
struct TakesAMapImpl : torch::nn::Module {
  TakesAMapImpl() { weight = register_parameter("weight", torch::ones({2})); }
  at::Tensor forward(const std::map<std::string, at::Tensor>& inputs) { return inputs.at("x") * weight; }
  at::Tensor weight;
};
TORCH_MODULE(TakesAMap);

TEST(Dispatched, TakesNestedArguments) {
  const auto model = dispatch_model(TakesAMap(), {{"", "cpu"}}, {.skip_keys = {"x"}});

  EXPECT_TRUE(model(std::map<std::string, at::Tensor>{{"x", torch::ones({2})}}).equal(torch::ones({2})));
}

TEST_F(PlacementTest, DispatchedIsPlainForEveryMapDtypeBudgetAndNumberOfThreads) {
  const torch::NoGradGuard no_grad;
  const DeviceMap halves{{"layers.0", "cpu"},  {"layers.1", "disk"}, {"layers.2", "cpu"},
                         {"layers.3", "disk"}, {"layers.4", "disk"}, {"layers.5", "cpu"}};
  const int threads_before = torch::get_num_threads();
  for (const int threads : {1, 2}) {
    torch::set_num_threads(threads);
    for (const auto dtype : {at::kFloat, at::kDouble, at::kBFloat16}) {
      Stack plain;
      load_checkpoint_in_model(*plain, path("model.safetensors"));
      plain->to(dtype);
      const at::Tensor x = x_.to(dtype), expected = plain->forward(x);
      for (const DeviceMapChoice& map : {DeviceMapChoice("auto"), DeviceMapChoice("sequential"),
                                         DeviceMapChoice(DeviceMap{{"", "disk"}}), DeviceMapChoice(halves)}) {
        for (const int layers : {0, 3, 4, 5}) {
          DispatchOptions options{.device_map = map, .no_split_module_classes = {"Linear"}, .dtype = dtype};
          if (layers > 0) options.max_memory = {{"cpu", layers * kLayerBytes + 8192}};
          const auto model = load(options);
          for (int pass = 0; pass < 2; ++pass)
            EXPECT_TRUE(model(x).equal(expected)) << threads << " " << dtype << " " << layers;
        }
      }
    }
  }
  torch::set_num_threads(threads_before);
}

struct AdaptedImpl : torch::nn::Module {
  explicit AdaptedImpl(Stack net) {
    base = register_module("base", std::move(net));
    down = register_module("down", torch::nn::Linear(192, 4));
    up = register_module("up", torch::nn::Linear(4, 192));
    for (auto& parameter : base->parameters()) parameter.set_requires_grad(false);
  }
  at::Tensor forward(const at::Tensor& x) {
    return base->forward(x) + up(torch::tanh(down(x))) + base->layers[2]->as<torch::nn::Linear>()->forward(x);
  }
  Stack base{nullptr};
  torch::nn::Linear down{nullptr}, up{nullptr};
};
TORCH_MODULE(Adapted);

TEST_F(PlacementTest, AdaptersTrainOverAMappedOrStreamedBaseAsInMemory) {
  const auto train = [&](Stack base) {
    torch::manual_seed(4);
    Adapted net(std::move(base));
    torch::optim::SGD optimizer(
        std::vector<at::Tensor>{net->down->weight, net->down->bias, net->up->weight, net->up->bias}, 0.05);
    for (int step = 0; step < 5; ++step) {
      optimizer.zero_grad();
      net->forward(x_).pow(2).mean().backward();
      optimizer.step();
    }
    return torch::cat({net->down->weight.flatten(), net->up->weight.flatten(), net->up->bias}).detach();
  };
  auto mapped = load({.device_map = "auto"}), streamed = load(limited());

  const at::Tensor expected = train(net_);

  EXPECT_TRUE(train(mapped.model()).equal(expected));
  EXPECT_TRUE(train(streamed.model()).equal(expected));
  EXPECT_GT(streamed.stream_counts().drops, 5);
}

TEST_F(PlacementTest, ADispatchedModelIsSavedAndLoadedAgain) {
  const torch::NoGradGuard no_grad;
  const auto model = load(limited());
  save_weights(model.module(), path("again.safetensors"));

  Stack again;
  load_checkpoint_in_model(*again, path("again.safetensors"), {.strict = true});

  EXPECT_TRUE(again->forward(x_).equal(wanted_));
}

TEST_F(PlacementTest, ACloneOfADispatchedModelHasItsOwnValues) {
  const torch::NoGradGuard no_grad;
  torch::nn::Sequential net(torch::nn::Linear(192, 192), torch::nn::Linear(192, 192));
  save_weights(*net, path("two.safetensors"));
  const auto model =
      load_checkpoint_and_dispatch(net, path("two.safetensors"), {.device_map = DeviceMap{{"", "disk"}}});
  const at::Tensor expected = model(x_);

  auto clone = std::dynamic_pointer_cast<torch::nn::SequentialImpl>(model->clone());
  for (auto& parameter : model->parameters()) parameter.zero_();

  EXPECT_TRUE(clone->forward(x_).equal(expected));
  EXPECT_FALSE(is_offloaded(*clone));
}

// Kilobytes of a file's mappings in this process, of one kind.
int64_t kilobytes_of(const std::string& file, const std::string& kind) {
  std::ifstream maps("/proc/self/smaps");
  int64_t sum = 0;
  bool inside = false;
  for (std::string line; std::getline(maps, line);) {
    const bool is_head = line.find(": ") == std::string::npos || line.find('-') < line.find(' ');
    if (is_head) inside = line.ends_with(file);
    if (inside && line.starts_with(kind + ":")) sum += std::stoll(line.substr(kind.size() + 1));
  }
  return sum;
}

TEST_F(PlacementTest, AMappedModelHasNoPrivateMemory) {
  const torch::NoGradGuard no_grad;
  const auto model = load({.device_map = "auto"});
  model(x_);

  const std::string file = path("model.safetensors");
  EXPECT_GE(kilobytes_of(file, "Rss"), 6 * kLayerBytes / 1024);
  EXPECT_EQ(kilobytes_of(file, "Anonymous"), 0) << "ranks of a host share the page cache";
  model->layers[0]->as<torch::nn::Linear>()->weight.select(0, 0).add_(1);
  EXPECT_GT(kilobytes_of(file, "Anonymous"), 0) << "a write copies its pages";
  EXPECT_LE(kilobytes_of(file, "Anonymous"), 16);
}

struct SharedHeadImpl : torch::nn::Module {
  explicit SharedHeadImpl(const at::Tensor& shared) { weight = register_parameter("weight", shared); }
  at::Tensor forward(const at::Tensor& x) { return torch::nn::functional::linear(x, weight); }
  at::Tensor weight;
};
TORCH_MODULE(SharedHead);

struct SharedEndsImpl : torch::nn::Module {
  SharedEndsImpl() {
    emb = register_module("emb", torch::nn::Embedding(200, 100));
    head = register_module("head", SharedHead(emb->weight));
  }
  at::Tensor forward(const at::Tensor& ids) { return head(emb(ids)); }
  torch::nn::Embedding emb{nullptr};
  SharedHead head{nullptr};
};
TORCH_MODULE(SharedEnds);

TEST_F(PlacementTest, ATieWhoseNamesHaveTwoDevicesIsOneTensor) {
  const torch::NoGradGuard no_grad;
  const SharedEnds net;
  save_weights(*net, path("tied.safetensors"));
  const at::Tensor ids = torch::arange(5);

  const auto model = load_checkpoint_and_dispatch(empty_weights([] { return SharedEnds(); }), path("tied.safetensors"),
                                                  {.device_map = DeviceMap{{"emb", "cpu"}, {"head", "disk"}}});

  EXPECT_TRUE(model->emb->weight.is_same(model->head->weight));
  EXPECT_TRUE(model(ids).equal(net->emb->weight.index({ids}).matmul(net->emb->weight.t())));
}

TEST_F(PlacementTest, BothNamesOfATieAcrossDevicesReadWriteAndTrainOneTensor) {
  const SharedEnds net;
  save_weights(*net, path("tied.safetensors"));
  const at::Tensor ids = torch::arange(5);
  const DeviceMap map{{"emb", "cpu"}, {"head", "disk"}};

  const auto model = load_checkpoint_and_dispatch(empty_weights([] { return SharedEnds(); }), path("tied.safetensors"),
                                                  {.device_map = map});
  const auto ties = plan::ties_across_devices(tree_of(model.module()), map);
  model(ids).sum().backward();
  net->emb->weight.index({ids}).matmul(net->emb->weight.t()).sum().backward();
  const torch::NoGradGuard no_grad;
  model->head->weight.add_(1);

  ASSERT_EQ(ties.size(), 1u);
  EXPECT_EQ(ties[0].names, (std::vector<std::string>{"emb.weight", "head.weight"}));
  EXPECT_EQ(ties[0].extra_bytes, 0);
  EXPECT_EQ(model.report().units.size(), 1u) << "counted once\n" << model.report().text();
  EXPECT_TRUE(model->emb->weight.grad().allclose(net->emb->weight.grad()));
  EXPECT_TRUE(model->emb->weight.equal(net->emb->weight + 1));
}

TEST_F(PlacementTest, ACopyOfATieOnAnotherDeviceIsItsOwn) {
  // The only other device of a build without accelerators: what an accelerator gets are copies, and the tie comes back
  // whole.
  SharedEnds net;
  const auto values = net->emb->weight.detach().clone();

  with_weights(*net->head, [&] { EXPECT_TRUE(net->head->weight.is_meta() && net->emb->weight.is_meta()); },
               {.device = at::kMeta});

  EXPECT_TRUE(net->emb->weight.is_same(net->head->weight));
  EXPECT_TRUE(net->emb->weight.equal(values));
}

TEST_F(PlacementTest, ACheckpointHasDeviceMapsWithoutItsModule) {
  const MapOptions options{.max_memory = {{"cpu", 4 * kLayerBytes}}};

  const auto map = infer_auto_device_map(tree_of(*weights()), options);

  EXPECT_EQ(*map.device_of("layers.0.weight"), Device("cpu"));
  EXPECT_EQ(*map.device_of("layers.5.weight"), Device("disk"));
  EXPECT_EQ(map, infer_auto_device_map(*net_, options));
}

TEST(UnitPlanProperty, EveryPlanStaysWithinItsBudget) {
  std::mt19937_64 random(5);
  int streaming = 0;
  for (int round = 0; round < 2000; ++round) {
    std::vector<PlannedUnit> units(1 + random() % 30);
    int64_t total = 0, largest = 0;
    for (auto& unit : units) {
      unit.bytes = static_cast<int64_t>(random() % 1000);
      total += unit.bytes;
      largest = std::max(largest, unit.bytes);
    }
    const int64_t budget = 2 * largest + static_cast<int64_t>(random() % 5000);
    const UnitPlan plan = plan_units(units, budget);

    EXPECT_EQ(plan.resident_bytes + plan.streamed_bytes, total);
    EXPECT_LE(plan.resident_bytes + (plan.is_streaming() ? 2 * largest : 0), budget) << round;
    EXPECT_EQ(plan.is_streaming(), total > budget) << round;
    streaming += plan.is_streaming() ? 1 : 0;
  }
  EXPECT_GT(streaming, 200);
}

}  // namespace
}  // namespace hasten::offload
