#include "hasten/core/json.h"

#include <gtest/gtest.h>

#include <cmath>
#include <limits>

namespace hasten::core {
namespace {

JsonError mistake_in(std::string_view text, const JsonForm& form = {}) {
  JsonError error;
  EXPECT_FALSE(read_json(text, form, &error)) << text;
  return error;
}

TEST(Json, TheStandardFormTakesWhatTheStandardHas) {
  const auto value =
      read_json(" [0, -0.5, 1E+2, 9223372036854775807, true, null, {\"\\u00e9\\ud83d\\ude00\": {}}, []] ", {});

  EXPECT_EQ(value, Value::list({0, -0.5, 100.0, INT64_MAX, true, nullptr,
                                Value::map({{"\xc3\xa9\xf0\x9f\x98\x80", Value::map()}}), Value::list()}));
}

TEST(Json, TheStandardFormRefusesWhatTheStandardLacks) {
  for (const char* wrong : {"",
                            "{",
                            "[1",
                            "[1,]",
                            "[,1]",
                            "{\"a\" 1}",
                            "{\"a\":1,}",
                            "{a: 1}",
                            "tru",
                            "truer",
                            "1 2",
                            "01",
                            "-",
                            "+1",
                            ".5",
                            "5.",
                            "1e",
                            "nan",
                            "NaN",
                            "Infinity",
                            "\"a",
                            "\"\\x\"",
                            "\"\\ud800\"",
                            "\"\\ud800\\u0041\"",
                            "\"\\udc00\"",
                            "\"\\u12\"",
                            "\"\t\"",
                            "\"\xff\"",
                            "\"\xed\xa0\x80\"",
                            "// a\n1",
                            "\xEF\xBB\xBF{}",
                            "1e400",
                            "]",
                            "[1}"}) {
    EXPECT_NE(mistake_in(wrong).found, "") << wrong;
  }
}

TEST(Json, PythonsFormHasItsNumbers) {
  const auto value = read_json("[NaN, Infinity, -Infinity, 1e400]", {.python_numbers = true});

  ASSERT_TRUE(value);
  EXPECT_TRUE(std::isnan(value->as_list()[0].as_double()));
  for (const size_t i : {1, 3}) EXPECT_EQ(value->as_list()[i], std::numeric_limits<double>::infinity());
  EXPECT_EQ(value->as_list()[2], -std::numeric_limits<double>::infinity());
}

TEST(Json, TheFormOfPeopleHasCommentsAndTrailingCommas) {
  const auto value =
      read_json("\xEF\xBB\xBF# a\n{ // b\n \"a\": [1, 2,], /* c\n */ \"b\": \"\t\",\n}", {.comments = true});

  EXPECT_EQ(value, Value::map({{"a", Value::list({1, 2})}, {"b", "\t"}}));
  EXPECT_EQ(mistake_in("/*", {.comments = true}).text(), "line 1, column 1: a comment without an end; expected */");
  EXPECT_NE(mistake_in("[,]", {.comments = true}).found, "");
}

TEST(Json, AMistakeHasItsPlace) {
  EXPECT_EQ(mistake_in("{\n  \"a\": 1,\n  \"b\" 2}").text(),
            "line 3, column 7: '2'; expected ':' behind the key \"b\"");
  EXPECT_EQ(mistake_in("[1, wrong]").offset, 4u);
  EXPECT_EQ(mistake_in("[1, wrong]").found, "'wrong'");
}

TEST(Json, ARepeatedKeyIsRefusedOrItsLastValueCounts) {
  const std::string text = R"({"a": 1, "b": {"a": 2}, "a": 3})";

  const JsonError error = mistake_in(text, {.unique_keys = true});

  EXPECT_EQ(read_json(text, {}), Value::map({{"a", 3}, {"b", Value::map({{"a", 2}})}}));
  EXPECT_EQ(error.kind, JsonError::Kind::kRepeatedKey);
  EXPECT_EQ(error.subject, "a");
  EXPECT_EQ(error.offset, text.rfind("\"a\""));
}

TEST(Json, IntegersBeyond64BitsAreDoublesOrRefused) {
  EXPECT_EQ(read_json("18446744073709551616", {}), Value(18446744073709551616.0));
  const JsonError error = mistake_in("[9223372036854775808]", {.large_integers = false});
  EXPECT_EQ(error.kind, JsonError::Kind::kLargeNumber);
  EXPECT_EQ(error.subject, "9223372036854775808");
}

TEST(Json, TheDepthHasABound) {
  EXPECT_TRUE(read_json("[[{}]]", {.max_depth = 3}));
  EXPECT_EQ(mistake_in("[[[[]]]]", {.max_depth = 3}).kind, JsonError::Kind::kDepth);
}

TEST(Json, RealsAreWrittenWithTheFewestDigitsAndAsReals) {
  const auto value = Value::list({1.0, -0.0, 0.1, 1e-4, 1e-5, 123456789012345.0, 1e15, 1.5e300, 5e-324});

  EXPECT_EQ(write_json(value), "[1.0,-0.0,0.1,0.0001,1e-05,123456789012345.0,1e+15,1.5e+300,5e-324]");
}

TEST(Json, IsWrittenInLevels) {
  const auto value = Value::map({{"a", Value::list({1, Value::map()})}, {"b", Value::list()}});

  EXPECT_EQ(write_json(value, {.indent = 2}), "{\n  \"a\": [\n    1,\n    {}\n  ],\n  \"b\": []\n}");
}

TEST(Json, TextsAreEscaped) {
  const Value value = "\"\\/\n\x01\x7f\xc3\xa9\xf0\x9f\x98\x80\xff";

  EXPECT_EQ(write_json(value), "\"\\\"\\\\/\\n\\u0001\x7f\xc3\xa9\xf0\x9f\x98\x80\xef\xbf\xbd\"");
  EXPECT_EQ(write_json(value, {.ascii = true}), R"("\"\\/\n\u0001\u007f\u00e9\ud83d\ude00\ufffd")");
}

}  // namespace
}  // namespace hasten::core
