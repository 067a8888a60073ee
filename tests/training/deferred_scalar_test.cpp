#include "hasten/training/deferred_scalar.h"

#include <ATen/Functions.h>
#include <gtest/gtest.h>

namespace hasten::tracking {
namespace {

TEST(DeferredScalar, TensorsOfOneElementAreNumbersOfTheirKind) {
  const Values values = {{"loss", at::full({}, 0.5)},
                         {"half", at::full({1, 1}, 0.25, at::kHalf)},
                         {"count", at::full({}, 7, at::kLong)},
                         {"flag", at::ones({}, at::kBool)},
                         {"grad", at::full({}, 2.0).requires_grad_()}};

  EXPECT_EQ(values[0].second.as_number(), 0.5);
  EXPECT_EQ(values[1].second.as_number(), 0.25);
  EXPECT_EQ(values[2].second.as_int(), 7);
  EXPECT_EQ(values[3].second.kind(), Value::Kind::kBool);
  EXPECT_EQ(values[4].second.as_number(), 2.0);
}

TEST(DeferredScalar, OtherTensorsAreInvalidValuesThatSayTheirShape) {
  const Value several = at::zeros({2, 3});

  EXPECT_EQ(several.kind(), Value::Kind::kInvalid);
  EXPECT_EQ(several.what_is_wrong(), "a tensor of shape [2, 3] and type Float");
  EXPECT_EQ(Value(at::Tensor()).kind(), Value::Kind::kInvalid);
}

}  // namespace
}  // namespace hasten::tracking
