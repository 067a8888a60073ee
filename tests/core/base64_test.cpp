#include "hasten/core/base64.h"

#include <gtest/gtest.h>

#include <vector>

namespace hasten {
namespace {

TEST(Base64, IsThatOfTheStandard) {
  for (const auto& [bytes, text] : std::vector<std::pair<std::string, std::string>>{
           {"", ""}, {"f", "Zg=="}, {"fo", "Zm8="}, {"foo", "Zm9v"}, {"foob", "Zm9vYg=="}, {"\xff\xfe", "//4="}}) {
    EXPECT_EQ(base64(bytes), text);
    EXPECT_EQ(from_base64(text), bytes);
  }
  EXPECT_EQ(from_base64("-_8="), from_base64("+/8="));
  EXPECT_FALSE(from_base64("?"));
}

}  // namespace
}  // namespace hasten
