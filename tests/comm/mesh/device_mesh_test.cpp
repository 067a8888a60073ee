#include "hasten/comm/mesh/device_mesh.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "hasten/core/error.h"

namespace hasten::comm {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::ThrowsMessage;

const MeshLayout kGrid({{"dp", 2}, {"cp", 2}, {"tp", 3}}, 12);

TEST(DeviceMesh, TheLastAxisVariesFastest) {
  EXPECT_THAT(kGrid.coordinates(0), ElementsAre(0, 0, 0));
  EXPECT_THAT(kGrid.coordinates(1), ElementsAre(0, 0, 1));
  EXPECT_THAT(kGrid.coordinates(11), ElementsAre(1, 1, 2));
  EXPECT_EQ(kGrid.coordinate(7, "dp"), 1);
}

TEST(DeviceMesh, ARankIsFoundAgainByItsCoordinates) {
  for (int rank = 0; rank < 12; ++rank) EXPECT_EQ(kGrid.rank_at(kGrid.coordinates(rank)), rank);
}

TEST(DeviceMesh, RanksAlongAxesAgreeOnTheOthers) {
  EXPECT_THAT(kGrid.ranks_along(7, {"tp"}), ElementsAre(6, 7, 8));
  EXPECT_THAT(kGrid.ranks_along(7, {"dp"}), ElementsAre(1, 7));
  EXPECT_THAT(kGrid.ranks_along(7, {"dp", "cp"}), ElementsAre(1, 4, 7, 10));
  EXPECT_EQ(kGrid.ranks_along(7, {"dp", "cp", "tp"}).size(), 12u);
}

TEST(DeviceMesh, OneSizeMayBeLeftOpen) {
  EXPECT_EQ(MeshLayout({{"dp", -1}, {"tp", 4}}, 12).size("dp"), 3);
}

TEST(DeviceMesh, WhatDoesNotFitIsRefusedWithTheSizes) {
  EXPECT_THAT(
      [] {
        MeshLayout({{"dp", 2}, {"tp", 4}}, 6);
      },
      ThrowsMessage<UsageError>(HasSubstr("has 8 places, but the group has 6 ranks")));
  EXPECT_THAT([] { MeshLayout({{"dp", -1}, {"tp", 4}}, 6); }, ThrowsMessage<UsageError>(HasSubstr("has 6 ranks")));
  EXPECT_THAT([] { MeshLayout({{"dp", 2}, {"dp", 1}}, 2); }, ThrowsMessage<UsageError>(HasSubstr("a name of its own")));
  EXPECT_THAT([] { MeshLayout({{"dp", 0}}, 1); }, ThrowsMessage<UsageError>(HasSubstr("has size 0")));
  EXPECT_THAT([] { kGrid.size("pp"); }, ThrowsMessage<UsageError>(HasSubstr("no axis 'pp'")));
  EXPECT_THAT([] { kGrid.rank_at({0, 2, 0}); }, ThrowsMessage<UsageError>(HasSubstr("outside mesh")));
}

}  // namespace
}  // namespace hasten::comm
