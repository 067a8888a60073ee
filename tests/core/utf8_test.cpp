#include "hasten/core/utf8.h"

#include <gtest/gtest.h>

namespace hasten::core {
namespace {

TEST(Utf8, TheLengthOfALetterIsThatOfItsNumber) {
  for (const unsigned code : {0x41U, 0x7FU, 0x80U, 0x7FFU, 0x800U, 0xD7FFU, 0xE000U, 0xFFFFU, 0x10000U, 0x10FFFFU}) {
    std::string letter;
    append_utf8(letter, code);

    EXPECT_EQ(letter.size(), code < 0x80 ? 1u : code < 0x800 ? 2u : code < 0x10000 ? 3u : 4u);
    EXPECT_EQ(utf8_length(letter + "x"), letter.size()) << code;
  }
}

TEST(Utf8, OverlongFormsSurrogatesAndCutLettersAreNone) {
  for (const char* none : {"", "\x80", "\xc0\x80", "\xe0\x80\x80", "\xed\xa0\x80", "\xf0\x80\x80\x80",
                           "\xf4\x90\x80\x80", "\xff", "\xc3", "\xe2\x82"}) {
    EXPECT_EQ(utf8_length(none), 0u) << none;
  }
}

}  // namespace
}  // namespace hasten::core
