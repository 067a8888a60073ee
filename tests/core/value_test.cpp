#include "hasten/core/value.h"

#include <gtest/gtest.h>

#include <cmath>
#include <limits>

#include "hasten/core/error.h"

namespace hasten::core {
namespace {

TEST(Value, AMapKeepsTheOrderOfItsKeys) {
  Value value;
  value["lr"] = 0.1;
  value["betas"] = Value::list({0.9, 0.999});
  value["amsgrad"] = false;
  value["lr"] = 0.2;

  EXPECT_EQ(value.to_json(), R"({"lr":0.2,"betas":[0.9,0.999],"amsgrad":false})");
}

TEST(Value, JsonTextGivesTheSameValueBack) {
  const Value value = Value::map({{"none", nullptr},
                                  {"big", std::numeric_limits<int64_t>::max()},
                                  {"third", 1.0 / 3},
                                  {"inf", std::numeric_limits<double>::infinity()},
                                  {"nan", std::nan("")},
                                  {"text", "a \"b\"\n"},
                                  {"nested", Value::map({{"list", Value::list({1, "two", Value::map()})}})}});

  EXPECT_EQ(Value::parse_json(value.to_json()), value);
  EXPECT_EQ(Value::parse_json(value.to_json(2)), value);
}

TEST(Value, OfAKeyThatStandsTwiceTheLastValueCounts) {
  const auto value = Value::parse_json(R"({"a": 1, "b": 2, "a": [3], "c": 4, "a": 5})");

  EXPECT_EQ(value, Value::map({{"a", 5}, {"b", 2}, {"c", 4}}));
}

TEST(Value, TextThatNestsTooDeepIsRefused) {
  const std::string deep(20'000, '[');

  EXPECT_THROW(Value::parse_json(deep), DataError);
  EXPECT_NO_THROW(Value::parse_json(std::string(1'000, '[') + std::string(1'000, ']')));
}

// The time grows with the number of keys: comparing each with all others would take hours.
TEST(Value, AMapOfAMillionKeysIsReadAndWritten) {
  Value::Map map;
  for (int i = 0; i < 1'000'000; ++i) map.emplace_back("key_" + std::to_string(i), i);
  const Value value(std::move(map));

  EXPECT_EQ(Value::parse_json(value.to_json()), value);
}

TEST(Value, AMissingKeyIsNamedWithTheNearestOne) {
  const Value value = Value::map({{"momentum", 0.9}, {"lr", 0.1}});

  try {
    value.at("momentun");
    FAIL() << "nothing was thrown";
  } catch (const UsageError& error) {
    EXPECT_NE(std::string(error.what()).find("did you mean 'momentum'"), std::string::npos) << error.what();
  }
  EXPECT_EQ(value.find("momentun"), nullptr);
}

TEST(Value, AnotherKindIsRefused) {
  EXPECT_THROW(Value("text").as_int(), UsageError);
  EXPECT_THROW(Value(1.5).as_int(), UsageError);
  EXPECT_EQ(Value(2.0).as_int(), 2);
  EXPECT_EQ(Value(2).as_double(), 2.0);
}

TEST(Value, BrokenTextIsRefusedWithItsName) {
  try {
    Value::parse_json("{\"a\": }", "settings.json");
    FAIL() << "nothing was thrown";
  } catch (const DataError& error) {
    EXPECT_NE(std::string(error.what()).find("settings.json"), std::string::npos) << error.what();
  }
}

}  // namespace
}  // namespace hasten::core
