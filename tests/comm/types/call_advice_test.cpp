// What a rank is advised that another one has left alone in a call.
#include "comm/types/call_advice.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cstring>

namespace hasten::comm {
namespace {

using ::testing::HasSubstr;

CallLabel call_for(const char* words) {
  CallLabel label;
  std::strncpy(label.words.data(), words, label.words.size() - 1);
  return label;
}

TEST(CallAdvice, ARankThatIsLeftAloneInACallOfAllRanksIsToldToMakeItOnEach) {
  EXPECT_THAT(advice_on_absence(call_for("save_state")), HasSubstr(" save_state is a call of all ranks: make it on "));
}

TEST(CallAdvice, ARankThatIsLeftAloneInTheLoopIsToldOfLoopsOfUnequalLength) {
  for (const char* words : {"gradients, bucket 0", ""}) {
    EXPECT_THAT(advice_on_absence(call_for(words)), HasSubstr("give all ranks as many batches, or use join_uneven"));
  }
}

}  // namespace
}  // namespace hasten::comm
