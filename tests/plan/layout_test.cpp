// Sizes of the axes of a layout: their check against a world, coordinates, groups, and the words for them.
#include "hasten/plan/layout.h"

#include <gmock/gmock.h>

#include <set>

#include "hasten/core/error.h"

namespace hasten::plan {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;

std::string refusal(const LayoutSizes& sizes, int64_t world) {
  try {
    fit_to_world(sizes, world);
  } catch (const UsageError& error) {
    return error.what();
  }
  return "";
}

TEST(Layout, minus_one_is_the_rest_of_the_world) {
  EXPECT_EQ(fit_to_world({.pp = 2, .dp_shard = -1, .tp = 4}, 64).dp_shard, 8);
  EXPECT_EQ(fit_to_world({.dp_replicate = -1}, 1).dp_replicate, 1);
  EXPECT_THAT(refusal({.dp_shard = -1, .tp = 3}, 8),
              HasSubstr("tp 3 does not divide the world of 8, so that no dp_shard fills it; tp may be 1, 2, 4, 8."));
  EXPECT_THAT(refusal({.pp = 3, .dp_shard = -1, .tp = 2}, 8),
              HasSubstr("tp 2 x pp 3 = 6 does not divide the world of 8, so that no dp_shard fills it; pp may be 1, 2, "
                        "4."));
  EXPECT_THAT(refusal({.pp = 3, .dp_shard = -1, .tp = 5}, 8), HasSubstr("no change of one axis would do"));
  EXPECT_THAT(refusal({.dp_shard = -1, .tp = -1}, 8), HasSubstr("2 axes are -1"));
}

TEST(Layout, a_product_that_is_not_the_world_names_what_would_fit) {
  EXPECT_THAT(refusal({.pp = 2, .dp_shard = 3, .tp = 2}, 8),
              HasSubstr("the layout tp 2 x pp 2 x dp_shard 3 is for 12 processes, and this run has 8. Set dp_shard = "
                        "2, or start 12 processes (hasten launch -n 12)."));
  EXPECT_THAT(refusal({.tp = 2}, 8),
              HasSubstr("the layout tp 2 is for 2 processes, and this run has 8. Set tp = 8, or start 2"));
  EXPECT_THAT(refusal({}, 4),
              HasSubstr("a layout without axes is for 1 process, and this run has 4. Set dp_shard = 4 or "
                        "dp_replicate = 4"));
  EXPECT_THAT(refusal({.pp = 5, .tp = 3}, 8), HasSubstr("No change of one axis fits: give sizes whose product is 8"));
  // A change to sp is no remedy beside cp.
  EXPECT_THAT(refusal({.cp = 2}, 8), Not(HasSubstr("sp =")));
}

TEST(Layout, sizes_that_mean_nothing_are_refused_by_name) {
  EXPECT_THAT(refusal({.tp = 0}, 8), HasSubstr("tp is 0"));
  EXPECT_THAT(refusal({.dp_shard = -2}, 8), HasSubstr("dp_shard is -2"));
  EXPECT_THAT(refusal({.cp = 2, .sp = 2}, 4), HasSubstr("cp 2 and sp 2"));
  EXPECT_THAT(refusal({}, 0), HasSubstr("the world has 0 ranks"));
}

TEST(Layout, the_mesh_leaves_axes_of_one_rank_out) {
  const LayoutSizes sizes{.pp = 2, .dp_replicate = 2, .dp_shard = 2, .cp = 2, .tp = 4};
  EXPECT_THAT(mesh_axes(sizes), ElementsAre(Axis::kPp, Axis::kDpReplicate, Axis::kDpShard, Axis::kCp, Axis::kTp));
  EXPECT_THAT(data_axes(sizes), ElementsAre(Axis::kDpReplicate, Axis::kDpShard));
  EXPECT_THAT(shard_axes(sizes), ElementsAre(Axis::kDpShard, Axis::kCp));
  EXPECT_THAT(loss_axes(sizes), ElementsAre(Axis::kDpReplicate, Axis::kDpShard, Axis::kCp));
  EXPECT_THAT(model_axes(sizes), ElementsAre(Axis::kPp, Axis::kTp));
  EXPECT_TRUE(mesh_axes({}).empty());
}

TEST(Layout, coordinates_and_ranks_are_inverse) {
  const LayoutSizes sizes{.pp = 3, .dp_replicate = 2, .dp_shard = 2, .sp = 2, .tp = 5};
  for (int64_t rank = 0; rank < num_ranks(sizes); ++rank) EXPECT_EQ(rank_at(sizes, coordinate_of(sizes, rank)), rank);
  EXPECT_EQ(coordinate_of(sizes, 1)[Axis::kTp], 1);
  EXPECT_EQ(coordinate_of(sizes, num_ranks(sizes) - 1)[Axis::kPp], 2);
  EXPECT_THROW(coordinate_of(sizes, num_ranks(sizes)), UsageError);
  EXPECT_THROW(rank_at(sizes, Coordinate{{3, 0, 0, 0, 0, 0}}), UsageError);
}

TEST(Layout, groups_along_any_axes_part_the_world) {
  const LayoutSizes sizes{.pp = 2, .dp_shard = 3, .cp = 2, .tp = 2};
  for (unsigned chosen = 0; chosen < 64; ++chosen) {
    std::vector<Axis> axes;
    int64_t size = 1;
    for (const Axis axis : kAxes) {
      if ((chosen >> static_cast<unsigned>(axis)) & 1) axes.push_back(axis), size *= sizes[axis];
    }
    std::set<int> seen;
    for (const auto& group : groups_along(sizes, axes)) {
      EXPECT_EQ(static_cast<int64_t>(group.size()), size);
      EXPECT_TRUE(std::is_sorted(group.begin(), group.end()));
      for (const int rank : group) {
        EXPECT_TRUE(seen.insert(rank).second);
        EXPECT_EQ(group_of(sizes, axes, rank), group);
      }
    }
    EXPECT_EQ(static_cast<int64_t>(seen.size()), num_ranks(sizes));
  }
}

TEST(Layout, words_of_a_coordinate_and_of_axes) {
  EXPECT_EQ(coordinate_text({.pp = 2, .dp_shard = 1, .tp = 8}, 13), "rank 13 (pp 1, tp 5)");
  EXPECT_EQ(coordinate_text({.pp = 2, .dp_shard = 2, .tp = 8}, 29), "rank 29 (pp 1, dp 1, tp 5)");
  EXPECT_EQ(coordinate_text({.dp_replicate = 2, .dp_shard = 2}, 2), "rank 2 (dp_replicate 1, dp_shard 0)");
  EXPECT_EQ(coordinate_text({}, 0), "rank 0");
  EXPECT_EQ(parse_axis("dp_shard_size"), Axis::kDpShard);
  try {
    parse_axis("dpshard");
    ADD_FAILURE();
  } catch (const UsageError& error) {
    EXPECT_THAT(error.what(), HasSubstr("did you mean 'dp_shard'?"));
  }
}

}  // namespace
}  // namespace hasten::plan
