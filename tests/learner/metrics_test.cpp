// Metrics and losses whose values are not in the golden cases, by hand; and those of predictions and targets that no
// value follows from: NaN, classes that are not there, other numbers.
#include "hasten/learner/metrics.h"

#include <ATen/ATen.h>
#include <gtest/gtest.h>

#include <cmath>

#include "hasten/core/error.h"
#include "hasten/learner/loss.h"
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

TEST(Metrics, OfOnesOwnAreMeansBySamples) {
  double part = 0;
  const auto difference =
      avg_metric("difference", [](const at::Tensor& p, const at::Tensor& t) { return (p - t).mean(); });
  const auto own = loss_metric("part", [&] { return at::scalar_tensor(part); });
  const auto largest = accum_metric(
      "largest", [](const at::Tensor& p, const at::Tensor& t) { return (p - t).max().item<double>(); },
      [](const at::Tensor& p) { return p.abs(); });
  const auto above = counted_metric(
      "above",
      [](const at::Tensor& p, const at::Tensor& t) {
        return at::stack({(p > t).sum(), t.ge(0).sum()});
      },
      [](const at::Tensor& counts) { return counts[0].item<double>() / counts[1].item<double>(); });
  const auto spread = mean_metric(
      "spread",
      [](const at::Tensor& p, const at::Tensor&) {
        return std::vector<at::Tensor>{p, p * p};
      },
      [](const std::vector<double>& m) { return m[1] - m[0] * m[0]; });
  const auto all = {difference, own, largest, above, spread};
  // Batches of three and of one.
  const auto p = at::tensor({1.0, 2.0, -6.0, 5.0}), t = at::tensor({0.0, 0.0, 1.0, 1.0});

  for (const auto& metric : all) metric.reset();
  for (const auto& [begin, end] : {std::pair{0, 3}, {3, 4}}) {
    part = begin == 0 ? 2.0 : 10.0;
    for (const auto& metric : all)
      metric.accumulate(
          {.prediction = p.slice(0, begin, end), .target = t.slice(0, begin, end), .loss = {}, .size = end - begin});
  }

  EXPECT_NEAR(difference.value(), ((1.0 + 2.0 - 7.0) + 4.0) / 4, 1e-12);
  EXPECT_DOUBLE_EQ(own.value(), (3 * 2.0 + 10.0) / 4);
  EXPECT_DOUBLE_EQ(largest.value(), 5.0);
  EXPECT_DOUBLE_EQ(above.value(), 3.0 / 4);
  EXPECT_DOUBLE_EQ(spread.value(), (1 + 4 + 36 + 25) / 4.0 - 0.25);
  EXPECT_EQ(above.named("share above").name(), "share above");
  EXPECT_EQ(above.name(), "above");
  for (const auto& metric : all) metric.reset();
  EXPECT_TRUE(std::isnan(difference.value()) && std::isnan(largest.value()) && std::isnan(above.value()));
}

/// One-hot scores of words.
at::Tensor scores_of(const at::Tensor& words) {
  return at::one_hot(words.to(at::kLong), 10).to(at::kFloat);
}

TEST(Metrics, BleuIsThePenaltyTimesTheMeanOfNGramPrecisions) {
  const auto bleu = [](const at::Tensor& given, const at::Tensor& wanted) {
    return value_of(corpus_bleu(10), scores_of(given), wanted);
  };
  const auto wanted = at::tensor({1, 2, 3, 4, 5}).unsqueeze(0);

  EXPECT_DOUBLE_EQ(bleu(wanted, wanted), 1.0);
  // 1 2 3 4 9: 4 of 5 words, 3 of 4 pairs, 2 of 3 triples, 1 of 2 fours.
  EXPECT_NEAR(bleu(at::tensor({1, 2, 3, 4, 9}).unsqueeze(0), wanted), std::pow(4.0 / 5 * 3 / 4 * 2 / 3 * 1 / 2, 0.25),
              1e-12);
  // Shorter by one: e^(1 - 5/4).
  EXPECT_NEAR(bleu(at::tensor({1, 2, 3, 4}).unsqueeze(0), wanted), std::exp(1 - 5.0 / 4), 1e-12);
  // No pair, triple or four: 1/2, 1/4 and 1/8 of a hit.
  EXPECT_NEAR(bleu(at::tensor({5, 4, 3, 2, 1}).unsqueeze(0), wanted),
              std::pow(5.0 / 5 * (1.0 / 2) / 4 * (1.0 / 4) / 3 * (1.0 / 8) / 2, 0.25), 1e-12);
}

