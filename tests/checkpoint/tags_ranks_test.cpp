// save_checkpoint and load_checkpoint: DeepSpeed's tags, and ranks that name different ones.
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <torch/torch.h>

#include <filesystem>

#include "hasten/accelerator.h"
#include "hasten/files/folders/open_source.h"
#include "support/folder.h"
#include "support/models.h"
#include "support/ranks.h"
#include "support/test_device.h"

namespace hasten {
namespace {

using ::testing::AllOf;
using ::testing::HasSubstr;
using ::testing::IsEmpty;
using testing::run_ranks;
using testing::run_ranks_collecting;

class CheckpointTags : public testing::InFolder {
 protected:
  // Each rank saves by a tag of its own.
  std::vector<std::string> save_by_own_tags(const std::string& mode) const {
    return run_ranks_collecting(2, [&](auto& process) {
      auto config = core::Value::parse_json(R"({"train_batch_size": 8, "zero_optimization": {"stage": 2}})");
      if (!mode.empty()) config["checkpoint"]["tag_validation"] = mode;
      const Accelerator accelerator(process,
                                    {.tune_allocator = false, .deepspeed = DeepSpeedPlugin{.hf_ds_config = config}});
      testing::Mlp net;
      auto model = accelerator.prepare(net);
      EXPECT_EQ(accelerator.checkpoints().save_checkpoint(path("run"), text("of_rank_", process.rank())), "of_rank_0");
      accelerator.wait_for_everyone();
    });
  }
};

TEST_F(CheckpointTags, LatestNamesTheLastOneAndAnyOtherLoadsByItsTag) {
  run_ranks(2, [&](auto& process) {
    const Accelerator accelerator(process, {.tune_allocator = false, .shard = {.stage = ShardStage::kGradients}});
    testing::Mlp net;
    testing::initialise(*net, 5);
    torch::optim::SGD sgd(net->parameters(), 0.1);
    auto [model, optimizer] = accelerator.prepare(net, sgd);
    std::vector<at::Tensor> values;
    for (int step = 0; step < 2; ++step) {
      optimizer.zero_grad();
      accelerator.backward(model(testing::here(testing::problem_for("mlp", 1).inputs)).square().mean());
      optimizer.step();
      values.push_back(net->parameters()[0].detach().clone());
      const auto tag = accelerator.checkpoints().save_checkpoint(path("run"));
      EXPECT_EQ(tag, text("global_step", step + 1));
    }
    accelerator.checkpoints().save_checkpoint(path("run"), "best");
    EXPECT_TRUE(std::filesystem::is_regular_file(path("run") + "/latest"));

    accelerator.checkpoints().load_checkpoint(path("run"), "global_step1");
    EXPECT_TRUE(at::equal(net->parameters()[0], values[0]));
    accelerator.checkpoints().load_checkpoint(path("run"));
    EXPECT_TRUE(at::equal(net->parameters()[0], values[1]));
    accelerator.checkpoints().load_checkpoint(path("run"), "global_step1");
    accelerator.checkpoints().load_state(path("run"));
    EXPECT_TRUE(at::equal(net->parameters()[0], values[1]));
    EXPECT_EQ(files::open_source(path("run"))->path(), path("run") + "/best");
    EXPECT_EQ(files::open_source(path("run"), {.tag = "global_step2"})->path(), path("run") + "/global_step2");
    accelerator.wait_for_everyone();
  });
  EXPECT_EQ(std::distance(std::filesystem::directory_iterator(path("run")), {}), 4) << "three tags and latest";
}

TEST_F(CheckpointTags, DifferentTagsAreIgnoredAWarningOrAnErrorAsTheConfigurationSays) {
  const auto warned = [&](const std::string& mode) {
    ::testing::internal::CaptureStderr();
    EXPECT_THAT(save_by_own_tags(mode), ::testing::Each(IsEmpty()));
    return ::testing::internal::GetCapturedStderr();
  };
  const auto both = AllOf(HasSubstr("'of_rank_0'"), HasSubstr("rank 1 by 'of_rank_1'"));
  EXPECT_THAT(warned("ignore"), ::testing::Not(HasSubstr("of_rank_1")));
  EXPECT_THAT(warned("WARN"), both);
  EXPECT_THAT(warned(""), both) << "the default";
  EXPECT_FALSE(std::filesystem::exists(path("run") + "/of_rank_1"));

  std::filesystem::remove_all(path("run"));
  EXPECT_THAT(save_by_own_tags("Fail"), ::testing::Each(both));
  EXPECT_FALSE(std::filesystem::exists(path("run")));
}

TEST_F(CheckpointTags, ATagThatIsNoFolderAndAFolderWithoutLatestAreRefused) {
  run_ranks(1, [&](auto& process) {
    const Accelerator accelerator(process, {.tune_allocator = false});
    auto& checkpoints = accelerator.checkpoints();
    for (const char* tag : {"a/b", "..", "."}) {
      EXPECT_THAT(testing::words_of<UsageError>([&] { checkpoints.save_checkpoint(path("run"), tag); }),
                  HasSubstr(text("the tag '", tag, "'")));
    }
    EXPECT_THAT(testing::words_of<UsageError>([&] { checkpoints.load_checkpoint(path("nothing")); }),
                HasSubstr("no file 'latest'"));
  });
}

}  // namespace
}  // namespace hasten
