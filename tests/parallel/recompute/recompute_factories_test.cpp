// Regions whose factories' results the program fills itself, past the dispatcher.
#include <gtest/gtest.h>
#include <torch/torch.h>

#include <functional>
#include <utility>
#include <vector>

#include "hasten/parallel/recompute/recompute.h"

namespace hasten::parallel {
namespace {

TEST(RecomputeFactories, ResultsThatTheProgramFillsThroughPointersAreInputs) {
  torch::manual_seed(3);
  const auto start = torch::randn({16, 16}), input = torch::randn({8, 16});
  using Make = std::function<at::Tensor(const at::Tensor& like)>;
  const std::vector<std::pair<const char*, Make>> factories = {
      {"empty",
       [](const at::Tensor&) {
         return at::empty({8, 16});
       }},
      {"zeros",
       [](const at::Tensor&) {
         return at::zeros({8, 16});
       }},
      {"full",
       [](const at::Tensor&) {
         return at::full({8, 16}, 3.0);
       }},
      {"eye", [](const at::Tensor&) { return at::eye(8, 16); }},
      {"zeros_like", [](const at::Tensor& like) { return at::zeros_like(like); }},
      {"empty_like", [](const at::Tensor& like) { return at::empty_like(like); }},
      {"new_zeros",
       [](const at::Tensor& like) {
         return like.new_zeros({8, 16});
       }},
      {"new_empty",
       [](const at::Tensor& like) {
         return like.new_empty({8, 16});
       }},
      {"a view of empty",
       [](const at::Tensor&) {
         return at::empty({16, 8}).t();
       }},
  };
  for (const auto& [name, make] : factories) {
    const auto gradient = [&, &make = make](bool region) {
      const auto weight = start.clone().requires_grad_();
      const auto forward = [&](const at::Tensor& x) {
        const auto h = at::matmul(x, weight);
        const auto mask = make(h);
        auto values = mask.accessor<float, 2>();
        for (int i = 0; i < 8; ++i) {
          for (int j = 0; j < 16; ++j) values[i][j] = j <= i ? 1.0F : 0.5F;
        }
        return at::matmul((h * mask).sin(), weight);
      };
      const auto y = region ? recompute(forward, input) : forward(input);
      std::vector<at::Tensor> others;  // memory that is given back is taken by others
      for (int i = 0; i < 20; ++i) others.push_back(torch::randn({8, 16}));
      y.sum().backward();
      return weight.grad().clone();
    };

    EXPECT_TRUE(gradient(true).equal(gradient(false))) << name;
  }
}

}  // namespace
}  // namespace hasten::parallel
