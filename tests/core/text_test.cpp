#include "hasten/core/text.h"

#include <gtest/gtest.h>

namespace hasten {
namespace {

TEST(Text, PartsAreJoinedAsStreamsPrintThem) {
  EXPECT_EQ(text("n=", 3, ' ', true, ' ', 0.5), "n=3 true 0.5");
}

TEST(Text, JoinSeparatesElements) {
  EXPECT_EQ(join(std::vector<int>{1, 2, 3}), "1, 2, 3");
}

TEST(Text, AMisspeltWordFindsItsNeighbour) {
  EXPECT_EQ(closest("lanch", {"config", "launch", "env"}), "launch");
  EXPECT_EQ(closest("launhc", {"config", "launch", "env"}), "launch");
}

TEST(Text, AWordFarFromAllCandidatesFindsNothing) {
  EXPECT_EQ(closest("banana", {"config", "launch", "env"}), "");
  EXPECT_EQ(did_you_mean("banana", {"config"}), "");
}

}  // namespace
}  // namespace hasten
