// Interceptors that are asked before scopes, and lists that tensors share.
#include "hasten/interception/before_scopes.h"

#include <ATen/core/dispatch/Dispatcher.h>
#include <gtest/gtest.h>
#include <torch/types.h>

#include <string>
#include <vector>

#include "hasten/interception/interceptor.h"

namespace hasten::interception {
namespace {

// Notes its name for each operator, and leaves the operator alone.
class NamedNoting : public Interceptor {
 public:
  NamedNoting(std::string name, std::vector<std::string>& notes) : name_(std::move(name)), notes_(&notes) {}
  Level level() const override { return Level::kEveryOperator; }
  bool intercept(const c10::OperatorHandle& op, Stack&) override {
    if (op.schema().name() == "aten::neg") notes_->push_back(name_);
    return false;
  }

 private:
  std::string name_;
  std::vector<std::string>* notes_;
};

class NotingBefore : public NamedNoting, public BeforeScopes {
 public:
  NotingBefore(std::string name, int order, std::vector<std::string>& notes)
      : NamedNoting(std::move(name), notes), order_(order) {}
  int order() const noexcept override { return order_; }

 private:
  int order_;
};

TEST(BeforeScopes, AreAskedBeforeAScopeInTheirOrder) {
  std::vector<std::string> notes;
  const at::Tensor x = at::ones({2});
  add_interceptor(x, std::make_shared<NamedNoting>("plain", notes));
  add_interceptor(x, std::make_shared<NotingBefore>("second", 2, notes));
  add_interceptor(x, std::make_shared<NotingBefore>("first", 1, notes));
  NamedNoting scope("scope", notes);
  {
    const EveryOperatorScope opened(scope);
    (void)x.neg();
  }

  EXPECT_EQ(notes, (std::vector<std::string>{"first", "second", "scope", "plain"}));
}

// Carries an operator out on another tensor.
class StandsFor : public Interceptor, public BeforeScopes {
 public:
  explicit StandsFor(at::Tensor value) : value_(std::move(value)) {}
  Level level() const override { return Level::kEveryOperator; }
  int order() const noexcept override { return 0; }
  bool intercept(const c10::OperatorHandle& op, Stack& stack) override {
    stack.back() = value_;
    op.callBoxed(stack);
    return true;
  }

 private:
  at::Tensor value_;
};

TEST(BeforeScopes, LetScopesSeeTheOperatorsThatTheyCall) {
  std::vector<std::string> notes;
  StandsFor stands(at::full({3}, 2.0));
  const SharedInterceptor shared(stands);
  const at::Tensor a(c10::make_intrusive<c10::TensorImpl>(c10::DispatchKeySet(), at::ones({3}).dtype(), at::kCPU));
  const at::Tensor b(c10::make_intrusive<c10::TensorImpl>(c10::DispatchKeySet(), at::ones({3}).dtype(), at::kCPU));
  shared.mark(a);
  shared.mark(b);
  NamedNoting scope("scope", notes);
  const EveryOperatorScope opened(scope);

  EXPECT_TRUE(a.neg().equal(at::full({3}, -2.0)));
  EXPECT_TRUE(b.neg().equal(at::full({3}, -2.0)));
  EXPECT_EQ(notes, (std::vector<std::string>{"scope", "scope"}));
}

}  // namespace
}  // namespace hasten::interception
