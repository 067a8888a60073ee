// Sentences of errors: how they end, and how one stands inside of another.
#include "hasten/core/sentence.h"

#include <gtest/gtest.h>

#include "hasten/core/error.h"

namespace hasten {
namespace {

TEST(SentenceTest, AnUnknownWordEndsWithAGuessOrAPeriod) {
  EXPECT_EQ(guess_end("lsit", {"list", "show"}), ", did you mean 'list'?");
  EXPECT_EQ(guess_end("everything", {"list", "show"}), ".");
}

TEST(SentenceTest, AMessageInsideAnotherHasNeitherRoomNorRankNorPeriod) {
  EXPECT_EQ(inner_words(UsageError({"data"}, "no rows. Add some.").what()), "no rows. Add some");
  EXPECT_EQ(inner_words(UsageError({"data", 1, 12}, "no rows.").what()), "no rows");
  EXPECT_EQ(inner_words("no rows"), "no rows");
  EXPECT_EQ(inner_sentence(UsageError({"data", 0, 2}, "no rows. Add some.").what()), "no rows. Add some.");
}

TEST(SentenceTest, BracketsOfTheMessageItselfStay) {
  EXPECT_EQ(inner_words("[3, 4] is no shape."), "[3, 4] is no shape");
  EXPECT_EQ(inner_words("[data] rank 1 is late"), "rank 1 is late");
  EXPECT_EQ(inner_words(""), "");
}

}  // namespace
}  // namespace hasten
