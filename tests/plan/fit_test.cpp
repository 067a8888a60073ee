// Fits give back the constants that made the points, and name points that do not fit.
#include "hasten/plan/fit.h"

#include <gmock/gmock.h>

#include "hasten/core/error.h"

namespace hasten::plan {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;

ProductPoint product(double m, double k, double n, double factor = 1) {
  return {m, k, n, factor * 2 * m * k * n / 4e10 * (1 + 37 * (1 / m + 1 / k + 1 / n))};
}

TEST(Fit, products_give_rate_and_cost_of_small_sizes) {
  const ProductFit fit =
      fit_products({product(64, 64, 64), product(256, 512, 128), product(1024, 1024, 1024), product(32, 4096, 4096)});
  EXPECT_NEAR(fit.flops, 4e10, 1e4);
  EXPECT_NEAR(fit.small_size_cost, 37, 1e-4);
  EXPECT_NEAR(fit.residual, 0, 1e-9);
  EXPECT_TRUE(fit.missed.empty());
}

TEST(Fit, a_point_that_is_far_off_is_named) {
  const ProductFit fit = fit_products({product(64, 64, 64), product(256, 256, 256), product(512, 512, 512),
                                       product(1024, 1024, 1024), product(2048, 2048, 2048, 2)});
  ASSERT_FALSE(fit.missed.empty());
  EXPECT_THAT(fit.missed.back(), HasSubstr("2048 x 2048 x 2048: "));
  EXPECT_GT(fit.residual, 0.1);
}

TEST(Fit, transfers_give_bandwidth_and_latency) {
  const auto at = [](double bytes) { return TransferPoint{bytes, 2e-6 + bytes / 5e9}; };
  const TransferFit fit = fit_transfers({at(1 << 10), at(1 << 16), at(1 << 24)});
  EXPECT_NEAR(fit.bandwidth, 5e9, 1e3);
  EXPECT_NEAR(fit.latency_s, 2e-6, 1e-12);
}

TEST(Fit, no_constant_is_negative) {
  // Larger transfers are faster a byte than the line allows: no latency below 0 comes of it.
  const TransferFit fit = fit_transfers({{1e3, 1e-7}, {1e6, 2e-4}});
  EXPECT_GE(fit.latency_s, 0);
  EXPECT_GT(fit.bandwidth, 0);
  // All points take the same time: the rate is the fastest point's.
  EXPECT_GT(fit_transfers({{1e3, 1e-3}, {1e6, 1e-3}, {2e6, 1e-3}}).bandwidth, 0);
}

TEST(Fit, too_few_points_are_refused) {
  EXPECT_THROW(fit_products({product(8, 8, 8)}), UsageError);
  EXPECT_THROW(fit_transfers({{1, 1}, {0, 1}}), UsageError);
}

}  // namespace
}  // namespace hasten::plan
