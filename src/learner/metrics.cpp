// See metrics.h: metrics from counts and from means. ranking_metrics.cpp has those from all predictions.
#include "hasten/learner/metrics.h"

#include <ATen/ATen.h>

#include <cmath>
#include <limits>
#include <map>

#include "hasten/core/error.h"

namespace hasten::learner {
namespace {

constexpr double kUndefined = std::numeric_limits<double>::quiet_NaN();

double ratio(double part, double whole, double otherwise = 0) {
  return whole != 0 ? part / whole : otherwise;
}

at::Tensor one_row(const at::Tensor& values) {
  return values.dim() == 1 ? values : values.reshape({-1});
}
at::Tensor classes_of(const at::Tensor& prediction, int64_t axis) {
  return one_row(prediction.argmax(axis));
}

bool is_list_of_classes(const at::Tensor& tensor) {
  return tensor.is_cpu() && tensor.scalar_type() == at::kLong && tensor.is_contiguous();
}

at::Tensor hits(const at::Tensor& prediction, const at::Tensor& target, int64_t axis) {
  const auto classes = classes_of(prediction, axis), targets = one_row(target);
  if (is_list_of_classes(classes) && is_list_of_classes(targets) && classes.numel() == targets.numel()) {
    // A loop takes a fraction of an operator's time, for models whose step takes microseconds.
    const auto* found = classes.const_data_ptr<int64_t>();
    const auto* expected = targets.const_data_ptr<int64_t>();
    auto counts = at::empty({2}, at::kLong);
    auto* c = counts.mutable_data_ptr<int64_t>();
    c[0] = 0;
    c[1] = classes.numel();
    for (int64_t i = 0; i < c[1]; ++i) c[0] += found[i] == expected[i] ? 1 : 0;
    return counts;
  }
  return at::stack({(classes == targets).sum(), at::scalar_tensor(classes.numel(), classes.options())});
}

double part_of(const at::Tensor& counts) {
  const auto* c = counts.const_data_ptr<int64_t>();
  return ratio(static_cast<double>(c[0]), static_cast<double>(c[1]), kUndefined);
}

/// counts[i * n + j]: samples of class i taken for class j.
at::Tensor confusion(const at::Tensor& prediction, const at::Tensor& target, int64_t axis) {
  const int64_t n = prediction.size(axis);
  const auto flat = target.reshape({-1}).to(at::kLong);
  if (flat.numel() > 0) {
    const auto [least, most] = at::aminmax(flat);
    if (least.item<int64_t>() < 0 || most.item<int64_t>() >= n) {
      throw UsageError(Origin{"learner"}, "targets from ", least.item<int64_t>(), " to ", most.item<int64_t>(),
                       " for a metric of predictions with ", n, " classes; expected 0 to ", n - 1,
                       ". Number the classes from 0, or leave out the samples without one.");
    }
  }
  return at::bincount(flat * n + classes_of(prediction, axis), {}, n * n);
}

/// True positives, and how often each class occurs and is predicted.
struct ClassCounts {
  std::vector<double> hits, real, predicted;
  double total = 0;
  size_t size() const { return hits.size(); }
};

ClassCounts class_counts(const at::Tensor& counts) {
  const auto n = static_cast<size_t>(std::llround(std::sqrt(static_cast<double>(counts.numel()))));
  ClassCounts result{std::vector<double>(n), std::vector<double>(n), std::vector<double>(n)};
  const auto* c = counts.const_data_ptr<int64_t>();
  for (size_t i = 0; i < n; ++i) {
    for (size_t j = 0; j < n; ++j) {
      const auto count = static_cast<double>(c[i * n + j]);
      if (i == j) result.hits[i] = count;
      result.real[i] += count;
      result.predicted[j] += count;
      result.total += count;
    }
  }
  return result;
}

/// True positives, false positives, false negatives of one class, or of several together.
struct Rates {
  double hits = 0, false_alarms = 0, misses = 0;
};
using Score = std::function<double(const Rates&)>;

double fbeta_of(const Rates& r, double beta) {
  const double b = beta * beta;
  return ratio((1 + b) * r.hits, (1 + b) * r.hits + b * r.misses + r.false_alarms);
}
double precision_of(const Rates& r) {
  return ratio(r.hits, r.hits + r.false_alarms);
}
double recall_of(const Rates& r) {
  return ratio(r.hits, r.hits + r.misses);
}
double jaccard_of(const Rates& r) {
  return ratio(r.hits, r.hits + r.false_alarms + r.misses);
}

double averaged(const std::vector<Rates>& classes, const Score& score, Averaging average) {
  Rates all;
  double sum = 0, weights = 0;
  for (const auto& one : classes) {
    const double weight = average == Averaging::kWeighted ? one.hits + one.misses : 1;
    sum += weight * score(one);
    weights += weight;
    all = {all.hits + one.hits, all.false_alarms + one.false_alarms, all.misses + one.misses};
  }
  return average == Averaging::kMicro ? score(all) : ratio(sum, weights);
}

Metric class_metric(std::string name, const ClassMetricOptions& o, Score score) {
  return counted_metric(
      std::move(name), [o](const at::Tensor& p, const at::Tensor& t) { return confusion(p, t, o.axis); },
      [o, score = std::move(score)](const at::Tensor& counts) {
        const auto c = class_counts(counts);
        std::vector<Rates> classes;
        for (size_t i = 0; i < c.size(); ++i) {
          const Rates rates{c.hits[i], c.predicted[i] - c.hits[i], c.real[i] - c.hits[i]};
          if (o.average == Averaging::kBinary) {
            if (static_cast<int64_t>(i) == o.pos_label) return score(rates);
          } else if (c.real[i] + c.predicted[i] > 0) {
            classes.push_back(rates);
          }
        }
        return averaged(classes, score, o.average);
      });
}

at::Tensor positives(const at::Tensor& prediction, double thresh, bool sigmoid) {
  return (sigmoid ? prediction.sigmoid() : prediction) > thresh;
}

/// [labels * 4]: true positives, false positives, false negatives, true negatives.
at::Tensor label_counts(const at::Tensor& prediction, const at::Tensor& target, const MultiMetricOptions& o) {
  const auto p = positives(prediction, o.thresh, o.sigmoid).reshape({-1, prediction.size(-1)});
  const auto t = target.reshape({-1, target.size(-1)}) != 0;
  return at::cat({(p & t).sum(0), (p & ~t).sum(0), (~p & t).sum(0), (~p & ~t).sum(0)});
}

Metric label_metric(std::string name, const MultiMetricOptions& o, Score score) {
  return counted_metric(
      std::move(name), [o](const at::Tensor& p, const at::Tensor& t) { return label_counts(p, t, o); },
      [o, score = std::move(score)](const at::Tensor& counts) {
        const auto by_kind = counts.view({4, -1}).to(at::kDouble);
        const auto* c = by_kind.const_data_ptr<double>();
        const int64_t n = by_kind.size(1);
        std::vector<Rates> labels;
        for (int64_t i = 0; i < n; ++i) labels.push_back({c[i], c[n + i], c[2 * n + i]});
        return averaged(labels, score, o.average);
      });
}

at::Tensor flat(const at::Tensor& tensor) {
  return tensor.reshape({-1}).to(at::kDouble);
}
using Pair = std::function<at::Tensor(const at::Tensor&, const at::Tensor&)>;

Metric elementwise(std::string name, Pair value, bool root = false) {
  return mean_metric(
      std::move(name),
      [value = std::move(value)](const at::Tensor& p, const at::Tensor& t) {
        return std::vector{value(flat(p), flat(t))};
      },
      [root](const std::vector<double>& means) { return root ? std::sqrt(means[0]) : means[0]; });
}

/// Means of x, y, x^2, y^2, xy and (x - y)^2, x the prediction.
std::vector<at::Tensor> moments(const at::Tensor& prediction, const at::Tensor& target) {
  const auto x = flat(prediction), y = flat(target);
  return {x, y, x * x, y * y, x * y, (x - y) * (x - y), x - y};
}
Metric moment_metric(std::string name, std::function<double(const std::vector<double>&)> finish) {
  return mean_metric(std::move(name), moments, std::move(finish));
}

/// [2 * classes] of overlaps and sizes.
at::Tensor overlaps(const at::Tensor& prediction, const at::Tensor& target, int64_t axis) {
  const int64_t n = prediction.size(axis);
  const auto counts = confusion(prediction, target, axis).view({n, n});
  return at::cat({counts.diagonal(), counts.sum(0) + counts.sum(1)});
}

Metric overlap_metric(std::string name, int64_t axis, std::function<double(double, double)> score) {
  return counted_metric(
      std::move(name), [axis](const at::Tensor& p, const at::Tensor& t) { return overlaps(p, t, axis); },
      [score = std::move(score)](const at::Tensor& counts) {
        const auto* c = counts.const_data_ptr<int64_t>();
        const int64_t n = counts.numel() / 2;
        double sum = 0, classes = 0;
        for (int64_t i = 0; i < n; ++i) {
          if (c[n + i] == 0) continue;
          sum += score(static_cast<double>(c[i]), static_cast<double>(c[n + i]));
          ++classes;
        }
        return ratio(sum, classes, kUndefined);
      });
}

/// fastai's two-class form: products and sums of the class numbers.
Metric two_class_overlap(std::string name, int64_t axis, std::function<double(double, double)> score) {
  return counted_metric(
      std::move(name),
      [axis](const at::Tensor& p, const at::Tensor& t) {
        const auto classes = classes_of(p, axis), targets = t.reshape({-1}).to(at::kLong);
        return at::stack({(classes * targets).sum(), (classes + targets).sum()});
      },
      [score = std::move(score)](const at::Tensor& counts) {
        const auto* c = counts.const_data_ptr<int64_t>();
        return c[1] > 0 ? score(static_cast<double>(c[0]), static_cast<double>(c[1])) : kUndefined;
      });
}
double dice_of(double both, double either) {
  return 2 * both / either;
}
double overlap_of(double both, double either) {
  return both / (either - both);
}

/// The counts of a sample's n-grams: hits in sixteenths (1 / 2^k at least), and their number.
void count_ngrams(const int64_t* prediction, const int64_t* target, int64_t length, int64_t target_length,
                  int64_t vocab, int64_t* counts) {
  int64_t smooth = 1;
  for (int64_t order = 1; order <= 4; ++order) {
    std::map<std::vector<int64_t>, std::pair<int64_t, int64_t>> grams;
    int64_t number = 0, hits = 0;
    for (int64_t i = 0; i + order <= length; ++i, ++number) ++grams[{prediction + i, prediction + i + order}].first;
    for (int64_t i = 0; i + order <= target_length; ++i) ++grams[{target + i, target + i + order}].second;
    for (const auto& [gram, both] : grams) hits += std::min(both.first, both.second);
    if (hits == 0) smooth *= 2;
    counts[order - 1] += hits == 0 ? 16 / smooth : hits * 16;
    counts[3 + order] += number;
  }
  counts[8] += length;
  counts[9] += target_length;
  (void)vocab;
}

}  // namespace

Metric accuracy(int64_t axis) {
  return counted_metric(
      "accuracy", [axis](const at::Tensor& p, const at::Tensor& t) { return hits(p, t, axis); }, part_of);
}
Metric error_rate(int64_t axis) {
  return counted_metric(
      "error_rate", [axis](const at::Tensor& p, const at::Tensor& t) { return hits(p, t, axis); },
      [](const at::Tensor& counts) { return 1 - part_of(counts); });
}
Metric top_k_accuracy(int64_t k, int64_t axis) {
  return counted_metric(
      "top_k_accuracy",
      [=](const at::Tensor& p, const at::Tensor& t) {
        const auto best = std::get<1>(p.topk(std::min(k, p.size(axis)), axis));
        return at::stack({(best == t.unsqueeze(axis)).sum(), at::scalar_tensor(t.numel(), best.options())});
      },
      part_of);
}

Metric balanced_accuracy(int64_t axis) {
  return counted_metric(
      "balanced_accuracy", [axis](const at::Tensor& p, const at::Tensor& t) { return confusion(p, t, axis); },
      [](const at::Tensor& counts) {
        const auto c = class_counts(counts);
        double sum = 0, classes = 0;
        for (size_t i = 0; i < c.size(); ++i) {
          if (c.real[i] == 0) continue;
          sum += c.hits[i] / c.real[i];
          ++classes;
        }
        return ratio(sum, classes, kUndefined);
      });
}

Metric cohen_kappa(int64_t axis) {
  return counted_metric(
      "cohen_kappa", [axis](const at::Tensor& p, const at::Tensor& t) { return confusion(p, t, axis); },
      [](const at::Tensor& counts) {
        const auto c = class_counts(counts);
        double hit = 0, chance = 0;
        for (size_t i = 0; i < c.size(); ++i) {
          hit += c.hits[i] / c.total;
          chance += c.real[i] / c.total * (c.predicted[i] / c.total);
        }
        return ratio(hit - chance, 1 - chance, kUndefined);
      });
}

Metric hamming_loss(int64_t axis) {
  return error_rate(axis).named("hamming_loss");
}

namespace {

double matthews(double hit, double total, const std::vector<double>& real, const std::vector<double>& predicted) {
  double both = 0, p2 = 0, t2 = 0;
  for (size_t i = 0; i < real.size(); ++i) {
    both += real[i] * predicted[i];
    p2 += predicted[i] * predicted[i];
    t2 += real[i] * real[i];
  }
  return ratio(hit * total - both, std::sqrt((total * total - p2) * (total * total - t2)));
}

}  // namespace

Metric matthews_corr_coef(int64_t axis) {
  return counted_metric(
      "matthews_corr_coef", [axis](const at::Tensor& p, const at::Tensor& t) { return confusion(p, t, axis); },
      [](const at::Tensor& counts) {
        const auto c = class_counts(counts);
        double hit = 0;
        for (const double one : c.hits) hit += one;
        return matthews(hit, c.total, c.real, c.predicted);
      });
}

Metric f1_score(const ClassMetricOptions& o) {
  return class_metric("f1_score", o, [](const Rates& r) { return fbeta_of(r, 1); });
}
Metric fbeta(double beta, const ClassMetricOptions& o) {
  return class_metric("fbeta_score", o, [beta](const Rates& r) { return fbeta_of(r, beta); });
}
Metric precision(const ClassMetricOptions& o) {
  return class_metric("precision_score", o, precision_of);
}
Metric recall(const ClassMetricOptions& o) {
  return class_metric("recall_score", o, recall_of);
}
Metric jaccard(const ClassMetricOptions& o) {
  return class_metric("jaccard_score", o, jaccard_of);
}

Metric accuracy_multi(double thresh, bool sigmoid) {
  return counted_metric(
      "accuracy_multi",
      [=](const at::Tensor& p, const at::Tensor& t) {
        const auto same = positives(p, thresh, sigmoid) == (t != 0);
        return at::stack({same.sum(), at::scalar_tensor(same.numel(), same.options().dtype(at::kLong))});
      },
      part_of);
}
Metric f1_score_multi(const MultiMetricOptions& o) {
  return label_metric("f1_score", o, [](const Rates& r) { return fbeta_of(r, 1); });
}
Metric fbeta_multi(double beta, const MultiMetricOptions& o) {
  return label_metric("fbeta_score", o, [beta](const Rates& r) { return fbeta_of(r, beta); });
}
Metric precision_multi(const MultiMetricOptions& o) {
  return label_metric("precision_score", o, precision_of);
}
Metric recall_multi(const MultiMetricOptions& o) {
  return label_metric("recall_score", o, recall_of);
}
Metric jaccard_multi(const MultiMetricOptions& o) {
  return label_metric("jaccard_score", o, jaccard_of);
}
Metric hamming_loss_multi(const MultiMetricOptions& o) {
  return counted_metric(
      "hamming_loss", [o](const at::Tensor& p, const at::Tensor& t) { return label_counts(p, t, o); },
      [](const at::Tensor& counts) {
        const auto by_kind = counts.view({4, -1}).sum(1);
        const auto* c = by_kind.const_data_ptr<int64_t>();
        return ratio(static_cast<double>(c[1] + c[2]), static_cast<double>(c[0] + c[1] + c[2] + c[3]), kUndefined);
      });
}
Metric matthews_corr_coef_multi(const MultiMetricOptions& o) {
  return counted_metric(
      "matthews_corr_coef", [o](const at::Tensor& p, const at::Tensor& t) { return label_counts(p, t, o); },
      [](const at::Tensor& counts) {
        const auto by_kind = counts.view({4, -1}).sum(1).to(at::kDouble);
        const auto* c = by_kind.const_data_ptr<double>();  // tp, fp, fn, tn
        return matthews(c[0] + c[3], c[0] + c[1] + c[2] + c[3], {c[0] + c[2], c[1] + c[3]}, {c[0] + c[1], c[2] + c[3]});
      });
}

Metric mse_metric() {
  return elementwise("mse", [](const at::Tensor& p, const at::Tensor& t) { return (p - t).pow(2); });
}
Metric mae_metric() {
  return elementwise("mae", [](const at::Tensor& p, const at::Tensor& t) { return (p - t).abs(); });
}
Metric msle_metric() {
  return elementwise("msle", [](const at::Tensor& p, const at::Tensor& t) { return (p.log1p() - t.log1p()).pow(2); });
}
Metric rmse() {
  return elementwise(
      "rmse", [](const at::Tensor& p, const at::Tensor& t) { return (p - t).pow(2); }, true);
}
Metric exp_rmspe() {
  return elementwise(
      "exp_rmspe", [](const at::Tensor& p, const at::Tensor& t) { return (1 - (p - t).exp()).pow(2); }, true);
}
Metric r2_score() {
  return moment_metric("r2_score",
                       [](const std::vector<double>& m) { return 1 - ratio(m[5], m[3] - m[1] * m[1], kUndefined); });
}
Metric explained_variance() {
  return moment_metric("explained_variance_score", [](const std::vector<double>& m) {
    return 1 - ratio(m[5] - m[6] * m[6], m[3] - m[1] * m[1], kUndefined);
  });
}
Metric pearson_corr_coef() {
  return moment_metric("pearsonr", [](const std::vector<double>& m) {
    return ratio(m[4] - m[0] * m[1], std::sqrt((m[2] - m[0] * m[0]) * (m[3] - m[1] * m[1])), kUndefined);
  });
}
Metric brier_score(int64_t axis, int64_t pos_label) {
  return mean_metric(
      "brier_score_loss",
      [=](const at::Tensor& p, const at::Tensor& t) {
        const auto positive =
            p.dim() > 1 ? at::softmax(p, axis).select(axis, std::min(pos_label, p.size(axis) - 1)) : p;
        return std::vector{(flat(positive) - flat(t.eq(pos_label))).pow(2)};
      },
      [](const std::vector<double>& means) { return means[0]; });
}

Metric dice_metric(int64_t axis) {
  return two_class_overlap("dice", axis, dice_of);
}
Metric jaccard_coeff(int64_t axis) {
  return two_class_overlap("jaccard_coeff", axis, overlap_of);
}
Metric dice_multi(int64_t axis) {
  return overlap_metric("dice_multi", axis, dice_of);
}
Metric jaccard_coeff_multi(int64_t axis) {
  return overlap_metric("jaccard_coeff_multi", axis, overlap_of);
}
Metric foreground_acc(int64_t bkg_idx, int64_t axis) {
  return counted_metric(
      "foreground_acc",
      [=](const at::Tensor& p, const at::Tensor& t) {
        const auto targets = t.dim() == p.dim() && t.size(axis) == 1 ? t.squeeze(axis) : t;
        const auto mask = targets != bkg_idx;
        return at::stack({((p.argmax(axis) == targets) & mask).sum(), mask.sum()});
      },
      part_of);
}

Metric perplexity() {
  class Perplexity final : public Metric::Impl {
   public:
    std::string name() const override { return "perplexity"; }
    void reset() override { loss_.reset(); }
    void accumulate(const MetricInput& input) override { loss_.accumulate(input); }
    std::optional<at::Tensor> counts() const override { return loss_.counts(); }
    double value_of(const at::Tensor& counts) const override { return std::exp(loss_.value_of(counts)); }

   private:
    Metric loss_ = avg_loss();
  };
  return Metric(std::make_shared<Perplexity>());
}

Metric corpus_bleu(int64_t vocab_size, int64_t axis) {
  return counted_metric(
      "corpus_bleu",
      [=](const at::Tensor& p, const at::Tensor& t) {
        const auto predictions = p.argmax(axis).cpu().contiguous(), targets = t.to(at::kCPU, at::kLong).contiguous();
        auto counts = at::zeros({10}, at::kLong);
        for (int64_t i = 0; i < predictions.size(0); ++i) {
          const auto row = predictions[i].contiguous(), expected = targets[i].contiguous();
          count_ngrams(row.const_data_ptr<int64_t>(), expected.const_data_ptr<int64_t>(), row.numel(), expected.numel(),
                       vocab_size, counts.mutable_data_ptr<int64_t>());
        }
        return counts;
      },
      [](const at::Tensor& counts) {
        const auto c = counts.to(at::kDouble);
        const auto* v = c.const_data_ptr<double>();
        double product = 1;
        for (int i = 0; i < 4; ++i) product *= ratio(v[i] / 16, v[4 + i], kUndefined);
        const double penalty = v[8] < v[9] ? std::exp(1 - v[9] / v[8]) : 1;
        return penalty * std::pow(product, 0.25);
      });
}

}  // namespace hasten::learner
