#include "hasten/comm/types/purpose.h"

#include <gtest/gtest.h>

#include <thread>

namespace hasten::comm {
namespace {

TEST(Purpose, TheInnermostScopeCountsUntilItEnds) {
  EXPECT_EQ(describe(Purpose::current()), "");

  const Purpose outer("save_state");
  {
    const Purpose inner("gradients, bucket", 3);
    EXPECT_EQ(describe(Purpose::current()), "gradients, bucket 3");
  }

  EXPECT_EQ(describe(Purpose::current()), "save_state");
}

TEST(Purpose, IsOneThreadsUntilItsWordsAreHandedOn) {
  const Purpose outer("random state of the loader");
  std::string without, with;

  std::thread([&, words = Purpose::current()] {
    without = describe(Purpose::current());
    const Purpose handed_on(words);
    with = describe(Purpose::current());
  }).join();

  EXPECT_EQ(without, "");
  EXPECT_EQ(with, "random state of the loader");
}

}  // namespace
}  // namespace hasten::comm
