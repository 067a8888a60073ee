// What settings of FSDP and DeepSpeed become where there are GPUs, and the notes about them.
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <hasten/hasten.h>
#include <torch/torch.h>

#include "hasten/plugins/plugins.h"
#include "support/device_models.h"
#include "support/standard_error.h"

namespace hasten {
namespace {

using ::testing::AllOf;
using ::testing::HasSubstr;
using ::testing::Not;

std::string notes_of(const Plugins& plugins) {
  return testing::said_in(
      [&] { plugins.log_notes([](const char* subject) { return Logger(subject, {}, LogLevel::kInfo); }); });
}

TEST(PluginsOnDevices, ActivationCheckpointingOffloadMovesActivationsToTheHost) {
  auto options = testing::quiet_options();
  options.fsdp =
      FsdpPlugin{.fsdp_version = 2, .activation_checkpointing = true, .activation_checkpointing_offload = true};
  const Plugins on_device(options, Environment::of({}), 2);
  options.cpu = true;
  const Plugins on_cpu(options, Environment::of({}), 2);

  EXPECT_TRUE(on_device.options().recompute.enabled);
  EXPECT_TRUE(on_device.options().recompute.offload);
  EXPECT_THAT(notes_of(on_device), Not(HasSubstr("activation_checkpointing_offload")));
  EXPECT_THAT(notes_of(on_cpu), HasSubstr("activation_checkpointing_offload: on a CPU"));
}

Plugins zero_offload(const std::string& optimizer, const std::string& more = "") {
  auto options = testing::quiet_options();
  options.deepspeed = DeepSpeedPlugin{
      .hf_ds_config = core::Value::parse_json(R"({"train_batch_size": 8, "zero_optimization": {"stage": 3, )" + more +
                                              R"("offload_optimizer": {"device": "cpu", )" + optimizer + "}}}")};
  return {options, Environment::of({}), 4};
}

TEST(PluginsOnDevices, NotesOfOffloadSayWhatIsTrueOfAGpu) {
  const auto part = zero_offload(R"("ratio": 0.3)");
  EXPECT_EQ(part.options().shard.optimizer_offload.ratio, 0.3);
  EXPECT_THAT(notes_of(part), Not(HasSubstr("ratio")));
  EXPECT_THAT(notes_of(zero_offload(R"("super_offload": true, "pin_memory": false)")),
              AllOf(HasSubstr("super_offload is ignored: a GPU's step on the host overlaps its copies anyway"),
                    HasSubstr("pin_memory is ignored: what a GPU copies from is always pinned")));
}

TEST(PluginsOnDevices, PartitionsOfHpzAreGroupsOfRanksAndANoteSaysSo) {
  const auto plugins = zero_offload(R"("ratio": 1)", R"("zero_hpz_partition_size": 2, )");
  const auto& shard = plugins.options().shard;
  ASSERT_EQ(shard.mesh.size(), 2U);
  EXPECT_EQ(shard.shard_over, shard.mesh[1].name);
  EXPECT_EQ(shard.mesh[0].size, 2);
  EXPECT_EQ(shard.mesh[1].size, 2);
  EXPECT_THAT(notes_of(plugins), AllOf(HasSubstr("zero_hpz_partition_size"), HasSubstr("groups of 2")));
}

}  // namespace
}  // namespace hasten
