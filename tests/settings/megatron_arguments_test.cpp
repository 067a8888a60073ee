// Megatron's own arguments: what each does here.
#include "hasten/settings/megatron_arguments.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <set>

#include "hasten/core/error.h"
#include "hasten/settings/megatron_plugin.h"

namespace hasten::plan {
namespace {

using core::Value;
using ::testing::AllOf;
using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::ThrowsMessage;

TEST(MegatronArguments, SetFieldsUnderTheirNames) {
  const auto read = read_megatron_arguments(Value::map(
      {{"tensor_model_parallel_size", 2}, {"clip_grad", 0.5}, {"lr_wsd_decay_iters", 20}, {"use_custom_fsdp", true}}));

  EXPECT_EQ(read.fields,
            Value::map(
                {{"tp_degree", 2}, {"gradient_clipping", 0.5}, {"lr_wsd_decay_iters", 20}, {"use_custom_fsdp", true}}));
  EXPECT_EQ(read.options, Value::map());
  EXPECT_THAT(read.notes, ::testing::IsEmpty());
}

TEST(MegatronArguments, SetOptionsAndAreNotedWithoutEffect) {
  const auto read = read_megatron_arguments(Value::map({{"seed", 7}, {"bf16", true}, {"overlap_grad_reduce", true}}));

  EXPECT_EQ(read.options, Value::map({{"seed", 7}, {"bf16", true}}));
  EXPECT_THAT(read.notes, ElementsAre(HasSubstr("overlap_grad_reduce has no effect: exchanges overlap")));
  EXPECT_EQ(read_megatron_arguments(Value()).fields, Value::map());
}

TEST(MegatronArguments, OfOtherPlacesAreRefusedTogether) {
  EXPECT_THAT(
      [] {
        read_megatron_arguments(Value::map({{"hidden_size", 64}, {"adam_beta1", 0.9}, {"clip_grad", 1.0}}));
      },
      ThrowsMessage<UsageError>(AllOf(HasSubstr("hidden_size (the program makes its model: set it there)"),
                                      HasSubstr("adam_beta1 (the program makes its optimizer"))));
}

TEST(MegatronArguments, OfUnknownNamesOrKindsAreRefused) {
  EXPECT_THAT(
      [] {
        read_megatron_arguments(Value::map({{"num_quer_groups", 2}}));
      },
      ThrowsMessage<UsageError>(HasSubstr("did you mean 'num_query_groups'")));
  EXPECT_THAT(
      [] {
        read_megatron_arguments(Value::map({{"seed", "seven"}}));
      },
      ThrowsMessage<UsageError>(HasSubstr("seed is \"seven\"; expected a whole number")));
  EXPECT_THAT(
      [] {
        read_megatron_arguments(Value::map({{"bf16", 1}}));
      },
      ThrowsMessage<UsageError>(HasSubstr("bf16 is 1; expected true or false")));
}

TEST(MegatronArguments, StandOnceEachAndAllFieldsAreAmongThem) {
  std::set<std::string> names;
  size_t fields = 0;
  for (const auto& one : megatron_argument_table()) {
    EXPECT_TRUE(names.insert(std::string(one.name)).second) << one.name;
    if (one.effect == MegatronEffect::kField) ++fields;
    if (one.effect == MegatronEffect::kNone || one.effect == MegatronEffect::kElsewhere) {
      EXPECT_FALSE(one.words.empty()) << one.name;
    }
  }

  EXPECT_EQ(fields, megatron_arguments().size());
  EXPECT_GE(names.size() - fields, 60u);
}

}  // namespace
}  // namespace hasten::plan
