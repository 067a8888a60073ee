#include "hasten/data/dataset/rows.h"

#include <gtest/gtest.h>
#include <torch/types.h>

#include "support/folder.h"

namespace hasten::data {
namespace {

using testing::words_of;

TEST(Rows, AreThoseOfIndexSelectForEveryLayout) {
  const std::vector<size_t> indices{2, 0, 2};
  const auto expected = torch::tensor({2, 0, 2});
  const auto plain = torch::arange(12.0).reshape({4, 3});

  for (const at::Tensor& values :
       {plain, plain.t().contiguous().t(), plain.to(at::kBFloat16), plain.slice(1, 0, 2), plain.slice(0, 1),
        plain.select(1, 0), torch::zeros({4, 0}), plain.to(at::kComplexFloat).conj()}) {
    EXPECT_TRUE(torch::equal(gather_rows(values, indices), values.index_select(0, expected))) << values;
  }
}

TEST(Rows, AreACopy) {
  const auto values = torch::ones({2, 2});
  const std::vector<size_t> indices{0, 1};

  gather_rows(values, indices).zero_();

  EXPECT_EQ(values.sum().item<float>(), 4);
}

TEST(Rows, NoIndicesGiveNoRows) {
  EXPECT_EQ(gather_rows(torch::ones({2, 3}), {}).sizes(), (std::vector<int64_t>{0, 3}));
  EXPECT_EQ(gather_rows(torch::ones({0, 3}), {}).sizes(), (std::vector<int64_t>{0, 3}));
}

TEST(Rows, AnIndexOutOfRangeIsNamedWithTheSize) {
  const std::vector<size_t> indices{0, 2};

  EXPECT_EQ(words_of<DataError>([&] {
              gather_rows(torch::ones({2, 2}), indices);
            }),
            "[data] sample 2 of a dataset of 2 samples, expected 0 to 1. Make the sampler for this dataset's "
            "size.");
  EXPECT_NE(words_of<DataError>([&] {
              gather_rows(torch::ones({0, 2}), indices);
            }).find("is empty"),
            std::string::npos);
}

}  // namespace
}  // namespace hasten::data
