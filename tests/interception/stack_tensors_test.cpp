#include "hasten/interception/stack_tensors.h"

#include <gtest/gtest.h>
#include <torch/types.h>

#include <optional>
#include <vector>

namespace hasten::interception {
namespace {

std::vector<int64_t> sizes_in(const c10::IValue& value) {
  std::vector<int64_t> sizes;
  visit_tensors(value, [&](const at::Tensor& tensor) { sizes.push_back(tensor.numel()); });
  return sizes;
}

TEST(StackTensors, AreThoseOfAValueAndOfItsLists) {
  const at::Tensor one = torch::ones(1), two = torch::ones(2);

  EXPECT_EQ(sizes_in(one), (std::vector<int64_t>{1}));
  EXPECT_EQ(sizes_in(std::vector<at::Tensor>{two, one}), (std::vector<int64_t>{2, 1}));
  EXPECT_EQ(sizes_in(c10::List<std::optional<at::Tensor>>({std::nullopt, two})), (std::vector<int64_t>{2}));
}

TEST(StackTensors, AreDefined) {
  EXPECT_TRUE(sizes_in(at::Tensor()).empty());
  EXPECT_EQ(sizes_in(std::vector<at::Tensor>{at::Tensor(), torch::ones(3)}), (std::vector<int64_t>{3}));
  EXPECT_TRUE(sizes_in(c10::IValue(7)).empty());
  EXPECT_TRUE(sizes_in(std::vector<int64_t>{1, 2}).empty());
}

}  // namespace
}  // namespace hasten::interception
