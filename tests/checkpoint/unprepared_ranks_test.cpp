// Saves and loads of a program that has prepared nothing, and numbers of checkpoints that make no sense.
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <torch/torch.h>

#include <filesystem>
#include <memory>
#include <optional>

#include "checkpoint/training_run.h"
#include "hasten/accelerator.h"
#include "hasten/data/dataset/tensor_dataset.h"
#include "hasten/files/disk/disk.h"
#include "hasten/files/python/python_file.h"
#include "support/folder.h"
#include "support/golden.h"
#include "support/models.h"
#include "support/ranks.h"

namespace hasten {
namespace {

using ::testing::Each;
using ::testing::HasSubstr;
using ::testing::IsEmpty;
using ::testing::Not;

class Unprepared : public testing::InFolder {};

TEST_F(Unprepared, ALoadBeforePrepareIsRefusedOnAllRanksUnlessItIsNotStrict) {
  testing::run_ranks(2, [&](auto& process) {
    const Accelerator accelerator(process, {.tune_allocator = false});
    testing::Mlp net;
    torch::optim::SGD sgd(net->parameters(), 0.1);
    const auto prepared = accelerator.prepare(net, sgd);
    accelerator.save_state(path("run"));
  });

  const auto load = [&](bool strict) {
    return testing::run_ranks_collecting(2, [&](auto& process) {
      const Accelerator accelerator(process, {.tune_allocator = false});
      accelerator.load_state(path("run"), {.strict = strict});
    });
  };

  EXPECT_THAT(load(true), Each(HasSubstr("holds a model, and none is prepared here")));
  EXPECT_THAT(load(false), Each(IsEmpty()));
}

// What two saves write to standard error.
template <class Prepare>
std::string said_by_saves(const std::string& folder, const Prepare& prepare) {
  ::testing::internal::CaptureStderr();
  testing::run_ranks(2, [&](auto& process) {
    const Accelerator accelerator(process, {.tune_allocator = false});
    [[maybe_unused]] const auto prepared = prepare(accelerator);
    accelerator.save_state(folder);
    accelerator.save_state(folder);
  });
  return ::testing::internal::GetCapturedStderr();
}

TEST_F(Unprepared, ASaveBeforePrepareSaysOnceThatItHoldsNoModel) {
  const std::string words = "saves the state of random numbers alone";

  const auto said = said_by_saves(path("none"), [](const Accelerator&) { return 0; });
  const auto of_loader = said_by_saves(path("loader"), [](const Accelerator& accelerator) {
    return accelerator.data_loader<torch::data::samplers::SequentialSampler>(
        data::TensorDataset(torch::ones({8, 2}), torch::ones({8, 1})), 2);
  });

  EXPECT_THAT(said, HasSubstr(words));
  EXPECT_EQ(said.find(words), said.rfind(words)) << said;
  EXPECT_THAT(of_loader, Not(HasSubstr(words)));
}

// Saves two models, two optimizers, a schedule, a loader and an object in one form.
void save_two_of_all(const std::string& folder, checkpoint::Layout layout) {
  testing::run_ranks(2, [&](auto& process) {
    const Accelerator accelerator(process, {.tune_allocator = false});
    testing::Mlp net, other;
    torch::optim::SGD sgd(net->parameters(), 0.1);
    torch::optim::Adam adam(other->parameters(), 0.1);
    optim::StepLR schedule(sgd, {.step_size = 3});
    Ema ema;
    accelerator.register_for_checkpointing("ema", ema);
    const auto prepared = accelerator.prepare(net, other, sgd, adam, schedule);
    [[maybe_unused]] const auto loader = make_loader(accelerator);
    accelerator.save_state(folder, {.layout = layout});
  });
}

// The warnings of two loads by a program that has prepared a part of it.
template <class Prepare>
std::string warnings_of_loads(const std::string& folder, const checkpoint::LoadOptions& options,
                              const Prepare& prepare) {
  ::testing::internal::CaptureStderr();
  testing::run_ranks(2, [&](auto& process) {
    const Accelerator accelerator(process, {.tune_allocator = false});
    testing::Mlp net;
    torch::optim::SGD sgd(net->parameters(), 0.1);
    [[maybe_unused]] const auto prepared = prepare(accelerator, net, sgd);
    accelerator.load_state(folder, options);
    accelerator.load_state(folder, options);
  });
  return ::testing::internal::GetCapturedStderr();
}

TEST_F(Unprepared, ALoadNamesOnceWhatTheProgramLeavesInTheFolder) {
  const auto model = [](const Accelerator& accelerator, auto& net, auto&) { return accelerator.prepare(net); };
  const auto optimizer = [](const Accelerator& accelerator, auto&, auto& sgd) { return accelerator.prepare(sgd); };
  save_two_of_all(path("ours"), checkpoint::Layout::kHasten);
  save_two_of_all(path("theirs"), checkpoint::Layout::kAccelerate);

  const auto ours = warnings_of_loads(path("ours"), {}, model);
  const auto theirs = warnings_of_loads(path("theirs"), {}, model);
  const auto optimizer_alone = warnings_of_loads(path("ours"), {}, optimizer);
  const auto skipped = warnings_of_loads(path("ours"), {.optimizer = checkpoint::OptimizerLoad::kSkip}, model);
  const auto lenient = warnings_of_loads(path("ours"), {.strict = false}, model);

  const std::string objects = "scheduler 0, loader 0, custom ema, for which nothing is prepared or registered here";
  EXPECT_THAT(ours, HasSubstr("also holds model_1, optimizer 0, optimizer 1, " + objects));
  EXPECT_EQ(ours.find("also holds"), ours.rfind("also holds")) << ours;
  EXPECT_THAT(theirs, HasSubstr("also holds model_1.safetensors, optimizer.bin, optimizer_1.bin, scheduler.bin, "));
  EXPECT_THAT(theirs, HasSubstr("custom_checkpoint_0.pkl, for which nothing is"));
  EXPECT_THAT(optimizer_alone, HasSubstr("also holds model, model_1, optimizer 1, " + objects));
  EXPECT_THAT(skipped, HasSubstr("also holds model_1, " + objects));
  EXPECT_THAT(lenient, IsEmpty());
}

// The model of tests/golden/zero_checkpoints.
struct ZeroNet : torch::nn::Module {
  torch::Tensor scale = register_parameter("scale", torch::zeros({2, 3}), false);
  torch::Tensor seen = register_buffer("seen", torch::zeros({2}));
  torch::Tensor count = register_buffer("count", torch::zeros({}, torch::kLong));
  torch::nn::Linear a = register_module("a", torch::nn::Linear(5, 7));
  torch::nn::LayerNorm n = register_module("n", torch::nn::LayerNorm(torch::nn::LayerNormOptions({7})));
  torch::nn::Linear b = register_module("b", torch::nn::Linear(7, 3));
  torch::nn::Linear c = register_module("c", torch::nn::Linear(7, 3));
};

// Writes something for DeepSpeed's scheduler into a copy of a checkpoint.
void add_scheduler(const std::string& folder) {
  const std::string path = folder + "/global_step5/mp_rank_00_model_states.pt";
  const auto states = files::PythonFile::open(path).value();
  auto pairs = states.as_pairs();
  for (auto& [key, value] : pairs) {
    if (key.is_string() && key.as_string() == "lr_scheduler") value = files::PythonValue(int64_t{1});
  }
  files::save_python_file(files::real_disk(), path, files::PythonValue::dict(pairs));
}

TEST_F(Unprepared, ALoadOfDeepSpeedsFolderNamesItsOptimizerAndScheduler) {
  std::filesystem::copy(testing::golden_folder() + "/zero_checkpoints/zero1_fp32_w2", path("plain"),
                        std::filesystem::copy_options::recursive);
  std::filesystem::copy(path("plain"), path("scheduled"), std::filesystem::copy_options::recursive);
  add_scheduler(path("scheduled"));
  const auto words = [&](const std::string& folder, bool has_optimizer) {
    ::testing::internal::CaptureStderr();
    testing::run_ranks(2, [&](auto& process) {
      const Accelerator accelerator(process, {.tune_allocator = false});
      const auto net = std::make_shared<ZeroNet>();
      torch::optim::AdamW adam({net->a->weight, net->b->weight}, 0.1);
      adam.add_param_group({{net->a->bias, net->n->weight, net->n->bias, net->b->bias, net->c->bias}});
      const auto model = accelerator.prepare(net);
      const auto optimizer = has_optimizer ? std::optional(accelerator.prepare(adam)) : std::nullopt;
      accelerator.load_state(path(folder));
    });
    return ::testing::internal::GetCapturedStderr();
  };

  EXPECT_THAT(words("plain", false), HasSubstr("also holds DeepSpeed's optimizer, for which nothing is prepared"));
  EXPECT_THAT(words("scheduled", false),
              HasSubstr("also holds DeepSpeed's optimizer, DeepSpeed's learning-rate scheduler, for which nothing"));
  EXPECT_THAT(words("plain", true), Not(HasSubstr("also holds")));
}

TEST_F(Unprepared, AModelThatAHookLoadsIsNotLeft) {
  ::testing::internal::CaptureStderr();

  testing::run_ranks(2, [&](auto& process) {
    const Accelerator accelerator(process, {.tune_allocator = false});
    testing::Mlp net;
    const auto prepared = accelerator.prepare(net);
    accelerator.save_state(path("run"));
    const auto hook = accelerator.register_load_state_pre_hook([](auto& models, const auto&) { models.clear(); });
    accelerator.load_state(path("run"), {.strict = false});
    accelerator.load_state(path("run"));
  });

  EXPECT_THAT(::testing::internal::GetCapturedStderr(), Not(HasSubstr("also holds")));
}

TEST_F(Unprepared, ASaveThatMayNotWaitIsRefused) {
  const auto words = [&](std::chrono::seconds timeout) {
    return testing::words_of<UsageError>([&] {
      const Accelerator accelerator(process::Process(process::RankInfo{}, comm::Group()),
                                    {.project = {.project_dir = path("run"), .save_timeout = timeout}});
    });
  };

  EXPECT_THAT(words(std::chrono::seconds(0)), HasSubstr("save_timeout is 0 s; expected the time that rank 0 waits"));
  EXPECT_EQ(words(std::chrono::seconds(1)), "no error");
}

TEST_F(Unprepared, TheFirstCheckpointHasANumber) {
  const auto words = [&](int64_t iteration) {
    return testing::words_of<UsageError>([&] {
      const Accelerator accelerator(process::Process(process::RankInfo{}, comm::Group()),
                                    {.project = {.project_dir = path("run"), .iteration = iteration}});
    });
  };

  EXPECT_THAT(words(-1), HasSubstr("iteration = -1; expected the number of the first checkpoint, 0 or more"));
  EXPECT_EQ(words(0), "no error");
}

}  // namespace
}  // namespace hasten
