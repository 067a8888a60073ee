// Digests of tensors, and hashes of their bytes.
#include "hasten/training/tensor_digest.h"

#include <ATen/ATen.h>
#include <gtest/gtest.h>

namespace hasten::training {
namespace {

TEST(TensorDigest, IsLinearInItsProductsAndHasTheNorm) {
  const at::Tensor a = at::arange(100, at::kFloat), b = at::ones({100}, at::kFloat);

  const auto of_a = digest_of(a, "w"), of_b = digest_of(b, "w"), of_sum = digest_of(2 * a + b, "w");

  EXPECT_NEAR(of_a[0], a.norm().item<double>(), 1e-3);
  for (size_t i = 1; i < of_sum.size(); ++i) EXPECT_DOUBLE_EQ(of_sum[i], 2 * of_a[i] + of_b[i]);
}

TEST(TensorDigest, SeesTheSignOfOneElementAndDependsOnTheName) {
  const at::Tensor a = at::ones({4, 25}, at::kFloat);
  at::Tensor b = a.clone();
  b[3][7] = -1.0;

  EXPECT_EQ(digest_of(a, "w")[0], digest_of(b, "w")[0]);
  EXPECT_NE(digest_of(a, "w"), digest_of(b, "w"));
  EXPECT_NE(digest_of(a, "w"), digest_of(a, "v"));
}

TEST(TensorDigest, TakesOtherDtypesLayoutsAndUndefinedTensors) {
  const at::Tensor a = at::ones({6}, at::kFloat);

  EXPECT_EQ(digest_of(a, "w"), digest_of(a.to(at::kBFloat16), "w"));
  EXPECT_EQ(digest_of(a, "w"), digest_of(a.to(at::kLong), "w"));
  EXPECT_EQ(digest_of(a, "w"), digest_of(a.to_sparse(), "w"));
  EXPECT_EQ(digest_of(at::Tensor(), "w"), TensorDigest{});
}

TEST(TensorHash, DependsOnValuesSizesAndDtype) {
  const at::Tensor a = at::zeros({2, 3}, at::kFloat);

  EXPECT_EQ(add_to_hash(1, a), add_to_hash(1, a.clone()));
  EXPECT_NE(add_to_hash(1, a), add_to_hash(1, a.view({3, 2})));
  EXPECT_NE(add_to_hash(1, a), add_to_hash(1, a.view(at::kInt)));
  EXPECT_NE(add_to_hash(1, a), add_to_hash(1, a + 1));
  EXPECT_NE(add_to_hash(1, a), add_to_hash(2, a));
}

}  // namespace
}  // namespace hasten::training
