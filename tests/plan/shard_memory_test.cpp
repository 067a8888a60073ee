// The memory table: formulas of docs/sharding.md, and numbers of parameters as people write them.
#include <gtest/gtest.h>

#include "hasten/core/error.h"
#include "hasten/plan/shard_memory.h"

namespace hasten::plan {
namespace {

TEST(ShardMemory, one_host_holds_parameters_once_in_every_stage) {
  const auto rows = shard_memory({.parameters = 1000, .largest_unit = 10, .ranks_per_host = 4});
  ASSERT_EQ(rows.size(), 6u);
  EXPECT_EQ(rows[0].total(), 4 * 1000 * (4 + 4 + 8));
  EXPECT_EQ(rows[1].total(), 1000 * 4 + 4 * 1000 * 4 + 1000 * 8);
  EXPECT_EQ(rows[2].total(), 1000 * 4 + 1000 * 4 + 3 * 4 * 10 * 4 + 1000 * 8);
  EXPECT_EQ(rows[3].total(), rows[2].total());
}

TEST(ShardMemory, hosts_split_what_a_stage_splits) {
  const auto rows =
      shard_memory({.parameters = 1000, .largest_unit = 10, .ranks_per_host = 2, .hosts = 2, .compute_bytes = 2});
  EXPECT_EQ(rows[2].parameters, 2000);
  EXPECT_EQ(rows[3].parameters, 1000 + 2 * 10 * 2);
  EXPECT_EQ(rows[3].optimizer, 1000 * (4 + 8) / 2);
  EXPECT_EQ(rows[4].on_disk, 6000);
}

TEST(ShardMemory, a_device_holds_its_ranks_part_and_the_units_under_way) {
  const auto rows = shard_memory({.parameters = 1000, .largest_unit = 10, .ranks_per_host = 2, .hosts = 2});
  EXPECT_EQ(rows[0].on_device, 1000 * 16);
  EXPECT_EQ(rows[1].on_device, 1000 * 8 + 1000 * 8 / 4 + 10 * 4);
  EXPECT_EQ(rows[2].on_device, 1000 * 4 + 1000 * 12 / 4 + 3 * 10 * 4 + 10);
  EXPECT_EQ(rows[3].on_device, 1000 * 16 / 4 + 5 * 10 * 4 + 10);
  EXPECT_EQ(rows[4].on_device, 1000 * 4 / 4 + 5 * 10 * 4 + 10);
  EXPECT_EQ(rows[5].on_device, 5 * 10 * 4 + 10);
  const auto low =
      shard_memory({.parameters = 1000, .largest_unit = 10, .ranks_per_host = 2, .hosts = 2, .compute_bytes = 2});
  EXPECT_EQ(low[4].on_device, 1000 * 2 / 4 + 3 * 10 * 4 + 10 + 2 * 10 * 2);
}

TEST(ShardMemory, the_first_row_that_fits_is_named) {
  const auto rows = shard_memory({.parameters = int64_t{1} << 30, .ranks_per_host = 8});
  const auto* fits = cheapest_that_fits(rows, int64_t{20} << 30);
  ASSERT_NE(fits, nullptr);
  EXPECT_EQ(fits->strategy, rows[2].strategy);
  EXPECT_EQ(cheapest_that_fits(rows, 1), nullptr);
}

TEST(ShardMemory, numbers_of_parameters_have_suffixes) {
  EXPECT_EQ(parse_parameter_count("124M"), 124000000);
  EXPECT_EQ(parse_parameter_count("1.3B"), 1300000000);
  EXPECT_EQ(parse_parameter_count("7e9"), 7000000000);
  for (const char* bad : {"", "M", "many", "0", "-1", "1.5.2M", "nan"})
    EXPECT_THROW(parse_parameter_count(bad), UsageError) << bad;
  EXPECT_THROW(shard_memory({.parameters = 10, .compute_bytes = 3}), UsageError);
}

}  // namespace
}  // namespace hasten::plan
