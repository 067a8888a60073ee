#include "hasten/data/dataset/csv.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <torch/types.h>

#include <cmath>
#include <limits>

#include "hasten/data/dataset/tensor_dataset.h"
#include "hasten/data/loader/loader.h"
#include "support/folder.h"

namespace hasten::data {
namespace {

using ::testing::ElementsAre;
using testing::InFolder;
using testing::words_of;

class Csv : public InFolder {
 protected:
  CsvTable table(const std::string& bytes, const CsvOptions& options = {}) const {
    return CsvTable(write("a.csv", bytes), options);
  }
  std::string refused(const std::string& bytes, const CsvOptions& options = {}) const {
    return words_of<DataError>([&] { table(bytes, options); });
  }
  std::string misused(const CsvOptions& options) const {
    return words_of<UsageError>([&] { table("age,name\n1,a\n", options); });
  }
};

TEST_F(Csv, GivesColumnsAsTheyAreAskedFor) {
  const auto read =
      table("age,name,weight,id\n31,Ann,1.5,7\n 4 ,Bo,-2e3,+9\n",
            {.columns = {{"id", CsvType::kInteger}, {"name", CsvType::kText}, {"age"}, {"weight", CsvType::kDouble}}});

  EXPECT_EQ(read.num_rows(), 2u);
  EXPECT_TRUE(torch::equal(read["id"], torch::tensor({7, 9})));
  EXPECT_TRUE(torch::equal(read["age"], torch::tensor({31.0f, 4.0f})));
  EXPECT_TRUE(torch::equal(read["weight"], torch::tensor({1.5, -2000.0}, torch::kDouble)));
  EXPECT_THAT(read.texts("name"), ElementsAre("Ann", "Bo"));
  EXPECT_TRUE(torch::equal(read.matrix({"age", "id"}), torch::tensor({{31.0f, 7.0f}, {4.0f, 9.0f}})));
}

TEST_F(Csv, WithoutColumnsGivesAllAsTexts) {
  const auto read = table("a,b\n1, x \n");

  EXPECT_THAT(read.texts("a"), ElementsAre("1"));
  EXPECT_THAT(read.texts("b"), ElementsAre(" x "));
}

TEST_F(Csv, QuotedFieldsHoldSeparatorsLineEndsAndQuotes) {
  const auto read = table("a,b\r\n\"x,\"\"y\"\"\nz\",\"\"\r\n\"\",2\r\n");

  EXPECT_THAT(read.texts("a"), ElementsAre("x,\"y\"\nz", ""));
  EXPECT_THAT(read.texts("b"), ElementsAre("", "2"));
}

TEST_F(Csv, LineEndsAndEmptyLinesAndAByteOrderMarkDoNotMatter) {
  for (const char* bytes : {"a,b\n1,2\n3,4\n", "a,b\r\n1,2\r\n3,4",
                            "\xef\xbb\xbf"
                            "a,b\n\n1,2\n\r\n\n3,4\n\n"}) {
    const auto read = table(bytes);

    EXPECT_THAT(read.texts("a"), ElementsAre("1", "3")) << bytes;
    EXPECT_THAT(read.texts("b"), ElementsAre("2", "4")) << bytes;
  }
}

TEST_F(Csv, WithoutAHeaderColumnsAreNumbered) {
  const auto read = table("1;2\n3;4\n", {.columns = {{"1", CsvType::kInteger}}, .header = false, .separator = ';'});

  EXPECT_TRUE(torch::equal(read["1"], torch::tensor({2, 4})));
}

TEST_F(Csv, MissingNumbersAreNanOrWhatTheColumnSays) {
  const auto read =
      table("a,b,c\n,,\nNA, NA ,NA\n",
            {.columns = {{"a"}, {"b", CsvType::kInteger, -1}, {"c", CsvType::kFloat, 0}}, .missing = {"", "NA"}});

  EXPECT_TRUE(read["a"].isnan().all().item<bool>());
  EXPECT_TRUE(torch::equal(read["b"], torch::tensor({-1, -1})));
  EXPECT_TRUE(torch::equal(read["c"], torch::zeros(2)));
}

TEST_F(Csv, AHeaderAloneIsATableWithoutRows) {
  const auto read = table("a,b\n", {.columns = {{"a"}}});

  EXPECT_EQ(read.num_rows(), 0u);
  EXPECT_EQ(read["a"].numel(), 0);
}

TEST_F(Csv, ErrorsNameFileLineAndColumn) {
  const std::string file = path("a.csv");

  EXPECT_EQ(refused("age,n\n1,2\n3,x4\n", {.columns = {{"n", CsvType::kInteger}}}),
            "[data] " + file +
                ":3:3: 'x4' in column 'n' is not a whole number. Correct it, or name it in CsvOptions.missing.");
  EXPECT_NE(refused("a,b\n\"\n\n\",1.5\n", {.columns = {{"b", CsvType::kInteger}}}).find(":4:3: '1.5'"),
            std::string::npos)
      << "lines inside of quotes count";
  EXPECT_NE(refused("a\n1e999\n", {.columns = {{"a"}}}).find(":2:1: '1e999' in column 'a' does not fit a number"),
            std::string::npos);
  EXPECT_NE(refused("a\n99999999999999999999\n", {.columns = {{"a", CsvType::kInteger}}}).find("does not fit a whole"),
            std::string::npos);
  EXPECT_NE(refused("a,b\n1,\n", {.columns = {{"b", CsvType::kInteger}}}).find(":2:3: no value in column 'b'"),
            std::string::npos);
}

TEST_F(Csv, RecordsOfOtherLengthsAreNamed) {
  EXPECT_NE(refused("a,b\n1,2\n1,2,3\n").find(":3:5: a record of 3 fields, expected 2 as in the header"),
            std::string::npos);
  EXPECT_NE(refused("a,b\n1\n").find(":2:1: a record of 1 fields, expected 2"), std::string::npos);
}

TEST_F(Csv, BadQuotingIsNamed) {
  EXPECT_NE(refused("a\nx\"y\"\n").find(":2:2: a quote inside a field"), std::string::npos);
  EXPECT_NE(refused("a\n\"x\"y\n").find(":2:4: 'y' after a closing quote"), std::string::npos);
  EXPECT_NE(refused("a\n1\n\"x\n\n").find(":3:1: this quote is not closed"), std::string::npos);
}

TEST_F(Csv, AnEmptyFileOrAHeaderThatNamesAColumnTwiceIsRefused) {
  EXPECT_NE(refused("").find("is empty, expected a header"), std::string::npos);
  EXPECT_NE(refused("\n\n").find("is empty"), std::string::npos);
  EXPECT_NE(refused("a,b,a\n").find(":1:5: the header names 'a' twice"), std::string::npos);
}

TEST_F(Csv, WrongColumnsAreNamedWithTheNearest) {
  EXPECT_EQ(misused({.columns = {{"aeg"}}}), "[data] '" + path("a.csv") +
                                                 "' has no column 'aeg', did you mean 'age'? It has: age, name. "
                                                 "Correct the name.");
  EXPECT_NE(misused({.columns = {{"age"}, {"age"}}}).find("names 'age' twice"), std::string::npos);
  EXPECT_NE(misused({.separator = '"'}).find("separator"), std::string::npos);
  const auto read = table("age,name\n1,a\n", {.columns = {{"age"}, {"name", CsvType::kText}}});
  EXPECT_NE(words_of<UsageError>([&] { read["name"]; }).find("it holds texts"), std::string::npos);
  EXPECT_NE(words_of<UsageError>([&] { read.texts("nam"); }).find("did you mean 'name'?"), std::string::npos);
  EXPECT_THROW(read.matrix({}), UsageError);
}

TEST_F(Csv, ServesDatasetsOfNumbersAndOfNumbersWithTexts) {
  const auto read = table("x,y,name\n1,10,a\n2,20,b\n3,30,c\n",
                          {.columns = {{"x"}, {"y", CsvType::kInteger}, {"name", CsvType::kText}}});
  const std::vector<size_t> indices{2, 0};
  CsvDataset dataset(read);
  TensorDataset numbers(read.matrix({"x"}), read["y"]);

  const auto batch = dataset.get_batch(indices);

  EXPECT_TRUE(torch::equal(batch.numbers.at("y"), torch::tensor({30, 10})));
  EXPECT_THAT(batch.texts.at("name"), ElementsAre("c", "a"));
  EXPECT_TRUE(torch::equal(numbers.get_batch(indices).target, batch.numbers.at("y")));
  EXPECT_THROW(dataset.get_batch(3), DataError);
  static_assert(is_thread_safe<CsvDataset>::value && can_be_placed<CsvBatch>);
}

TEST_F(Csv, WhatStandsForAMissingIntegerIsOne) {
  const auto integers = [](double missing) { return CsvOptions{.columns = {{"age", CsvType::kInteger, missing}}}; };
  for (const double missing : {std::nan(""), 0.5, 1e300, 0x1p63}) {
    EXPECT_NE(misused(integers(missing)).find("for column 'age' of kInteger, expected a whole number"),
              std::string::npos);
  }
  EXPECT_EQ(table("age,b\n,1\n", integers(-1))["age"].item<int64_t>(), -1);
}

TEST_F(Csv, NumbersTooLargeForTheColumnAreRefusedAndThoseTooSmallAre0) {
  const CsvOptions single{.columns = {{"a"}}}, twice{.columns = {{"a", CsvType::kDouble}}};

  EXPECT_NE(refused("a\n1\n 1e300\n", single).find(":3:1: '1e300' in column 'a' does not fit float32"),
            std::string::npos);
  EXPECT_NE(refused("a\n1e400\n", twice).find("does not fit a number"), std::string::npos);
  EXPECT_EQ(table("a\n1e300\n", twice)["a"].item<double>(), 1e300);
  EXPECT_EQ(table("a\n3.4028235e38\n", single)["a"].item<float>(), std::numeric_limits<float>::max());
  EXPECT_EQ(table("a\n1e-400\n", twice)["a"].item<double>(), 0);
  EXPECT_EQ(table("a\n1e-50\n", single)["a"].item<float>(), 0);
  EXPECT_TRUE(std::isinf(table("a\ninf\n", single)["a"].item<float>()));
}

}  // namespace
}  // namespace hasten::data
