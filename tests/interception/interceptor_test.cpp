#include "hasten/interception/interceptor.h"

#include <ATen/core/dispatch/Dispatcher.h>
#include <dlfcn.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <torch/types.h>

#include <map>
#include <string>

#include "hasten/core/error.h"
#include "support/folder.h"

namespace hasten::interception {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;

// Notes which operators it was asked for.
struct Noting : Interceptor {
  std::vector<std::string_view> wanted;
  Level of = Level::kOperators;
  std::vector<std::string> seen;

  Level level() const override { return of; }
  std::vector<std::string_view> operators() const override { return wanted; }
  bool intercept(const c10::OperatorHandle& op, Stack&) override {
    seen.push_back(op.schema().name());
    return false;
  }
};

std::shared_ptr<Noting> noting(std::vector<std::string_view> wanted) {
  auto interceptor = std::make_shared<Noting>();
  interceptor->wanted = std::move(wanted);
  return interceptor;
}

std::shared_ptr<Noting> noting_all() {
  auto interceptor = std::make_shared<Noting>();
  interceptor->of = Level::kEveryOperator;
  return interceptor;
}

// Doubles the weight of at::linear.
struct Doubling : Interceptor {
  std::vector<std::string_view> operators() const override { return {"aten::linear"}; }
  bool intercept(const c10::OperatorHandle&, Stack& stack) override {
    auto& weight = stack[stack.size() - 2];
    weight = weight.toTensor() * 2;
    return false;
  }
};

// Computes at::linear as a product of matrices.
struct Replacing : Interceptor {
  std::vector<std::string_view> operators() const override { return {"aten::linear"}; }
  bool intercept(const c10::OperatorHandle&, Stack& stack) override {
    const auto input = stack[stack.size() - 3].toTensor(), weight = stack[stack.size() - 2].toTensor();
    stack.resize(stack.size() - 3);
    stack.emplace_back(input.mm(weight.t()) + 1);
    return true;
  }
};

at::Tensor weight() {
  return torch::arange(12, torch::kFloat).view({3, 4}).requires_grad_();
}

TEST(Interceptor, IsAskedForTheOperatorsItNames) {
  const at::Tensor tensor = weight();
  const auto interceptor = noting({"aten::linear"});
  add_interceptor(tensor, interceptor);

  at::linear(torch::ones({2, 4}), tensor);
  (void)(tensor + 1).sum();

  EXPECT_THAT(interceptor->seen, ElementsAre("aten::linear"));
}

TEST(Interceptor, SeesOperatorsInsideOthersThatItDoesNotName) {
  const at::Tensor tensor = weight();
  const auto interceptor = noting({"aten::mm"});
  add_interceptor(tensor, interceptor);

  at::matmul(torch::ones({2, 3}), tensor);

  EXPECT_THAT(interceptor->seen, ElementsAre("aten::mm"));
}

TEST(Interceptor, ChangedArgumentsAreRecordedByAutograd) {
  const at::Tensor tensor = weight(), plain = weight(), input = torch::ones({2, 4});
  add_interceptor(tensor, std::make_shared<Doubling>());

  const at::Tensor doubled = at::linear(input, tensor);
  doubled.sum().backward();
  at::linear(input, plain * 2).sum().backward();

  EXPECT_TRUE(at::equal(doubled, at::linear(input, plain * 2)));
  EXPECT_TRUE(at::equal(tensor.grad(), plain.grad()));
}

TEST(Interceptor, ThoseOfATensorAreAskedInOrderUntilOneReplacesTheResult) {
  const at::Tensor tensor = weight(), input = torch::ones({2, 4});
  const auto first = noting({"aten::linear"}), last = noting({"aten::linear"});
  add_interceptor(tensor, first);
  add_interceptor(tensor, std::make_shared<Doubling>());
  add_interceptor(tensor, std::make_shared<Replacing>());
  add_interceptor(tensor, last);

  const at::Tensor result = at::linear(input, tensor);

  EXPECT_TRUE(at::equal(result, input.mm(weight().t() * 2) + 1));
  EXPECT_EQ(first->seen.size(), 1u);
  EXPECT_TRUE(last->seen.empty());
}

TEST(Interceptor, ViewsOfAnInterceptedTensorAreIntercepted) {
  const at::Tensor tensor = weight();
  const auto interceptor = noting({"aten::mm"});
  add_interceptor(tensor, interceptor);
  const at::Tensor input = torch::ones({2, 4});

  input.mm(tensor.t());
  input.mm(tensor.t().detach());
  input.mm(tensor.detach().t());
  input.narrow(1, 0, 2).mm(tensor.narrow(1, 0, 2).t());

  EXPECT_EQ(interceptor->seen.size(), 4u);
}

TEST(Interceptor, ACloneIsFree) {
  const at::Tensor tensor = weight();
  add_interceptor(tensor, noting({"aten::mm"}));

  EXPECT_TRUE(interceptors_of(tensor.clone(), Level::kOperators).empty());
  EXPECT_EQ(interceptors_of(tensor, Level::kOperators).size(), 1u);
}

TEST(Interceptor, EveryOperatorIsSeenBeforeTheNamedOnes) {
  const at::Tensor tensor = weight();
  const auto named = noting({"aten::mm"});
  const auto all = noting_all();
  add_interceptor(tensor, named);
  add_interceptor(tensor, all);

  torch::ones({2, 3}).mm(tensor);
  at::cat({tensor, tensor});
  const at::Tensor index = torch::tensor({1});
  tensor.index({index});

  EXPECT_THAT(all->seen, ElementsAre("aten::mm", "aten::cat", "aten::index"));
  EXPECT_THAT(named->seen, ElementsAre("aten::mm"));
}

TEST(Interceptor, BackwardReachesItAgain) {
  const at::Tensor tensor = weight();
  const auto all = noting_all();
  add_interceptor(tensor, all);
  const at::Tensor input = torch::ones({2, 3}).requires_grad_();
  const at::Tensor result = input.mm(tensor).sum();
  all->seen.clear();

  result.backward();

  EXPECT_THAT(all->seen, ::testing::Contains("aten::mm"));
}

TEST(Interceptor, OneThatIsTakenOffIsAskedNoMore) {
  const at::Tensor tensor = weight();
  const auto first = noting({"aten::mm"}), second = noting({"aten::mm"});
  add_interceptor(tensor, first);
  add_interceptor(tensor, second);

  remove_interceptor(tensor, first.get());
  torch::ones({2, 3}).mm(tensor);
  remove_interceptor(tensor, second.get());
  torch::ones({2, 3}).mm(tensor);

  EXPECT_TRUE(first->seen.empty());
  EXPECT_EQ(second->seen.size(), 1u);
}

TEST(Interceptor, OneThatNamesAnUnknownOperatorIsRefused) {
  const auto words =
      testing::words_of<UsageError>([] { add_interceptor(weight(), noting({"aten::no_such_operator"})); });

  EXPECT_THAT(words, HasSubstr("aten::no_such_operator"));
}

TEST(Interceptor, AScopeSeesFactoriesOfItsThread) {
  const auto all = noting_all();
  {
    const EveryOperatorScope scope(*all);
    torch::empty({2});
  }
  torch::empty({2});

  EXPECT_EQ(all->seen.size(), 1u);
}

TEST(Interceptor, APassScopeHidesBothLevels) {
  const at::Tensor tensor = weight();
  const auto named = noting({"aten::mm"});
  const auto all = noting_all();
  add_interceptor(tensor, named);
  add_interceptor(tensor, all);
  const PassScope pass;

  torch::ones({2, 3}).mm(tensor);

  EXPECT_TRUE(named->seen.empty());
  EXPECT_TRUE(all->seen.empty());
}

// As a Python module and a user's own extension would be in one process.
TEST(Interceptor, OfASecondCopyOfTheLibraryIsRefusedAndTheFirstGoesOn) {
  const at::Tensor tensor = weight();
  const auto interceptor = noting({"aten::linear"});
  add_interceptor(tensor, interceptor);
  void* const copy = dlopen(HASTEN_SECOND_COPY, RTLD_NOW | RTLD_LOCAL);
  ASSERT_NE(copy, nullptr) << dlerror();
  const auto try_to_intercept = reinterpret_cast<const char* (*)()>(dlsym(copy, "second_copy_intercepts"));
  ASSERT_NE(try_to_intercept, nullptr) << dlerror();

  const std::string words = try_to_intercept();

  EXPECT_THAT(words, HasSubstr("another copy of this library"));
  at::linear(torch::ones({2, 4}), tensor);
  EXPECT_THAT(interceptor->seen, ElementsAre("aten::linear"));
}

}  // namespace
}  // namespace hasten::interception
