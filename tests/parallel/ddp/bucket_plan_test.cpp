#include "hasten/parallel/ddp/bucket_plan.h"

#include <gtest/gtest.h>

#include <random>
#include <set>

#include "hasten/core/error.h"

namespace hasten::parallel {
namespace {

ParameterInfo parameter(int64_t bytes, c10::ScalarType dtype = c10::ScalarType::Float) {
  return {"p", bytes / 4, bytes, dtype, c10::Device(c10::kCPU)};
}

TEST(BucketPlan, FillsFromTheLastParameterToTheFirst) {
  const auto plan = plan_buckets({parameter(8), parameter(8), parameter(8)}, {.first_bytes = 100, .bytes = 100});

  EXPECT_EQ(plan, (BucketPlan{{2, 1, 0}}));
}

TEST(BucketPlan, TheFirstBucketIsSmall) {
  const auto plan =
      plan_buckets({parameter(8), parameter(8), parameter(8), parameter(8)}, {.first_bytes = 8, .bytes = 24});

  EXPECT_EQ(plan, (BucketPlan{{3}, {2, 1, 0}}));
}

TEST(BucketPlan, DtypesDoNotMix) {
  const auto plan = plan_buckets({parameter(8), parameter(8, c10::ScalarType::Half), parameter(8)});

  EXPECT_EQ(plan.size(), 2u);
}

TEST(BucketPlan, NoParametersGiveNoBuckets) {
  EXPECT_TRUE(plan_buckets({}).empty());
}

TEST(BucketPlan, LimitsBelowOneAreRefused) {
  EXPECT_THROW(plan_buckets({parameter(8)}, {.first_bytes = 0, .bytes = 1}), UsageError);
}

TEST(BucketPlan, EveryParameterIsInExactlyOneBucketWhateverTheSizes) {
  std::mt19937 generator(5);
  const auto random = [&](int64_t below) { return static_cast<int64_t>(generator() % below); };
  for (int round = 0; round < 200; ++round) {
    std::vector<ParameterInfo> parameters;
    for (int64_t i = random(30); i > 0; --i) {
      parameters.push_back(parameter(4 * random(50), random(3) ? c10::ScalarType::Float : c10::ScalarType::Half));
    }
    const auto plan = plan_buckets(parameters, {.first_bytes = 1 + random(50), .bytes = 1 + random(200)});

    std::multiset<size_t> seen;
    for (const auto& bucket : plan) {
      EXPECT_FALSE(bucket.empty());
      for (const size_t index : bucket) {
        seen.insert(index);
        EXPECT_EQ(parameters[index].dtype, parameters[bucket.front()].dtype);
      }
    }
    EXPECT_EQ(seen.size(), parameters.size());
    EXPECT_EQ(std::set<size_t>(seen.begin(), seen.end()).size(), parameters.size());
  }
}

}  // namespace
}  // namespace hasten::parallel
