#include "parallel/norm/mark.h"

#include <gtest/gtest.h>
#include <torch/torch.h>

namespace hasten::parallel {
namespace {

TEST(Mark, PassesOnToCopiesOfATensorAndNotToResultsOfOperators) {
  const at::Tensor tensor = torch::ones({2}).requires_grad_();
  const auto mark = c10::make_intrusive<Mark>();
  set_mark(tensor, mark);

  EXPECT_EQ(mark_of(tensor), mark);
  EXPECT_EQ(mark_of(tensor.detach()), mark);
  EXPECT_EQ(mark_of(tensor.clone()), mark);
  EXPECT_EQ(mark_of(tensor.to(at::kHalf)), mark);
  EXPECT_EQ(mark_of(tensor * 2), nullptr);
  EXPECT_EQ(mark_of(torch::ones({2})), nullptr);
  EXPECT_EQ(mark_of(at::Tensor()), nullptr);
}

TEST(Mark, LeavesValuesAndGradientsAsTheyAre) {
  const at::Tensor plain = torch::ones({2}).requires_grad_(), marked = torch::ones({2}).requires_grad_();
  set_mark(marked, c10::make_intrusive<Mark>());

  const auto run = [](const at::Tensor& tensor) {
    torch::optim::SGD optimizer({tensor}, torch::optim::SGDOptions(0.1).momentum(0.9));
    tensor.clone().to(at::kDouble).pow(3).sum().backward();
    optimizer.step();
    return tensor;
  };

  EXPECT_TRUE(torch::equal(run(marked), run(plain)));
  EXPECT_EQ(mark_of(marked.grad()), nullptr);
}

}  // namespace
}  // namespace hasten::parallel
