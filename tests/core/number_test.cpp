#include "hasten/core/number.h"

#include <gtest/gtest.h>

#include <cmath>
#include <locale>

#include "hasten/core/text.h"

namespace hasten::core {
namespace {

// A user's locale: digits in groups of three, a decimal comma.
struct Comma : std::numpunct<char> {
  char do_decimal_point() const override { return ','; }
  char do_thousands_sep() const override { return '.'; }
  std::string do_grouping() const override { return "\3"; }
};

class InTheUsersLocale : public ::testing::Test {
 protected:
  InTheUsersLocale() : before_(std::locale::global(std::locale(std::locale::classic(), new Comma))) {}
  ~InTheUsersLocale() override { std::locale::global(before_); }

 private:
  std::locale before_;
};

TEST(Number, TheWholeTextIsOneNumber) {
  EXPECT_EQ(whole_number<int>("42"), 42);
  EXPECT_EQ(whole_number<int>("+42"), 42);
  EXPECT_EQ(whole_number<int64_t>("-7"), -7);
  EXPECT_EQ(whole_number<int>("ff", 16), 255);
  EXPECT_EQ(real_number("1.5e3"), 1500.0);
  EXPECT_EQ(real_number("-.5"), -0.5);
  for (const char* wrong : {"", "+", "+-1", "1,5", "1 ", " 1", "1_000", "0x1", "one"}) {
    EXPECT_FALSE(whole_number<int>(wrong)) << wrong;
    EXPECT_FALSE(real_number(wrong)) << wrong;
  }
  EXPECT_FALSE(whole_number<int>("99999999999"));
  EXPECT_FALSE(whole_number<unsigned>("-1"));
}

TEST(Number, AFloatBeyondTheRangeIsInfiniteOrZero) {
  EXPECT_EQ(real_number("1.5e999"), INFINITY);
  EXPECT_EQ(real_number("-1e99999999999999999999"), -INFINITY);
  EXPECT_EQ(real_number("1e-999"), 0.0);
  EXPECT_EQ(real_number("0.0001e400"), INFINITY);
  EXPECT_EQ(real_number("0." + std::string(400, '0') + "1"), 0.0);
  EXPECT_EQ(real_number("1" + std::string(400, '0')), INFINITY);
  EXPECT_TRUE(std::isnan(real_number("nan").value()));
}

TEST(Number, PythonsNumbersMayHaveUnderscoresBetweenDigits) {
  EXPECT_EQ(python_number(" 1_000.5_0 "), 1000.5);
  EXPECT_EQ(python_number("7_68"), 768.0);
  for (const char* wrong : {"_1", "1_", "1__0", "1_.5", "1e_5", "0x10", "nan(1)", "  "}) EXPECT_FALSE(python_number(wrong)) << wrong;
}

TEST(Number, TextHasTheDigitsOfPrintf) {
  EXPECT_EQ(fixed_text(1.5, 2), "1.50");
  EXPECT_EQ(fixed_text(1e300, 0).size(), 301U);
  EXPECT_EQ(fixed_text(INFINITY, 1), "inf");
  EXPECT_EQ(general_text(0.00001, 6), "1e-05");
  EXPECT_EQ(general_text(0.3, 3), "0.3");
}

TEST_F(InTheUsersLocale, NumbersOfFilesKeepTheirForm) {
  EXPECT_EQ(text("checkpoint_", 1234), "checkpoint_1234");
  EXPECT_EQ(text(1234.5), "1234.5");
  EXPECT_EQ(join(std::vector<int>{1000, 2000}), "1000, 2000");
  EXPECT_EQ(fixed_text(1234.5, 2), "1234.50");
  EXPECT_EQ(real_number("1234.5"), 1234.5);
}

}  // namespace
}  // namespace hasten::core
