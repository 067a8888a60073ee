// TorchScript modules with hooks, device maps and offloaded weights: what torch::nn modules have.
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <torch/script.h>
#include <torch/torch.h>

#include <sstream>
#include <string>
#include <vector>

#include "hasten/core/error.h"
#include "hasten/offload/hooks/cpu_offload_hook.h"
#include "hasten/offload/hooks/hook_site.h"
#include "hasten/offload/hooks/script_site.h"
#include "hasten/offload/load/dispatch.h"
#include "hasten/offload/load/placement.h"
#include "hasten/parallel/model/jit_module.h"
#include "offload/stack_net.h"
#include "support/folder.h"

namespace hasten::offload {
namespace {

using parallel::JitModule;
using ::testing::ElementsAre;
using ::testing::HasSubstr;

constexpr int64_t kWidth = 192, kLayerBytes = kWidth * kWidth * 4;

// tanh(x W) four times, of two blocks with two layers of one class each; saved and loaded, as scripts of Python are.
torch::jit::Module make_script() {
  auto generator = at::detail::createCPUGenerator(3);
  const auto layer = [&] {
    torch::jit::Module made("Layer");
    made.register_parameter("weight", (at::randn({kWidth, kWidth}, generator) / 14).requires_grad_(),
                            /*is_buffer=*/false);
    made.define("def forward(self, x, scale: float = 1.0):\n    return torch.tanh(torch.mm(x, self.weight)) * scale\n");
    return made;
  };
  const auto first = layer();
  const auto block = [&](const torch::jit::Module& one, const torch::jit::Module& two) {
    torch::jit::Module made("Block");
    made.register_module("one", one);
    made.register_module("two", two);
    made.define("def forward(self, x):\n    return self.two.forward(self.one.forward(x, 0.5)) + x\n");
    return made;
  };
  torch::jit::Module twin(first.type()->compilation_unit(), first.type());  // another object of the same class
  twin.setattr("weight", (at::randn({kWidth, kWidth}, generator) / 14).requires_grad_());
  torch::jit::Module script("Script");
  script.register_module("head", block(first, twin));
  script.register_module("tail", block(layer(), layer()));
  script.define("def forward(self, x):\n    return self.tail.forward(self.head.forward(x))\n");
  std::stringstream file;
  script.save(file);
  return torch::jit::load(file);
}

struct Recorder : ModelHook {
  explicit Recorder(std::vector<std::string>& to) : events(to) {}
  void attached(torch::nn::Module& module) override { events.push_back("attached " + module.name()); }
  void detached(torch::nn::Module&) override { events.push_back("detached"); }
  void before_forward(torch::nn::Module& module, Arguments& arguments) override {
    events.push_back("before " + module.name() + " of " + std::to_string(arguments.size()));
    if (input_factor != 1) arguments.get<at::Tensor>(0) = arguments.get<at::Tensor>(0) * input_factor;
  }
  void after_forward(torch::nn::Module&, Output& output) override {
    events.push_back("after");
    if (output_factor != 1) output.get<at::Tensor>() = output.get<at::Tensor>() * output_factor;
    if (gives_number) output.get<c10::IValue>() = 3;
    recorded = output.find<at::Tensor>() != nullptr && output.get<at::Tensor>().requires_grad();
  }
  std::vector<std::string>& events;
  double input_factor = 1, output_factor = 1;
  bool gives_number = false, recorded = false;
};

at::Tensor by_hand(const torch::jit::Module& script, const at::Tensor& x, double input = 1, double output = 1) {
  const auto weight = [&](const char* block, const char* layer) {
    return script.attr(block).toModule().attr(layer).toModule().attr("weight").toTensor();
  };
  const auto layer = [&](const at::Tensor& in, const char* block, const char* name) {
    return torch::tanh(torch::mm(in, weight(block, name)));
  };
  const at::Tensor head = layer(layer(x, "head", "one") * 0.5 * 1, "head", "two") + x;
  const at::Tensor one = layer(head, "tail", "one") * 0.5;
  return layer(one * input, "tail", "two") * output + head;
}

TEST(JitHooks, RunAroundThePartOfAScriptThatTheyAreAddedTo) {
  auto script = make_script();
  JitModule net(script);
  const at::Tensor x = torch::randn({3, kWidth});
  const at::Tensor plain = script.forward({x}).toTensor();  // compiled before there are hooks
  std::vector<std::string> events;
  const auto hook = std::make_shared<Recorder>(events);
  hook->input_factor = 2;
  hook->output_factor = 3;

  add_hook(*net, "tail.two", hook);
  const at::Tensor hooked = net->forward(x).toTensor(), by_script = script.forward({x}).toTensor();
  remove_hooks(*net);

  EXPECT_TRUE(hooked.allclose(by_hand(script, x, 2, 3)));
  EXPECT_TRUE(by_script.equal(hooked)) << "both are the same script";
  EXPECT_THAT(events,
              ElementsAre("attached Layer", "before Layer of 2", "after", "before Layer of 2", "after", "detached"));
  EXPECT_TRUE(net->forward(x).toTensor().equal(plain));
}

TEST(JitHooks, ObjectsOfOneClassHaveTheirOwn) {
  JitModule net(make_script());
  ASSERT_EQ(net->jit().attr("head").toModule().attr("one").type(),
            net->jit().attr("head").toModule().attr("two").type());
  const at::Tensor x = torch::randn({3, kWidth});
  std::vector<std::string> first, second;
  add_hook(*net, "head.one", std::make_shared<Recorder>(first));
  add_hook(*net, "head.two", std::make_shared<Recorder>(second));

  net->forward(x);
  remove_hook(*net, "head.one");
  net->forward(x);

  EXPECT_THAT(first, ElementsAre("attached Layer", "before Layer of 2", "after", "detached"));
  EXPECT_THAT(second, ElementsAre("attached Layer", "before Layer of 2", "after", "before Layer of 2", "after"));
}

TEST(JitHooks, NestInTheOrderOfTheCallsBelowAnotherModuleToo) {
  struct OuterImpl : torch::nn::Module {
    explicit OuterImpl(JitModule made) : inner(register_module("inner", std::move(made))) {}
    at::Tensor forward(const at::Tensor& x) { return inner->forward(x).toTensor(); }
    JitModule inner;
  };
  OuterImpl outer{JitModule(make_script())};
  std::vector<std::string> events;
  for (const char* name : {"inner.head", "inner.head.one", "inner"})
    add_hook(outer, name, std::make_shared<Recorder>(events));
  events.clear();

  outer.forward(torch::randn({3, kWidth}));

  EXPECT_THAT(events, ElementsAre("before JitModule of 1", "before Block of 1", "before Layer of 2", "after", "after",
                                  "after"));
  EXPECT_THAT(testing::words_of<UsageError>([&] { add_hook(outer, "inner.haed", nullptr); }),
              HasSubstr("did you mean 'inner.head'?"));
}

TEST(JitHooks, NoGradEndsWithTheForwardThatHasIt) {
  JitModule net(make_script());
  std::vector<std::string> events;
  const auto hook = std::make_shared<Recorder>(events);
  hook->no_grad = true;
  add_hook(*net, "head.one", hook);

  const at::Tensor out = net->forward(torch::randn({3, kWidth})).toTensor();

  EXPECT_FALSE(hook->recorded);
  out.sum().backward();
  EXPECT_FALSE(net->named_parameters()["head.one.weight"].grad().defined());
  EXPECT_TRUE(net->named_parameters()["head.two.weight"].grad().defined());
  EXPECT_THROW(net->forward(torch::randn({3, 5})), std::exception);
  EXPECT_TRUE(torch::GradMode::is_enabled());
}

TEST(JitHooks, WhatCannotRunAndWhatTheScriptCannotTakeAreErrors) {
  torch::jit::Module silent("Silent"), script("Script");
  script.register_module("silent", silent);
  JitModule parts(script), net(make_script());
  std::vector<std::string> events;
  const auto hook = std::make_shared<Recorder>(events);
  hook->gives_number = true;

  EXPECT_THAT(testing::words_of<UsageError>([&] { add_hook(*parts, "silent", hook); }),
              HasSubstr("its script has no forward"));
  add_hook(*net, "head.one", hook);
  std::string words;
  try {
    net->forward(torch::randn({3, kWidth}));
  } catch (const std::exception& error) {
    words = error.what();
  }
  EXPECT_THAT(words, HasSubstr("a hook gave int as the output of"));
  std::stringstream hooked, file;
  net->jit().save(hooked);
  EXPECT_THROW(torch::jit::load(hooked), std::exception) << "a hook is no code of the script";
  remove_hooks(*net);
  net->jit().save(file);
  EXPECT_EQ(torch::jit::load(file).named_parameters().size(), 4);
}

TEST(JitHooks, EndWithTheHandleThatHasThem) {
  auto script = make_script();
  std::vector<std::string> events;
  {
    JitModule net(script);
    add_hook(*net, "head.one", std::make_shared<Recorder>(events));
  }
  const at::Tensor x = torch::randn({3, kWidth});

  EXPECT_TRUE(script.forward({x}).toTensor().allclose(by_hand(script, x)));
  EXPECT_THAT(events, ElementsAre("attached Layer"));
}

class JitOffload : public testing::InFolder {
 protected:
  void SetUp() override {
    testing::InFolder::SetUp();
    net_ = JitModule(make_script());
    save_weights(*net_, path("model.safetensors"));
    x_ = torch::randn({3, kWidth});
    const torch::NoGradGuard no_grad;
    wanted_ = net_->forward(x_).toTensor();
  }
  JitModule net_{nullptr};
  at::Tensor x_, wanted_;
};

TEST_F(JitOffload, AScriptStreamsItsWeightsWithinALimit) {
  const torch::NoGradGuard no_grad;
  JitModule other(make_script());
  for (auto& parameter : other->parameters()) parameter.zero_();

  const auto model = load_checkpoint_and_dispatch(
      other, path("model.safetensors"),
      {.device_map = "auto", .max_memory = {{"cpu", 3 * kLayerBytes + 8192}}, .no_split_module_classes = {"Layer"}});

  for (int pass = 0; pass < 3; ++pass) EXPECT_TRUE(model(x_).toTensor().equal(wanted_)) << pass;
  EXPECT_GE(model.stream_counts().drops, 4);
  EXPECT_EQ(model.report().units.size(), 4u) << model.report().text();
}

TEST_F(JitOffload, AScriptOnTheMetaDeviceIsFilledFromAFile) {
  const torch::NoGradGuard no_grad;
  net_->jit().save(path("net.pt"));
  const JitModule empty(torch::jit::load(path("net.pt"), at::kMeta));
  ASSERT_TRUE(empty->parameters()[0].is_meta());

  const auto model = load_checkpoint_and_dispatch(empty, path("model.safetensors"), {.device_map = "auto"});

  EXPECT_TRUE(model(x_).toTensor().equal(wanted_));
  EXPECT_EQ(model.load_report().copied_bytes, 0);
}

TEST_F(JitOffload, DispatchCpuOffloadAndDiskOffloadTakeScripts) {
  const torch::NoGradGuard no_grad;
  EXPECT_TRUE(dispatch_model(net_, {{"", "cpu"}})(x_).toTensor().equal(wanted_));
  EXPECT_TRUE(cpu_offload(net_)(x_).toTensor().equal(wanted_));
  {
    auto model = disk_offload(net_, path("folder"));
    std::vector<std::string> events;
    model.add_hook(std::make_shared<Recorder>(events));
    EXPECT_TRUE(is_offloaded(net_->named_parameters()["tail.one.weight"]));
    EXPECT_TRUE(model(x_).toTensor().equal(wanted_));
    EXPECT_TRUE(net_->jit().forward({x_}).toTensor().equal(wanted_));
    EXPECT_THAT(events, ElementsAre("attached JitModule", "before JitModule of 1", "after"));
  }
  undispatch(*net_);
  EXPECT_TRUE(net_->forward(x_).toTensor().equal(wanted_));
}

TEST_F(JitOffload, AMapPutsPartsOfAScriptOnDisk) {
  const torch::NoGradGuard no_grad;
  const auto map = infer_auto_device_map(
      *net_, {.max_memory = {{"cpu", 7 * kLayerBytes / 2}}, .no_split_module_classes = {"Layer"}});
  ASSERT_EQ(map, (DeviceMap{{"head", "cpu"}, {"tail", "disk"}}));

  const auto model = dispatch_model(net_, map, {.offload_dir = path("folder")});

  EXPECT_TRUE(model(x_).toTensor().equal(wanted_));
  EXPECT_FALSE(is_offloaded(net_->named_parameters()["head.one.weight"]));
  EXPECT_TRUE(is_offloaded(net_->named_parameters()["tail.one.weight"]));
}

TEST_F(JitOffload, APlacedScriptReadsItsWeightsForItsOperators) {
  const torch::NoGradGuard no_grad;
  const auto weights = std::make_shared<files::Catalog>(files::Catalog::open(path("model.safetensors")));

  const auto placed = place(net_, {.offload = true, .weights_map = weights});

  for (int pass = 0; pass < 2; ++pass) EXPECT_TRUE(placed(x_).toTensor().equal(wanted_));
  EXPECT_GE(placed.stream_counts().drops, 4);
}

TEST_F(JitOffload, ScriptsTakeTurnsOnADevice) {
  auto [first, first_hook] = cpu_offload_with_hook(net_, at::kCPU);
  auto [second, second_hook] = cpu_offload_with_hook(JitModule(make_script()), at::kCPU, first_hook);

  EXPECT_TRUE(first(x_).toTensor().equal(wanted_));
  EXPECT_TRUE(second(x_).toTensor().equal(wanted_));

  EXPECT_FALSE(first_hook.is_on_device());
  EXPECT_TRUE(second_hook.is_on_device());
}

TEST(JitArguments, ValuesOfAScriptMoveWithTheTensorsInThem) {
  const detail::ArgumentTransfer transfer(at::Device(at::kMeta), {}, /*back=*/false);
  const at::Tensor x = torch::ones({2});

  EXPECT_TRUE(transfer.moved(0, c10::IValue(x)).toTensor().is_meta());
  EXPECT_TRUE(transfer.moved(0, c10::IValue(std::make_tuple(x, 3))).toTupleRef().elements()[0].toTensor().is_meta());
  EXPECT_EQ(transfer.moved(0, c10::IValue(3)).toInt(), 3);
}

}  // namespace
}  // namespace hasten::offload
