#include "hasten/offload/load/dispatch.h"

#include <fcntl.h>
#include <gtest/gtest.h>
#include <sys/mman.h>
#include <torch/torch.h>
#include <unistd.h>

#include <algorithm>
#include <filesystem>
#include <vector>

#include "hasten/core/error.h"
#include "hasten/offload/hooks/cpu_offload_hook.h"
#include "hasten/offload/hooks/hook_site.h"
#include "hasten/offload/hooks/layerwise_casting.h"
#include "hasten/offload/units/cast_weights.h"
#include "hasten/offload/units/set_tensor.h"
#include "hasten/offload/units/weight_streamer.h"
#include "offload/load/memory_source.h"
#include "offload/stack_net.h"
#include "offload/units/read_ahead.h"
#include "offload/units/unit_plan.h"

namespace hasten::offload {
namespace {

class DispatchTest : public StackInFile {};

TEST_F(DispatchTest, AMappedModelComputesTheSameBits) {
  const torch::NoGradGuard no_grad;
  const auto model = load({.device_map = "auto"});

  EXPECT_TRUE(testing::same_values(model(x_), wanted_));
  EXPECT_TRUE(testing::same_values(model->forward(x_), wanted_));
  EXPECT_EQ(model.load_report().copied_bytes, 0);
  EXPECT_GT(model.load_report().mapped_bytes, 0);
  EXPECT_EQ(model.report().units.front().action, "mapped");
}

TEST_F(DispatchTest, AStreamedModelComputesTheSameBitsWithinItsBudget) {
  const torch::NoGradGuard no_grad;
  // Room for three of six layers: one stays, one is in use while the next is read.
  constexpr int64_t kLayer = int64_t{192} * 192 * 4;
  const auto model =
      load({.device_map = "auto", .max_memory = {{"cpu", 3 * kLayer + 8192}}, .no_split_module_classes = {"Linear"}});

  for (int pass = 0; pass < 3; ++pass) EXPECT_TRUE(testing::same_values(model(x_), wanted_));

  const auto units = model.report().units;
  ASSERT_EQ(units.size(), 6u);
  EXPECT_EQ(units[0].action, "resident");
  for (size_t i = 1; i < 6; ++i) EXPECT_EQ(units[i].action, "streamed");
  EXPECT_GE(model.stream_counts().drops, 5 * 2);
  EXPECT_NE(testing::words_of<UsageError>([&] {
              load({.device_map = "auto", .max_memory = {{"cpu", kLayer}}, .no_split_module_classes = {"Linear"}});
            }).find("twice the largest unit"),
            std::string::npos);
}

// Bytes of a file that the page cache holds.
int64_t cached_bytes(const std::string& path) {
  const int file = open(path.c_str(), O_RDONLY | O_CLOEXEC);
  const auto size = static_cast<size_t>(lseek(file, 0, SEEK_END)), page = static_cast<size_t>(sysconf(_SC_PAGESIZE));
  void* const data = mmap(nullptr, size, PROT_READ, MAP_SHARED, file, 0);
  std::vector<unsigned char> pages(size / page + 1);
  mincore(data, size, pages.data());
  munmap(data, size);
  close(file);
  return static_cast<int64_t>(page) *
         std::count_if(pages.begin(), pages.end(), [](unsigned char one) { return (one & 1) != 0; });
}

TEST_F(DispatchTest, PagesOfStreamedUnitsStayInThePageCacheOrGo) {
  const torch::NoGradGuard no_grad;
  const int file = open(path("model.safetensors").c_str(), O_RDONLY | O_CLOEXEC);
  fdatasync(file);  // dirty pages cannot be dropped
  close(file);
  for (const PageCache cache : {PageCache::kAuto, PageCache::kKeep, PageCache::kDrop}) {
    auto options = limited();
    options.page_cache = cache;
    const auto model = load(options);

    for (int pass = 0; pass < 3; ++pass) EXPECT_TRUE(testing::same_values(model(x_), wanted_));

    EXPECT_GE(model.stream_counts().drops, 5 * 2);
    const int64_t cached = cached_bytes(path("model.safetensors"));
    if (cache == PageCache::kDrop) {
      EXPECT_LT(cached, 6 * kLayerBytes) << "a file system that does not drop its cache?";
    } else {
      EXPECT_GE(cached, 6 * kLayerBytes);
    }
  }
}

TEST_F(DispatchTest, StreamedWeightsGiveGradientsOfTheSameBits) {
  constexpr int64_t kLayer = int64_t{192} * 192 * 4;
  auto model =
      load({.device_map = "auto", .max_memory = {{"cpu", 3 * kLayer + 8192}}, .no_split_module_classes = {"Linear"}});
  const at::Tensor x = x_.clone().requires_grad_(), y = x_.clone().requires_grad_();

  model(x).sum().backward();
  net_->forward(y).sum().backward();

  EXPECT_TRUE(testing::same_values(x.grad(), y.grad()));
  EXPECT_TRUE(testing::same_values(model->layers[3]->as<torch::nn::Linear>()->weight.grad(),
                                   net_->layers[3]->as<torch::nn::Linear>()->weight.grad()));
}

TEST_F(DispatchTest, AWriteMakesAStreamedUnitResidentAndIsKept) {
  const torch::NoGradGuard no_grad;
  auto net = empty_weights([] { return Stack(); });
  const auto report = load_checkpoint_in_model(*net, files::Catalog::open(path("model.safetensors")));
  const auto& place = report.places.at("layers.2.weight");
  auto& weight = net->layers[2]->as<torch::nn::Linear>()->weight;
  WeightStreamer streamer(
      {{"layers.2", {"layers.2.weight"}, {weight}, {{place.region, place.offset, place.bytes}}, true},
       {"none", {}, {}, {}, true}});

  weight.mul_(2);
  for (int pass = 0; pass < 2; ++pass) net->forward(x_);

  EXPECT_TRUE(weight.equal(net_->layers[2]->as<torch::nn::Linear>()->weight * 2));
  EXPECT_EQ(streamer.counts().resident_bytes, static_cast<int64_t>(place.bytes));
}

TEST_F(DispatchTest, AboveTheLimitWeightsAreCastByOperators) {
  const torch::NoGradGuard no_grad;
  constexpr int64_t kLayer = int64_t{192} * 192 * 4;
  const DispatchOptions limited{.device_map = "auto",
                                .max_memory = {{"cpu", 3 * kLayer + 8192}},
                                .no_split_module_classes = {"Linear"},
                                .dtype = at::kDouble};
  const auto streamed = load(limited), whole = load({.device_map = "auto", .dtype = at::kDouble});

  EXPECT_TRUE(testing::same_values(streamed(x_.to(at::kDouble)), whole(x_.to(at::kDouble))));
  EXPECT_EQ(streamed->layers[0]->as<torch::nn::Linear>()->weight.scalar_type(), at::kFloat);
  EXPECT_EQ(whole->layers[0]->as<torch::nn::Linear>()->weight.scalar_type(), at::kDouble);
}

TEST_F(DispatchTest, BackwardThroughAMappedModelGivesTheSameGradients) {
  auto model = load({.device_map = "auto"});
  const at::Tensor x = x_.clone().requires_grad_(), y = x_.clone().requires_grad_();

  model(x).sum().backward();
  net_->forward(y).sum().backward();

  EXPECT_TRUE(testing::same_values(x.grad(), y.grad()));
  EXPECT_TRUE(testing::same_values(model->layers[3]->as<torch::nn::Linear>()->weight.grad(),
                                   net_->layers[3]->as<torch::nn::Linear>()->weight.grad()));
}

TEST_F(DispatchTest, AWriteNeverReachesTheFile) {
  const torch::NoGradGuard no_grad;
  {
    const auto model = load({.device_map = "auto"});
    for (auto& parameter : model->parameters()) parameter.zero_();
  }

  EXPECT_TRUE(testing::same_values(load({.device_map = "auto"})(x_), wanted_));
}

TEST_F(DispatchTest, ADtypeHoldsWithAndWithoutAMap) {
  for (const DeviceMapChoice& map :
       {DeviceMapChoice(), DeviceMapChoice("auto"), DeviceMapChoice(DeviceMap{{"", "disk"}})}) {
    const auto model = load({.device_map = map, .dtype = at::kBFloat16, .keep_in_fp32_modules = {"layers.1"}});

    EXPECT_EQ(model->layers[0]->as<torch::nn::Linear>()->weight.scalar_type(), at::kBFloat16);
    EXPECT_EQ(model->layers[1]->as<torch::nn::Linear>()->weight.scalar_type(), at::kFloat);
  }
}

TEST_F(DispatchTest, WhatIsMissingIsReplayedOrAnErrorIfStrict) {
  struct LargerImpl : StackImpl {
    LargerImpl() { extra = register_module("extra", torch::nn::Linear(2, 2)); }
    torch::nn::Linear extra{nullptr};
  };
  auto net = empty_weights([] { return std::make_shared<LargerImpl>(); });

  const auto words = testing::words_of<DataError>(
      [&] { load_checkpoint_in_model(*net, path("model.safetensors"), {.strict = true}); });
  EXPECT_TRUE(net->layers[0]->as<torch::nn::Linear>()->weight.is_meta()) << "nothing may be loaded";
  const auto report = load_checkpoint_in_model(*net, path("model.safetensors"));

  EXPECT_NE(words.find("extra.weight"), std::string::npos) << words;
  EXPECT_EQ(report.replayed, (std::vector<std::string>{"extra.weight", "extra.bias"}));
  EXPECT_FALSE(net->extra->weight.is_meta());
}

TEST_F(DispatchTest, AnotherShapeIsRefusedBeforeAnyTensorChanges) {
  Stack other(100);
  const at::Tensor before = other->layers[0]->as<torch::nn::Linear>()->weight.detach().clone();

  const auto words = testing::words_of<DataError>([&] { load_checkpoint_in_model(*other, path("model.safetensors")); });

  EXPECT_NE(words.find("'layers.0.weight' is [192, 192] in the file and [100, 100] in the module"), std::string::npos)
      << words;
  EXPECT_TRUE(before.equal(other->layers[0]->as<torch::nn::Linear>()->weight));
}

TEST_F(DispatchTest, AFileThatIsCutWhileMappedIsAnErrorAtTheNextPass) {
  const torch::NoGradGuard no_grad;
  const auto model = load({.device_map = "auto"});
  model(x_);
  std::filesystem::resize_file(path("model.safetensors"), 5000);

  EXPECT_NE(testing::words_of<DataError>([&] { model(x_); }).find("was written to while the model used it"),
            std::string::npos);
}

TEST_F(DispatchTest, AReplacedFileIsNoChangeAndReloadTakesIt) {
  const torch::NoGradGuard no_grad;
  auto model = load({.device_map = "auto"});
  Stack other;
  save_weights(*other, path("new"));
  std::filesystem::rename(path("new"), path("model.safetensors"));

  EXPECT_TRUE(testing::same_values(model(x_), wanted_));
  model.reload(path("model.safetensors"));

  EXPECT_TRUE(testing::same_values(model(x_), other->forward(x_)));
}

TEST_F(DispatchTest, AnOffloadFolderOfAnotherModelIsRefused) {
  const auto model = disk_offload(net_, path("folder"));
  const torch::NoGradGuard no_grad;
  EXPECT_TRUE(testing::same_values(model(x_), wanted_));

  const auto words = testing::words_of<UsageError>([&] { disk_offload(Stack(64), path("folder")); });

  EXPECT_NE(words.find("holds another model"), std::string::npos) << words;
}

TEST_F(DispatchTest, ADeviceThatIsNotThereAndAMapWithHolesAreRefused) {
  EXPECT_NE(testing::words_of<UsageError>([&] {
              dispatch_model(net_, {{"", 3}});
            }).find("names the devices 3"),
            std::string::npos);
  EXPECT_NE(testing::words_of<UsageError>([&] {
              dispatch_model(net_, {{"layers.0", "cpu"}});
            }).find("layers.1.weight"),
            std::string::npos);
  EXPECT_NE(testing::words_of<UsageError>([&] { load({.device_map = "balance"}); }).find("did you mean 'balanced'?"),
            std::string::npos);
  EXPECT_NE(testing::words_of<UsageError>([&] {
              dispatch_model(net_, {{"", "disk"}});
            }).find("offload_dir"),
            std::string::npos);
}

TEST_F(DispatchTest, ADispatchedModelIsNotMovedBeforeItIsUndispatched) {
  const auto model = load({.device_map = DeviceMap{{"", "disk"}}});

  EXPECT_NE(testing::words_of<UsageError>([&] { model.to(at::kDouble); }).find("undispatch"), std::string::npos);
  undispatch(model.module());
  model.to(at::kDouble);

  EXPECT_EQ(model->parameters()[0].scalar_type(), at::kDouble);
}

struct TiedLayerImpl : torch::nn::Module {
  explicit TiedLayerImpl(const at::Tensor& shared) {
    weight = register_parameter("weight", shared);
    bias = register_parameter("bias", torch::randn(8));
  }
  at::Tensor forward(const at::Tensor& x) { return torch::linear(x, weight, bias); }
  at::Tensor weight, bias;
};
TORCH_MODULE(TiedLayer);

// Two layers that share their weight.
struct TiedLayersImpl : torch::nn::Module {
  TiedLayersImpl() {
    first = register_module("first", TiedLayer(torch::randn({8, 8})));
    last = register_module("last", TiedLayer(first->weight));
  }
  at::Tensor forward(const at::Tensor& x) { return last(torch::relu(first(x))); }
  TiedLayer first{nullptr}, last{nullptr};
};
TORCH_MODULE(TiedLayers);

TEST_F(DispatchTest, ATiedTensorWithANameInMemoryStaysThereWhicheverNameComesFirst) {
  const torch::NoGradGuard no_grad;
  const at::Tensor x = torch::randn({2, 8});
  for (const auto& [first, last] : {std::pair("cpu", "disk"), std::pair("disk", "cpu")}) {
    TiedLayers net;
    const at::Tensor wanted = net(x);
    save_weights(*net, path("tied.safetensors"));
    const DeviceMap map{{"first", Device(first)}, {"last", Device(last)}};

    const auto placed = dispatch_model(net, map, {.offload_dir = path(std::string("away_") + first)});
    const auto loaded =
        load_checkpoint_and_dispatch(TiedLayers(), path("tied.safetensors"),
                                     {.device_map = map, .offload_folder = path(std::string("copy_") + first)});

    for (const auto* dispatched : {&placed, &loaded}) {
      const auto& model = *dispatched;
      EXPECT_FALSE(is_offloaded(model->first->weight)) << first;
      EXPECT_FALSE(is_offloaded(model->last->weight)) << first;
      EXPECT_EQ(is_offloaded(model->first->bias), std::string(first) == "disk");
      EXPECT_EQ(is_offloaded(model->last->bias), std::string(last) == "disk");
    }
    EXPECT_TRUE(testing::same_values(placed(x), wanted));
    EXPECT_TRUE(testing::same_values(loaded(x), wanted));
  }
}

TEST(UnitPlan, KeepsTheFirstUnitsAndStreamsTheRest) {
  const std::vector<PlannedUnit> units{{"a", 10}, {"b", 10}, {"c", 20}, {"d", 10}, {"e", 10}};

  EXPECT_FALSE(plan_units(units, 60).is_streaming());
  const UnitPlan plan = plan_units(units, 59);
  EXPECT_EQ(plan.streamed, (std::vector<bool>{false, true, true, true, true}));
  EXPECT_LE(plan.resident_bytes + 2 * plan.largest_bytes, 59);
  const auto words = testing::words_of<UsageError>([&] { plan_units(units, 39); });
  EXPECT_NE(words.find("2 * 20 = 40"), std::string::npos) << words;
  EXPECT_NE(words.find("'c'"), std::string::npos) << words;

  const auto given = testing::words_of<UsageError>([&] { plan_units(units, 39, 50); });
  EXPECT_NE(given.find("the limit of 50 bytes, of which tensors that stay in memory leave 39,"), std::string::npos)
      << given;
}

TEST(ReadAhead, AReadThatFailsIsThrownWhereItIsWaitedForAndTriedAgain) {
  int calls = 0;
  ReadAhead reader(2, [&](size_t unit) {
    ++calls;
    if (unit == 1 && calls < 3) throw DataError(Origin{"offload"}, "f", "read error");
  });
  reader.request(0);
  reader.wait(0);
  reader.wait(0);
  EXPECT_EQ(calls, 1);

  EXPECT_THROW(reader.wait(1), DataError);
  EXPECT_NO_THROW(reader.wait(1));
  reader.forget(0);
  reader.wait(0);
  EXPECT_EQ(calls, 4);
}

TEST(LayerwiseCasting, WeightsRestSmallComputeWideAndGetGradients) {
  torch::manual_seed(2);
  torch::nn::Sequential net(torch::nn::Linear(8, 8), torch::nn::LayerNorm(torch::nn::LayerNormOptions({8})),
                            torch::nn::Linear(8, 3));
  const at::Tensor x = torch::randn({4, 8});
  {
    const auto casts = layerwise_casting(*net, at::kBFloat16, at::kFloat, {.skip_modules_pattern = {"^2$"}});
    const auto first = net->ptr<torch::nn::LinearImpl>(0);
    EXPECT_EQ(first->weight.scalar_type(), at::kBFloat16);
    EXPECT_EQ(net->ptr<torch::nn::LinearImpl>(2)->weight.scalar_type(), at::kFloat);
    EXPECT_EQ(compute_type_of(first->weight), at::kFloat);

    const at::Tensor y = net->forward(x);
    y.sum().backward();

    EXPECT_EQ(y.scalar_type(), at::kFloat);
    EXPECT_EQ(first->weight.grad().scalar_type(), at::kBFloat16);
    EXPECT_EQ(first->weight.detach().scalar_type(), at::kBFloat16) << "saving stores what rests";
  }
  EXPECT_THROW(net->forward(x), c10::Error) << "without the handle nothing is cast";
}

TEST(MemorySource, FillsAModuleFromAStateDict) {
  torch::nn::Linear net(2, 2);

  const auto report =
      load_checkpoint_in_model(*net, *memory_source({{"weight", torch::eye(2)}, {"other", torch::ones({1})}}));

  EXPECT_TRUE(net->weight.equal(torch::eye(2)));
  EXPECT_EQ(report.missing, std::vector<std::string>{"bias"});
  EXPECT_EQ(report.unexpected, std::vector<std::string>{"other"});
  EXPECT_THROW(offloaded_weights_loader({}), UsageError);
}

struct CountingHook : ModelHook {
  int before = 0, after = 0;
  void before_forward(torch::nn::Module&, Arguments& arguments) override {
    ++before;
    arguments.get<at::Tensor>(0) = arguments.get<at::Tensor>(0) + 1;
  }
  void after_forward(torch::nn::Module&, Output&) override { ++after; }
};

struct HookedNetImpl : torch::nn::Module {
  HookedNetImpl() {
    fc = register_module("fc", Hooked<torch::nn::Linear>(4, 4));
    plain = register_module("plain", torch::nn::Linear(4, 4));
    list = register_module("list", torch::nn::Sequential(torch::nn::Linear(4, 4), torch::nn::ReLU()));
  }
  at::Tensor forward(const at::Tensor& x) { return list->forward(plain(fc->forward(x))); }
  Hooked<torch::nn::Linear> fc{nullptr};
  torch::nn::Linear plain{nullptr};
  torch::nn::Sequential list{nullptr};
};
TORCH_MODULE(HookedNet);

TEST(Hooks, RunForHookedMembersAndSlotsAndAreRefusedElsewhere) {
  HookedNet net;
  const auto counter = std::make_shared<CountingHook>();
  add_hook(*net, "fc", counter);
  add_hook(*net, "list.0", counter);

  net->forward(torch::ones({1, 4}));

  EXPECT_EQ(counter->before, 2);
  EXPECT_EQ(counter->after, 2);
  EXPECT_NE(net->fc->as<torch::nn::Linear>(), nullptr);
  EXPECT_EQ(net->named_parameters().keys().front(), "fc.weight");
  const auto words = testing::words_of<UsageError>([&] { add_hook(*net, "plain", counter); });
  EXPECT_NE(words.find("offload::Hooked"), std::string::npos) << words;
  EXPECT_NE(testing::words_of<UsageError>([&] { add_hook(*net, "list.O", counter); }).find("did you mean"),
            std::string::npos);
  remove_hooks(*net);
  net->forward(torch::ones({1, 4}));
  EXPECT_EQ(counter->before, 2);
}

TEST(Hooks, OnUseTellsWhenAModulesTensorsAreUsed) {
  HookedNet net;
  std::vector<std::string> events;
  const auto first = on_use(
      *net->plain, [&] { events.push_back("enter plain"); }, [&] { events.push_back("leave plain"); });
  const auto second = on_use(
      *net->list->ptr(0), [&] { events.push_back("enter list"); }, [&] { events.push_back("leave list"); });
  const torch::NoGradGuard no_grad;

  net->forward(torch::ones({1, 4}));
  OnUse::finish();

  EXPECT_EQ(events, (std::vector<std::string>{"enter plain", "leave plain", "enter list", "leave list"}));
}

TEST(CpuOffloadWithHook, ACallSendsTheModelBeforeItAway) {
  auto [first, first_hook] = cpu_offload_with_hook(torch::nn::Linear(2, 2), at::kCPU);
  auto [second, second_hook] = cpu_offload_with_hook(torch::nn::Linear(2, 2), at::kCPU, first_hook);

  first(torch::ones({1, 2}));
  EXPECT_TRUE(first_hook.is_on_device());
  second(torch::ones({1, 2}));

  EXPECT_FALSE(first_hook.is_on_device());
  EXPECT_TRUE(second_hook.is_on_device());
  EXPECT_EQ(OffloadGroup::to_evict({{0, 4}, {1, 4}, {2, 4}}, 6, 12), (std::vector<size_t>{0, 1}));
  EXPECT_THROW(OffloadGroup::to_evict({}, 13, 12), UsageError);
}

}  // namespace
}  // namespace hasten::offload