TEST(Metrics, PerplexityIsOfTheMeanLossOfAllSamples) {
  const auto metric = perplexity();
  const auto t = at::zeros({3}, at::kLong);

  metric.accumulate({.prediction = at::zeros({3, 2}), .target = t, .loss = at::scalar_tensor(1.0), .size = 3});
  metric.accumulate(
      {.prediction = at::zeros({1, 2}), .target = t.slice(0, 0, 1), .loss = at::scalar_tensor(3.0), .size = 1});

  EXPECT_NEAR(metric.value(), std::exp(1.5), 1e-12);
}

TEST(Losses, OfClassesWeighAndLeaveOutAsAsked) {
  const auto p = at::sin(at::arange(12).reshape({4, 3}).to(at::kFloat)), weight = at::tensor({1.0F, 2.0F, 0.5F});
  const auto t = at::tensor({0, 2, 1, 0}), partly = at::tensor({0, 255, 1, 0}).to(at::kLong);
  const auto log_p = at::log_softmax(p, 1);
  const auto nll = [&](int64_t row, int64_t target) { return -log_p[row][target].item<double>(); };

  const auto weighted = cross_entropy({.weight = weight})(p, t).item<double>();
  const auto ignoring = cross_entropy({.ignore_index = 255})(p, partly).item<double>();
  const auto summed = cross_entropy({.reduction = Reduction::kSum})(p, t).item<double>();
  const auto focused = focal(3.0, {.reduction = Reduction::kNone})(p, t);

  EXPECT_NEAR(weighted, (nll(0, 0) + 0.5 * nll(1, 2) + 2 * nll(2, 1) + nll(3, 0)) / 4.5, 1e-6);
  EXPECT_NEAR(ignoring, (nll(0, 0) + nll(2, 1) + nll(3, 0)) / 3, 1e-6);
  EXPECT_NEAR(summed, nll(0, 0) + nll(1, 2) + nll(2, 1) + nll(3, 0), 1e-5);
  EXPECT_NEAR(focused[1].item<double>(), std::pow(1 - std::exp(-nll(1, 2)), 3) * nll(1, 2), 1e-6);
  const auto smoothed = label_smoothing(0.3, {.reduction = Reduction::kSum})(p, t).item<double>();
  EXPECT_NEAR(smoothed, 0.7 * summed + 0.3 / 3 * -log_p.sum().item<double>(), 1e-5);
}

TEST(Losses, OfTwoClassesWeighPositivesAndDecodeByTheThreshold) {
  const auto p = at::tensor({-1.0F, 0.5F, 2.0F}), t = at::tensor({0, 1, 1});
  const auto sigmoid = [](double x) { return 1 / (1 + std::exp(-x)); };

  const auto loss = bce_with_logits({.pos_weight = at::tensor({3.0F}), .thresh = 0.7, .reduction = Reduction::kSum});

  EXPECT_NEAR(loss(p, t).item<double>(),
              -std::log(1 - sigmoid(-1)) - 3 * std::log(sigmoid(0.5)) - 3 * std::log(sigmoid(2)), 1e-5);
  EXPECT_TRUE(loss.decodes(loss.activation(p)).equal(p > 1));
  EXPECT_TRUE(bce().decodes(at::tensor({0.4F, 0.6F})).equal(at::tensor({0, 1}) > 0));
}

TEST(Losses, BceDiceIsBothOverTheWholeBatch) {
  const auto p = at::cos(at::arange(16).to(at::kFloat)).reshape({2, 1, 2, 4}), t = (p > 0.3).to(at::kLong).flip(3);
  const auto s = p.to(at::kDouble).sigmoid(), y = t.to(at::kDouble);
  const auto bce_part = -(y * s.log() + (1 - y) * (1 - s).log()).mean().item<double>();
  const auto dice_part =
      1 - (2 * (s * y).sum().item<double>() + 1e-6) / (s.sum().item<double>() + y.sum().item<double>() + 1e-6);

  const auto loss = bce_dice();

  EXPECT_NEAR(loss(p, t).item<double>(), bce_part + dice_part, 1e-5);
  EXPECT_TRUE(loss.decodes(loss.activation(p)).equal(p > 0));
}

TEST(Losses, MadeFromAFunctionSayWhatTheyCannotDo) {
  const Loss loss = [](const at::Tensor& p, const at::Tensor& t) { return (p - t).abs().mean(); };

  EXPECT_EQ(loss(at::ones({3}), at::zeros({3})).item<double>(), 1.0);
  const auto words = words_of<UsageError>([&] { loss.compute(at::ones({3}), at::zeros({3}), Reduction::kNone); });
  EXPECT_NE(words.find("gives one number, where a value for each sample is needed"), std::string::npos) << words;
}

}  // namespace
}  // namespace hasten::learner
