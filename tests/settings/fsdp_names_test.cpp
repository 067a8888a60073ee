#include "hasten/settings/fsdp_names.h"

#include <gtest/gtest.h>

#include "hasten/settings/fsdp_plugin.h"

namespace hasten::plan {
namespace {

TEST(FsdpNames, StandInTheOrderOfTheirNumbers) {
  for (size_t i = 0; i < fsdp_strategy_names().size(); ++i) {
    const auto strategy = static_cast<ShardingStrategy>(i + 1);
    EXPECT_EQ(name_of(strategy), fsdp_strategy_names()[i]);
    EXPECT_EQ(parse_sharding_strategy(std::to_string(i + 1), "a test"), strategy);
  }
  EXPECT_EQ(name_of(ShardingStrategy::kHybridShardZero2), "HYBRID_SHARD_ZERO2");
  EXPECT_EQ(name_of(AutoWrapPolicy::kNone), "NO_WRAP");
  EXPECT_EQ(name_of(BackwardPrefetch::kPost), "BACKWARD_POST");
  EXPECT_EQ(name_of(StateDictType::kSharded), "SHARDED_STATE_DICT");
  EXPECT_EQ(fsdp_wrap_names().size(), 3u);
  EXPECT_EQ(fsdp_prefetch_names().size(), 2u);
  EXPECT_EQ(fsdp_state_names().size(), 3u);
}

}  // namespace
}  // namespace hasten::plan
