#include "hasten/tracking/journal/value.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cmath>

#include "hasten/core/error.h"

namespace hasten::tracking {
namespace {

using ::testing::ElementsAre;

std::vector<std::string> keys_of(const Values& values) {
  std::vector<std::string> keys;
  for (const auto& [key, value] : values) keys.push_back(key);
  return keys;
}

TEST(TrackingValue, BracesMakeNumbersTextsAndGroups) {
  const Values values = {
      {"loss", 0.5}, {"epoch", 3}, {"amp", true}, {"note", "hi"}, {"Loss", {{"train", 1.0}, {"val", {{"a", 2}}}}}};

  EXPECT_EQ(values[0].second.kind(), Value::Kind::kDouble);
  EXPECT_EQ(values[1].second.as_int(), 3);
  EXPECT_EQ(values[2].second.as_number(), 1.0);
  EXPECT_EQ(values[3].second.as_string(), "hi");
  EXPECT_THAT(keys_of(flatten(values)), ElementsAre("loss", "epoch", "amp", "note", "Loss/train", "Loss/val/a"));
}

TEST(TrackingConfig, NestedBracesAreMapsAndLists) {
  const Config config = {{"lr", 5e-3}, {"betas", {0.9, 0.95}}, {"optimizer", {{"name", "adam"}, {"amsgrad", false}}}};
  const Config tags = {{"wandb", {{"tags", {"baseline"}}, {"mode", "offline"}}}};

  EXPECT_EQ(config.value().to_json(), R"({"lr":0.005,"betas":[0.9,0.95],"optimizer":{"name":"adam","amsgrad":false}})");
  EXPECT_EQ(tags.value().to_json(), R"({"wandb":{"tags":["baseline"],"mode":"offline"}})");
  const auto leaves = flatten(config.value());
  ASSERT_EQ(leaves.size(), 5u);
  EXPECT_EQ(leaves[2].first, "betas/1");
  EXPECT_EQ(leaves[3].first, "optimizer/name");
}

TEST(TrackingImages, WrongSizesAreRefused) {
  EXPECT_THROW(Images(Image{2, 2, 3, std::vector<uint8_t>(11)}), UsageError);
  EXPECT_THROW(Images(Image{2, 2, 2, std::vector<uint8_t>(8)}), UsageError);
  EXPECT_EQ(Images(Image{2, 2, 1, std::vector<uint8_t>(4)}).pending()->num_bytes(), 4);
}

TEST(TrackingHistogram, CountsEveryFiniteValueOnceBetweenTrimmedLimits) {
  const std::vector<double> values = {-1.0, 0.0, 0.5, 0.5, 3.0, NAN, INFINITY};

  const Histogram h = histogram(values.data(), values.size());

  EXPECT_EQ(h.num, 5);
  EXPECT_EQ(h.min, -1.0);
  EXPECT_EQ(h.max, 3.0);
  EXPECT_EQ(h.sum, 3.0);
  EXPECT_EQ(h.sum_squares, 10.5);
  double counted = 0;
  for (const double count : h.counts) counted += count;
  EXPECT_EQ(counted, 5);
  EXPECT_EQ(h.counts.size(), h.limits.size());
  EXPECT_EQ(h.counts.front(), 0);
  EXPECT_EQ(h.counts.back(), 1);
  EXPECT_TRUE(std::is_sorted(h.limits.begin(), h.limits.end()));
  const double nan = NAN;
  EXPECT_EQ(histogram(&nan, 1).num, 0);
  EXPECT_EQ(histogram(nullptr, 0).num, 0);
}

}  // namespace
}  // namespace hasten::tracking
