#include "hasten/core/listing.h"

#include <gtest/gtest.h>

namespace hasten::core {
namespace {

TEST(Listing, NamesAreJoinedAndLongListsAreCut) {
  EXPECT_EQ(listing({}), "nothing");
  EXPECT_EQ(listing({"a", "b"}, 2), "a, b");
  EXPECT_EQ(listing({"a", "b", "c", "d", "e"}, 3), "a, b, c and 2 more");
}

}  // namespace
}  // namespace hasten::core
