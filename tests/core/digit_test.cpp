#include "hasten/core/digit.h"

#include <gtest/gtest.h>

#include <string>

namespace hasten::core {
namespace {

TEST(Digit, IsOneOfTen) {
  std::string found;
  for (int byte = 0; byte < 256; ++byte) {
    if (is_digit(static_cast<char>(byte))) found += static_cast<char>(byte);
  }
  EXPECT_EQ(found, "0123456789");
}

}  // namespace
}  // namespace hasten::core
