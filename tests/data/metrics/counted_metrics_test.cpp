#include "hasten/data/metrics/counted_metrics.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <torch/types.h>

#include <cmath>

#include "hasten/core/error.h"

namespace hasten::data {
namespace {

using at::Tensor;
using ::testing::HasSubstr;
using ::testing::ThrowsMessage;

const Tensor kScores = torch::tensor({{0.1, 0.7, 0.2}, {0.5, 0.3, 0.2}, {0.2, 0.3, 0.5}, {0.4, 0.35, 0.25}});
const Tensor kTargets = torch::tensor({1, 0, 1, 1});

double accuracy(const AccuracyOptions& options, const Tensor& scores, const Tensor& targets) {
  Accuracy metric(options);
  metric.update(scores, targets);
  return metric.compute();
}

TEST(Accuracy, CountsSamplesWhoseClassIsAmongTheHighestScores) {
  EXPECT_EQ(accuracy({}, kScores, kTargets), 0.5);
  EXPECT_EQ(accuracy({.top_k = 2}, kScores, kTargets), 1.0);
  EXPECT_EQ(accuracy({}, kScores.argmax(1), kTargets), 0.5) << "classes instead of scores";
  EXPECT_EQ(accuracy({.ignore_index = 0}, kScores, kTargets), 1.0 / 3);
}

TEST(Accuracy, OfPixelsIsCountedPixelByPixel) {
  const Tensor images = torch::stack({kScores.t(), kScores.t()});  // [2, classes, 4]

  EXPECT_EQ(accuracy({}, images, torch::stack({kTargets, torch::zeros({4}, at::kLong)})), 0.5);
}

TEST(Accuracy, BeginsAnewAfterResetAndIsNanWithoutSamples) {
  Accuracy metric;
  metric.update(kScores, kTargets);
  metric.reset();

  EXPECT_TRUE(std::isnan(metric.compute()));
}

TEST(Accuracy, ShapesThatDoNotFitAreRefusedWithBoth) {
  EXPECT_THAT(
      [] {
        accuracy({}, kScores, torch::tensor({1, 0}));
      },
      ThrowsMessage<UsageError>(HasSubstr("predictions of shape [4, 3] with targets of shape [2]")));
  EXPECT_THAT([] { accuracy({.top_k = 4}, kScores, kTargets); },
              ThrowsMessage<UsageError>(HasSubstr("top_k = 4, but there are scores of 3 classes")));
  EXPECT_THROW(Accuracy({.top_k = 0}), UsageError);
}

TEST(Mean, WeighsEachValue) {
  Mean mean;
  mean.update(torch::tensor({1.0, 2.0}));
  mean.update(5.0, 2.0);
  mean.update(std::nan(""), 0.0);

  EXPECT_EQ(mean.compute(), 13.0 / 4);
  mean.reset();
  EXPECT_TRUE(std::isnan(mean.compute()));
  EXPECT_THAT([&] { mean.update(1.0, -1.0); }, ThrowsMessage<UsageError>(HasSubstr("weight = -1")));
}

TEST(Mean, IsRoundedOnceAtTheEnd) {
  Mean mean;
  for (const double value : {1e100, 3.0, -1e100}) mean.update(value);
  EXPECT_EQ(mean.compute(), 1.0);

  Mean weighted;  // 0.1 * 3 and 0.3 * -1 as exact products: their sum is not 0
  weighted.update(0.1, 3.0);
  weighted.update(-0.3, 1.0);
  EXPECT_EQ(weighted.compute(), 0x1p-55 / 4);
}

// Three classes, of which the last neither occurs nor is predicted; counts as in a textbook.
Confusion confusion() {
  ConfusionMatrix matrix({.num_classes = 3, .ignore_index = 255});
  matrix.update(torch::tensor({0, 0, 1, 1, 1, 0}), torch::tensor({0, 1, 1, 1, 0, 255}));
  return matrix.compute();
}

TEST(ConfusionMatrix, CountsPairsOfClassAndPrediction) {
  EXPECT_TRUE(torch::equal(confusion().counts, torch::tensor({{1, 1, 0}, {1, 2, 0}, {0, 0, 0}})));
  EXPECT_EQ(confusion().accuracy(), 0.6);
}

TEST(ConfusionMatrix, GivesIouDiceAndF1ByClassAndAsMeansOverThoseThatOccur) {
  const double nan = std::nan("");
  const auto close = [](const Tensor& given, const std::vector<double>& wanted) {
    return torch::allclose(given, torch::tensor(wanted, at::kDouble), 1e-15, 0, /*equal_nan=*/true);
  };
  const Confusion it = confusion();

  EXPECT_TRUE(close(it.iou(), {1.0 / 3, 0.5, nan})) << it.iou();
  EXPECT_TRUE(close(it.dice(), {0.5, 2.0 / 3, nan})) << it.dice();
  EXPECT_TRUE(close(it.precision(), {0.5, 2.0 / 3, nan})) << it.precision();
  EXPECT_TRUE(close(it.recall(), {0.5, 2.0 / 3, nan})) << it.recall();
  EXPECT_DOUBLE_EQ(it.mean_iou(), (1.0 / 3 + 0.5) / 2);
  EXPECT_DOUBLE_EQ(it.macro_f1(), (0.5 + 2.0 / 3) / 2);
}

TEST(ConfusionMatrix, TakesScoresOfPixels) {
  ConfusionMatrix matrix({.num_classes = 3});
  matrix.update(torch::stack({kScores.t(), kScores.t()}), torch::stack({kTargets, kTargets}));

  EXPECT_TRUE(torch::equal(matrix.compute().counts, torch::tensor({{2, 0, 0}, {2, 2, 2}, {0, 0, 0}})));
}

TEST(ConfusionMatrix, AClassOutsideIsNamed) {
  ConfusionMatrix matrix({.num_classes = 3});
  EXPECT_THAT([&] { matrix.update(torch::tensor({1}), torch::tensor({3})); },
              ThrowsMessage<UsageError>(HasSubstr("a target of class 3; expected 0 to 2")));
  EXPECT_THAT([&] { matrix.update(torch::tensor({-1}), torch::tensor({0})); },
              ThrowsMessage<UsageError>(HasSubstr("a prediction of class -1")));
  EXPECT_THROW(ConfusionMatrix({.num_classes = 0}), UsageError);
}

TEST(ConfusionMatrix, ACopyCountsByItself) {
  ConfusionMatrix matrix({.num_classes = 2});
  ConfusionMatrix copy = matrix;

  copy.update(torch::tensor({1}), torch::tensor({1}));

  EXPECT_EQ(matrix.compute().counts.sum().item<int64_t>(), 0);
  EXPECT_EQ(copy.compute().counts.sum().item<int64_t>(), 1);
}

}  // namespace
}  // namespace hasten::data
