// Metrics from all predictions: areas under curves and rank correlation. See metrics.h.
#include <ATen/ATen.h>

#include <algorithm>
#include <cmath>
#include <limits>
#include <numeric>
#include <vector>

#include "hasten/core/error.h"
#include "hasten/learner/metrics.h"

namespace hasten::learner {
namespace {

constexpr double kNanRank = std::numeric_limits<double>::quiet_NaN();

std::vector<double> doubles(const at::Tensor& tensor) {
  const auto flat = tensor.reshape({-1}).to(at::kDouble).contiguous();
  return {flat.const_data_ptr<double>(), flat.const_data_ptr<double>() + flat.numel()};
}

/// Whether the values have an order, which a NaN is not part of. Throws: UsageError for another number of targets.
bool can_be_ranked(const std::vector<double>& values, size_t num_targets) {
  if (values.size() != num_targets) {
    throw UsageError(Origin{"learner"}, "a metric of ", values.size(), " predictions with ", num_targets,
                     " targets; expected a target for each prediction.");
  }
  return std::none_of(values.begin(), values.end(), [](double value) { return std::isnan(value); });
}

std::vector<size_t> ascending(const std::vector<double>& values) {
  std::vector<size_t> order(values.size());
  std::iota(order.begin(), order.end(), size_t{0});
  std::sort(order.begin(), order.end(), [&](size_t a, size_t b) { return values[a] < values[b]; });
  return order;
}

/// Ranks from 1; equal values share the mean of theirs.
std::vector<double> mean_ranks(const std::vector<double>& values) {
  const auto order = ascending(values);
  std::vector<double> ranks(values.size());
  for (size_t i = 0; i < order.size();) {
    size_t end = i;
    while (end < order.size() && values[order[end]] == values[order[i]]) ++end;
    for (size_t k = i; k < end; ++k) ranks[order[k]] = static_cast<double>(i + end + 1) / 2;
    i = end;
  }
  return ranks;
}

/// Returns the probability that a positive scores above a negative; ties half. NaN if one of them does not occur, or a
/// score is NaN.
double area(const std::vector<double>& scores, const std::vector<bool>& positive) {
  if (!can_be_ranked(scores, positive.size())) return kNanRank;
  const auto ranks = mean_ranks(scores);
  double sum = 0, positives = 0;
  for (size_t i = 0; i < scores.size(); ++i) {
    if (!positive[i]) continue;
    sum += ranks[i];
    ++positives;
  }
  const double negatives = static_cast<double>(scores.size()) - positives;
  if (positives == 0 || negatives == 0) return kNanRank;
  return (sum - positives * (positives + 1) / 2) / (positives * negatives);
}

double average_precision(const std::vector<double>& scores, const std::vector<bool>& positive) {
  if (!can_be_ranked(scores, positive.size())) return kNanRank;
  auto order = ascending(scores);
  std::reverse(order.begin(), order.end());
  const auto total = static_cast<double>(std::count(positive.begin(), positive.end(), true));
  if (total == 0) return 0;
  double hits = 0, seen = 0, before = 0, sum = 0;
  for (size_t i = 0; i < order.size();) {
    const double threshold = scores[order[i]];
    for (; i < order.size() && scores[order[i]] == threshold; ++i) {
      ++seen;
      hits += positive[order[i]] ? 1 : 0;
    }
    sum += (hits - before) / total * (hits / seen);
    before = hits;
  }
  return sum;
}

std::vector<bool> equal_to(const at::Tensor& targets, int64_t label) {
  const auto flat = doubles(targets);
  std::vector<bool> result(flat.size());
  for (size_t i = 0; i < flat.size(); ++i) result[i] = flat[i] == static_cast<double>(label);
  return result;
}

double one_against_rest(const at::Tensor& scores, const at::Tensor& targets) {
  double sum = 0;
  for (int64_t c = 0; c < scores.size(1); ++c) sum += area(doubles(scores.select(1, c)), equal_to(targets, c));
  return sum / static_cast<double>(scores.size(1));
}

double one_against_one(const at::Tensor& scores, const at::Tensor& targets) {
  double sum = 0, pairs = 0;
  const auto flat = targets.reshape({-1});
  for (int64_t a = 0; a < scores.size(1); ++a) {
    for (int64_t b = a + 1; b < scores.size(1); ++b) {
      const auto rows = ((flat == a) | (flat == b)).nonzero().reshape({-1});
      const auto own = scores.index_select(0, rows);
      const auto labels = flat.index_select(0, rows);
      sum += (area(doubles(own.select(1, a)), equal_to(labels, a)) +
              area(doubles(own.select(1, b)), equal_to(labels, b))) /
             2;
      ++pairs;
    }
  }
  return sum / pairs;
}

using Curve = double (*)(const std::vector<double>&, const std::vector<bool>&);

double over_labels(const at::Tensor& scores, const at::Tensor& targets, Curve curve) {
  double sum = 0;
  for (int64_t i = 0; i < scores.size(1); ++i)
    sum += curve(doubles(scores.select(1, i)), equal_to(targets.select(1, i), 1));
  return sum / static_cast<double>(scores.size(1));
}

std::function<at::Tensor(const at::Tensor&)> positive_softmax(int64_t axis) {
  return [axis](const at::Tensor& p) { return at::softmax(p, axis).select(axis, -1); };
}
std::function<at::Tensor(const at::Tensor&)> maybe_sigmoid(bool sigmoid) {
  return [sigmoid](const at::Tensor& p) { return sigmoid ? p.sigmoid() : p; };
}

}  // namespace

Metric roc_auc(MultiClass multi_class, int64_t axis) {
  return accum_metric(
      "roc_auc_score",
      [=](const at::Tensor& p, const at::Tensor& t) {
        const auto scores = axis == 1 || axis == -1 ? p : p.movedim(axis, 1);
        return multi_class == MultiClass::kOvr ? one_against_rest(scores, t) : one_against_one(scores, t);
      },
      [axis](const at::Tensor& p) { return at::softmax(p, axis); });
}
Metric roc_auc_binary(int64_t axis) {
  return accum_metric(
      "roc_auc_score", [](const at::Tensor& p, const at::Tensor& t) { return area(doubles(p), equal_to(t, 1)); },
      positive_softmax(axis));
}
Metric roc_auc_multi(bool sigmoid) {
  return accum_metric(
      "roc_auc_score", [](const at::Tensor& p, const at::Tensor& t) { return over_labels(p, t, area); },
      maybe_sigmoid(sigmoid));
}
Metric ap_score_binary(int64_t axis) {
  return accum_metric(
      "average_precision_score",
      [](const at::Tensor& p, const at::Tensor& t) { return average_precision(doubles(p), equal_to(t, 1)); },
      positive_softmax(axis));
}
Metric ap_score_multi(bool sigmoid) {
  return accum_metric(
      "average_precision_score",
      [](const at::Tensor& p, const at::Tensor& t) { return over_labels(p, t, average_precision); },
      maybe_sigmoid(sigmoid));
}

Metric spearman_corr_coef() {
  return accum_metric("spearmanr", [](const at::Tensor& p, const at::Tensor& t) {
    const auto predictions = doubles(p), targets = doubles(t);
    if (!can_be_ranked(predictions, targets.size()) || !can_be_ranked(targets, targets.size())) return kNanRank;
    const auto x = mean_ranks(predictions), y = mean_ranks(targets);
    const auto n = static_cast<double>(x.size());
    const double mean = (n + 1) / 2;
    double xy = 0, xx = 0, yy = 0;
    for (size_t i = 0; i < x.size(); ++i) {
      xy += (x[i] - mean) * (y[i] - mean);
      xx += (x[i] - mean) * (x[i] - mean);
      yy += (y[i] - mean) * (y[i] - mean);
    }
    return xx > 0 && yy > 0 ? xy / std::sqrt(xx * yy) : kNanRank;
  });
}

}  // namespace hasten::learner
