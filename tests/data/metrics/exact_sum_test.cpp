#include "data/metrics/exact_sum.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <limits>
#include <random>
#include <vector>

namespace hasten::data::detail {
namespace {

double sum_of(const std::vector<double>& values) {
  ExactSum sum;
  for (const double value : values) sum.add(value);
  return sum.value();
}

TEST(ExactSum, OneNumberIsItself) {
  using Limits = std::numeric_limits<double>;
  for (const double value : {0.0, 1.0, -1.0, 0.1, 1e300, -3e-300, Limits::max(), -Limits::max(), Limits::min(),
                             Limits::denorm_min(), -7 * Limits::denorm_min(), 4503599627370497.0}) {
    EXPECT_EQ(sum_of({value}), value);
  }
}

TEST(ExactSum, NothingIsLostBesideLargeNumbers) {
  EXPECT_EQ(sum_of({1e100, 1.0, -1e100}), 1.0);
  EXPECT_EQ(sum_of({0.1, 0.2, -0.3}), 0x1p-55) << "the three doubles' true sum";
  EXPECT_EQ(sum_of(std::vector<double>(10, 0.1)), 1.0) << "rounded once";
  EXPECT_EQ(sum_of({1e308, 1e308, -1e308, -1e308, 5e-324}), 5e-324);
}

TEST(ExactSum, RoundsToTheNearestAndTiesToTheEvenNeighbour) {
  const double one = 1.0, half_a_step = 0x1p-53;
  EXPECT_EQ(sum_of({one, half_a_step}), one);
  EXPECT_EQ(sum_of({one, half_a_step, 5e-324}), one + 0x1p-52);
  EXPECT_EQ(sum_of({one + 0x1p-52, half_a_step}), one + 0x1p-51);
  EXPECT_EQ(sum_of({-one, -half_a_step, -5e-324}), -one - 0x1p-52);
}

TEST(ExactSum, NeitherTheOrderNorThePartsMatter) {
  const uint64_t seed = 7;
  std::mt19937_64 random(seed);
  std::normal_distribution<double> normal;
  std::vector<double> values;
  for (int i = 0; i < 2000; ++i) values.push_back(std::ldexp(normal(random), static_cast<int>(random() % 200) - 100));
  const double whole = sum_of(values);

  std::shuffle(values.begin(), values.end(), random);
  std::vector<ExactSum> parts(7);
  for (size_t i = 0; i < values.size(); ++i) parts[i * i % 7].add(values[i]);
  ExactSum::Words total = {};
  for (const auto& part : parts) {
    const auto words = part.words();
    for (size_t i = 0; i < words.size(); ++i) total[i] += words[i];
  }

  EXPECT_EQ(sum_of(values), whole) << "seed " << seed;
  EXPECT_EQ(ExactSum::of(total).value(), whole) << "seed " << seed;
}

TEST(ExactSum, WhatIsNotFiniteStaysSo) {
  const double infinity = std::numeric_limits<double>::infinity();
  EXPECT_EQ(sum_of({1.0, infinity, -5.0}), infinity);
  EXPECT_EQ(sum_of({1.0, -infinity}), -infinity);
  EXPECT_TRUE(std::isnan(sum_of({infinity, -infinity})));
  EXPECT_TRUE(std::isnan(sum_of({std::nan(""), 1.0})));
  EXPECT_EQ(sum_of({1e308, 1e308}), infinity) << "beyond the largest double";
}

}  // namespace
}  // namespace hasten::data::detail
