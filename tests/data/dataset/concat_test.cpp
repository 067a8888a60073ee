#include "hasten/data/dataset/concat.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <torch/types.h>

#include "hasten/data/dataset/csv.h"
#include "hasten/data/dataset/tensor_dataset.h"
#include "hasten/data/loader/loader.h"
#include "support/folder.h"
#include "support/samples.h"

namespace hasten::data {
namespace {

using ::testing::ElementsAre;
using testing::Range;
using testing::words_of;

TensorDataset<2> numbers(int64_t begin, int64_t end) {
  return TensorDataset(torch::arange(begin, end), torch::arange(begin, end) * 2);
}

TEST(Concat, ABatchAcrossPartsComesInTheOrderAskedFor) {
  auto all = concat(numbers(0, 3), numbers(3, 4), numbers(4, 9));
  const std::vector<size_t> indices{8, 0, 3, 5, 2, 3};

  const auto batch = all.get_batch(indices);

  EXPECT_EQ(all.size(), 9u);
  EXPECT_TRUE(torch::equal(batch.data, torch::tensor({8, 0, 3, 5, 2, 3})));
  EXPECT_TRUE(torch::equal(batch.target, batch.data * 2));
}

TEST(Concat, PartsMayBeOfDifferentTypesWithBatchesOfOneType) {
  auto all = concat(Range(3), concat(std::vector<Range>{Range(2), Range(4)}));
  const std::vector<size_t> indices{8, 1, 3};

  EXPECT_THAT(all.get_batch(indices), ElementsAre(3, 1, 0));
}

TEST(Concat, IsThreadSafeIfItsPartsAre) {
  static_assert(is_thread_safe<decltype(concat(numbers(0, 1)))>::value);
  static_assert(!is_thread_safe<decltype(concat(Range(1)))>::value);
  static_assert(!is_thread_safe<decltype(concat(Range(1), concat(Range(1))))>::value);
}

TEST(Concat, PartsThatAreNotThreadSafeAreCopiedWithIt) {
  class Counting : public torch::data::datasets::Dataset<Counting, int> {
   public:
    int get(size_t) override { return ++calls_; }
    std::optional<size_t> size() const override { return 1; }

   private:
    int calls_ = 0;
  };
  auto one = concat(Counting());
  const std::vector<size_t> first{0};

  auto two = one;

  EXPECT_THAT(one.get_batch(first), ElementsAre(1));
  EXPECT_THAT(one.get_batch(first), ElementsAre(2));
  EXPECT_THAT(two.get_batch(first), ElementsAre(1));
}

TEST(Concat, AnEmptyPartIsPassedOver) {
  auto all = concat(Range(0), Range(2), Range(0), Range(1));
  const std::vector<size_t> indices{0, 1, 2};

  EXPECT_THAT(all.get_batch(indices), ElementsAre(0, 1, 0));
}

TEST(Concat, AnIndexOutOfRangeIsNamedWithTheWholeSize) {
  auto all = concat(numbers(0, 3), numbers(0, 2));
  const std::vector<size_t> indices{5};

  EXPECT_NE(words_of<DataError>([&] { all.get_batch(indices); }).find("sample 5 of a concatenation of 5"),
            std::string::npos);
}

TEST(Concat, PartsWhoseSamplesDifferAreNamed) {
  auto all = concat(TensorDataset(torch::ones({2, 3})), TensorDataset(torch::ones({2, 4})));
  const std::vector<size_t> within{2, 3}, across{0, 2};

  EXPECT_EQ(all.get_batch(within).size(1), 4);
  const std::string words = words_of<DataError>([&] { all.get_batch(across); });
  EXPECT_NE(words.find("part 0 of a concatenation are Float [3], those of part 1 are Float [4]"), std::string::npos)
      << words;
}

TEST(Concat, NoPartsAreRefused) {
  EXPECT_THROW(concat(std::vector<Range>{}), UsageError);
}

class ConcatCsv : public testing::InFolder {};

TEST_F(ConcatCsv, TextsComeInTheOrderOfTheirSamples) {
  const auto part = [&](const std::string& name, const std::string& bytes) {
    return CsvDataset(CsvTable(write(name, bytes), {.columns = {{"x"}, {"t", CsvType::kText}}}));
  };
  auto all = concat(part("a.csv", "x,t\n0,a\n1,b\n"), part("b.csv", "x,t\n2,c\n3,d\n"));
  const std::vector<size_t> indices{3, 0, 2, 1};

  const CsvBatch batch = all.get_batch(indices);

  EXPECT_TRUE(torch::equal(batch.numbers.at("x"), torch::tensor({3.0f, 0.0f, 2.0f, 1.0f})));
  EXPECT_THAT(batch.texts.at("t"), ElementsAre("d", "a", "c", "b"));
}

}  // namespace
}  // namespace hasten::data
