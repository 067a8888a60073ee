// Strategies in words, as options of a launch, and what is refused with the legal values.
#include "hasten/plan/strategy.h"

#include <gmock/gmock.h>

#include "hasten/core/error.h"
#include "hasten/core/text.h"
#include "hasten/plan/model_presets.h"

namespace hasten::plan {
namespace {

using ::testing::HasSubstr;

Strategy strategy(const LayoutSizes& sizes, DataParallel form = DataParallel::kDdp) {
  Strategy made;
  made.sizes = sizes;
  made.data_parallel = form;
  made.batch = 1024;
  return made;
}

std::string refusal(const Strategy& made) {
  try {
    check_strategy(*preset_model("llama3-70b"), made);
  } catch (const UsageError& error) {
    return error.what();
  }
  return "";
}

TEST(Strategy, words_name_the_axes_in_use) {
  EXPECT_EQ(strategy_text(strategy({.pp = 4, .dp_shard = 16, .tp = 4}, DataParallel::kZero2)), "tp 4 pp 4 zero2 16");
  EXPECT_EQ(strategy_text(strategy({.dp_shard = 64, .tp = 4}, DataParallel::kZero3)), "tp 4 shard 64");
  EXPECT_EQ(strategy_text(strategy({.dp_replicate = 4, .dp_shard = 8}, DataParallel::kZero3)), "shard 8 x 4");
  EXPECT_EQ(strategy_text(strategy({.dp_replicate = 8})), "ddp 8");
  EXPECT_EQ(strategy_text(strategy({})), "one device");
  EXPECT_EQ(num_axes(strategy({.pp = 4, .dp_shard = 16, .tp = 4})), 3);
}

TEST(Strategy, names_are_read) {
  EXPECT_EQ(parse_data_parallel("fsdp"), DataParallel::kZero3);
  EXPECT_EQ(parse_data_parallel("1"), DataParallel::kZero1);
  EXPECT_EQ(parse_recompute("every_other_product"), Recompute::kEveryOtherProduct);
  EXPECT_THROW(parse_recompute("some"), UsageError);
  EXPECT_THROW(parse_data_parallel("zero4"), UsageError);
  Strategy made;
  set_precision(made, "no");
  EXPECT_EQ(made.element_bytes, 4);
  EXPECT_THROW(set_precision(made, "fp8"), UsageError);
  EXPECT_THROW(set_precision(made, "int8"), UsageError);
}

TEST(Strategy, options_of_a_launch_say_the_same) {
  EXPECT_EQ(join(launch_flags(strategy({.dp_shard = 64, .tp = 4}, DataParallel::kZero3)), " "),
            "--use_fsdp --fsdp_version 2 --use_parallelism_config "
            "--parallelism_config_tp_size 4 --parallelism_config_dp_shard_size 64");
  EXPECT_EQ(join(launch_flags(strategy({.dp_shard = 1024}, DataParallel::kZero1)), " "),
            "--use_deepspeed --zero_stage 1");
  EXPECT_EQ(join(launch_flags(strategy({.tp = 2})), " "),
            "--use_fsdp --fsdp_version 2 --use_parallelism_config --parallelism_config_tp_size 2");
  EXPECT_THAT(
      join(launch_flags(strategy({.pp = 2, .dp_replicate = 2, .tp = 2})), " "),
      HasSubstr(
          "--use_megatron_lm --megatron_lm_tp_degree 2 --megatron_lm_pp_degree 2 --megatron_lm_num_micro_batches 512"));
}

TEST(Strategy, what_does_not_divide_is_refused_with_what_does) {
  EXPECT_THAT(refusal(strategy({.tp = 3})), HasSubstr("tp may be 1, 2, 4, 8."));
  EXPECT_THAT(refusal(strategy({.pp = 81})), HasSubstr("pp at most 80"));
  Strategy chunks = strategy({.pp = 16});
  chunks.chunks = 6;
  EXPECT_THAT(refusal(chunks), HasSubstr("chunks may be at most 5"));
  EXPECT_THAT(refusal(strategy({.cp = 3})), HasSubstr("cp 3 does not divide the sequence of 8192"));
  EXPECT_THAT(refusal(strategy({.sp = 2})), HasSubstr("sp 2 is not modelled"));
  EXPECT_THAT(refusal(strategy({.dp_shard = 2048})), HasSubstr("a batch of 1024 sequences for 2048"));
  EXPECT_EQ(refusal(strategy({.pp = 4, .dp_shard = 16, .tp = 4})), "");
}

}  // namespace
}  // namespace hasten::plan
