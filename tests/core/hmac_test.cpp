// HMAC-SHA256 against RFC 4231's test cases.
#include "hasten/core/hmac.h"

#include <gtest/gtest.h>

namespace hasten {
namespace {

TEST(Hmac, GivesTheValuesOfRfc4231) {
  EXPECT_EQ(hex(hmac(Bytes(20, '\x0b'), "Hi There")),
            "b0344c61d8db38535ca8afceaf0bf12b881dc200c9833da726e9376c2e32cff7");
  EXPECT_EQ(hex(hmac("Jefe", "what do ya want for nothing?")),
            "5bdcc146bf60754e6a042426089575c75a003f089d2739839dec58b964ec3843");
}

TEST(Hmac, HashesAreComparedAndKeysDiffer) {
  const Bytes one = random_bytes(), other = random_bytes();

  EXPECT_EQ(one.size(), kHashBytes);
  EXPECT_TRUE(same_hash(one, one));
  EXPECT_FALSE(same_hash(one, other));
  EXPECT_FALSE(same_hash(one, one.substr(1)));
}

}  // namespace
}  // namespace hasten
