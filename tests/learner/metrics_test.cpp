// Metrics of predictions and targets that no value follows from: NaN, classes that are not there, other numbers. The
// values themselves are in the golden cases.
#include "hasten/learner/metrics.h"

#include <ATen/ATen.h>
#include <gtest/gtest.h>

#include <cmath>

#include "hasten/core/error.h"
#include "support/folder.h"

namespace hasten::learner {
namespace {

using hasten::testing::words_of;

double value_of(const Metric& metric, const at::Tensor& predictions, const at::Tensor& targets) {
  metric.reset();
  metric.accumulate({.prediction = predictions, .target = targets, .loss = at::zeros({}), .size = targets.size(0)});
  return metric.value();
}

TEST(Metrics, OfRanksAreNanForPredictionsWithANan) {
  auto two = at::rand({6, 2});
  two[3][1] = NAN;
  const auto classes = at::tensor({0, 1, 0, 1, 1, 0}), labels = at::stack({classes, 1 - classes}, 1);

  for (const auto& metric : {roc_auc(), roc_auc(MultiClass::kOvo), roc_auc_binary(), ap_score_binary()})
    EXPECT_TRUE(std::isnan(value_of(metric, two, classes))) << metric.name();
  for (const auto& metric : {roc_auc_multi(), ap_score_multi()})
    EXPECT_TRUE(std::isnan(value_of(metric, two, labels))) << metric.name();
  EXPECT_TRUE(std::isnan(value_of(spearman_corr_coef(), two.select(1, 1), at::rand({6}))));
  EXPECT_TRUE(std::isnan(value_of(spearman_corr_coef(), at::rand({6}), two.select(1, 1))));
  EXPECT_FALSE(std::isnan(value_of(roc_auc_binary(), at::rand({6, 2}), classes)));
}

TEST(Metrics, OfRanksRefuseAnotherNumberOfTargets) {
  const auto words = words_of<UsageError>([] { value_of(spearman_corr_coef(), at::rand({6}), at::rand({4})); });

  EXPECT_NE(words.find("6 predictions with 4 targets"), std::string::npos) << words;
}

TEST(Metrics, OfClassesRefuseTargetsThatAreNone) {
  const auto predictions = at::rand({4, 3});
  for (const auto& metric : {f1_score(), cohen_kappa(), matthews_corr_coef(), dice_multi(), balanced_accuracy()}) {
    for (const int64_t wrong : {-1, 3, 200}) {
      const auto words = words_of<UsageError>([&] {
        value_of(metric, predictions, at::tensor({0, 1, 2, int(wrong)}));
      });

      EXPECT_NE(words.find("predictions with 3 classes; expected 0 to 2"), std::string::npos)
          << metric.name() << ": " << words;
    }
    EXPECT_TRUE(std::isfinite(value_of(metric, predictions, at::tensor({0, 1, 2, 2})))) << metric.name();
  }
}

}  // namespace
}  // namespace hasten::learner
