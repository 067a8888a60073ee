// Counting on each rank, one sum over the ranks; see counted_metrics.h.
#include "hasten/data/metrics/counted_metrics.h"

#include <torch/types.h>

#include <cmath>

#include "data/metrics/exact_sum.h"
#include "hasten/comm/types/purpose.h"
#include "hasten/core/error.h"

namespace hasten::data {
namespace {

using at::Tensor;

[[noreturn]] void refuse_shapes(const char* metric, const Tensor& scores, const Tensor& targets, const char* expected) {
  throw UsageError(Origin{"data"}, metric, ": predictions of shape ", text(scores.sizes()), " with targets of shape ",
                   text(targets.sizes()), "; expected ", expected, ".");
}

// Returns true if `scores` have a dimension of classes after the first, which `targets` lack.
bool has_scores(const Tensor& scores, const Tensor& targets) {
  return scores.dim() == targets.dim() + 1 && scores.dim() >= 2 && scores.size(0) == targets.size(0) &&
         scores.sizes().slice(2) == targets.sizes().slice(1);
}

Tensor counted(const Tensor& targets, std::optional<int64_t> ignore_index) {
  return ignore_index ? targets.ne(*ignore_index) : torch::ones_like(targets, at::kBool);
}

Tensor sum_over(const comm::Group& group, const Tensor& counts) {
  const Tensor sum = counts.clone();
  const comm::Purpose purpose("a counted metric");
  group.all_reduce_(sum);
  return sum;
}

double mean_without_nan(const Tensor& values) {
  return values.nanmean().item<double>();
}

}  // namespace

Accuracy::Accuracy(const AccuracyOptions& options) : options_(options) {
  if (options.top_k >= 1) return;
  throw UsageError(Origin{"data"}, "Accuracy: top_k = ", options.top_k, "; expected at least 1.");
}

void Accuracy::update(const Tensor& scores, const Tensor& targets) {
  const at::NoGradGuard no_grad;
  Tensor found;
  if (has_scores(scores, targets)) {
    if (options_.top_k > scores.size(1)) {
      throw UsageError(Origin{"data"}, "Accuracy: top_k = ", options_.top_k, ", but there are scores of ",
                       scores.size(1), " classes.");
    }
    const Tensor best =
        options_.top_k == 1 ? scores.argmax(1, /*keepdim=*/true) : std::get<1>(scores.topk(options_.top_k, 1));
    found = best.eq(targets.unsqueeze(1)).any(1);
  } else if (scores.sizes() == targets.sizes() && options_.top_k == 1) {
    found = scores.eq(targets);
  } else {
    refuse_shapes("Accuracy", scores, targets,
                  "[samples, classes, …] with [samples, …], or for top_k = 1 two equal shapes");
  }
  const Tensor counts = counted(targets, options_.ignore_index);
  correct_ += found.logical_and(counts).sum().item<int64_t>();
  total_ += counts.sum().item<int64_t>();
}

double Accuracy::compute(const comm::Group& group) const {
  const Tensor sum = sum_over(group, torch::tensor({correct_, total_}, at::kLong));
  return sum[0].item<double>() / sum[1].item<double>();
}

struct Mean::Sums {
  detail::ExactSum values, weights;
};

Mean::Mean() : sums_(std::make_unique<Sums>()) {}
Mean::Mean(Mean&&) noexcept = default;
Mean& Mean::operator=(Mean&&) noexcept = default;
Mean::~Mean() = default;

void Mean::update(double value, double weight) {
  if (!(weight >= 0) || std::isinf(weight)) {
    throw UsageError(Origin{"data"}, "Mean: weight = ", weight, "; expected a number from 0 on.");
  }
  if (weight == 0) return;  // a value that does not count may be NaN
  // The product with the rounding it has had: two doubles that are exact together.
  const double product = value * weight;
  sums_->values.add(product);
  if (std::isfinite(product)) sums_->values.add(std::fma(value, weight, -product));
  sums_->weights.add(weight);
}

void Mean::update(const Tensor& values, double weight) {
  if (values.is_complex()) {
    throw UsageError(Origin{"data"}, "Mean: the values are complex; expected real ones.");
  }
  const Tensor flat = values.detach().to(at::kCPU, at::kDouble).contiguous();
  const double* data = flat.const_data_ptr<double>();
  for (int64_t i = 0; i < flat.numel(); ++i) update(data[i], weight);
}

Tensor Mean::counts() const {
  static_assert(kNumCounts == 2 * detail::ExactSum::kNumWords);
  Tensor counts = torch::empty({kNumCounts}, at::kLong);
  int64_t* to = counts.mutable_data_ptr<int64_t>();
  for (const auto* sum : {&sums_->values, &sums_->weights}) {
    const auto words = sum->words();
    to = std::copy(words.begin(), words.end(), to);
  }
  return counts;
}

double Mean::value_of(const Tensor& counts) {
  if (counts.numel() != kNumCounts)
    throw UsageError(Origin{"data"}, "Mean: ", counts.numel(), " counts; expected ", kNumCounts, ".");
  const Tensor plain = counts.contiguous();
  const auto value = [&](int64_t begin) {
    detail::ExactSum::Words list;
    std::copy_n(plain.const_data_ptr<int64_t>() + begin, list.size(), list.begin());
    return detail::ExactSum::of(list).value();
  };
  const double weights = value(detail::ExactSum::kNumWords);
  // 0 / 0 has a sign, with which it would be printed.
  return weights == 0 ? std::numeric_limits<double>::quiet_NaN() : value(0) / weights;
}

double Mean::compute(const comm::Group& group) const {
  return value_of(sum_over(group, counts()));
}

void Mean::reset() {
  *sums_ = {};
}

ConfusionMatrix::ConfusionMatrix(const ConfusionMatrixOptions& options) : options_(options) {
  if (options.num_classes < 1) {
    throw UsageError(Origin{"data"}, "ConfusionMatrix: num_classes = ", options.num_classes, "; expected at least 1.");
  }
  reset();
}

void ConfusionMatrix::reset() {
  counts_ = torch::zeros({options_.num_classes, options_.num_classes}, at::kLong);
}

void ConfusionMatrix::update(const Tensor& predictions, const Tensor& targets) {
  const at::NoGradGuard no_grad;
  const bool scores = has_scores(predictions, targets);
  if (!scores && predictions.sizes() != targets.sizes()) {
    refuse_shapes("ConfusionMatrix", predictions, targets,
                  "two equal shapes of classes, or scores [samples, classes, …] with [samples, …]");
  }
  const Tensor mask = counted(targets, options_.ignore_index);
  const Tensor found = (scores ? predictions.argmax(1) : predictions).masked_select(mask).to(at::kLong);
  const Tensor actual = targets.masked_select(mask).to(at::kLong);
  const int64_t classes = options_.num_classes;
  const auto check = [&](const char* what, const Tensor& values) {
    const Tensor bad = values.masked_select(values.lt(0).logical_or(values.ge(classes)));
    if (bad.numel() == 0) return;
    throw UsageError(Origin{"data"}, "ConfusionMatrix: ", what, " of class ", bad[0].item<int64_t>(),
                     "; expected 0 to ", classes - 1, ". Set num_classes, or ignore_index.");
  };
  check("a prediction", found);
  check("a target", actual);
  // A new tensor: copies of the metric share the old one.
  counts_ =
      counts_ + torch::bincount(actual * classes + found, {}, classes * classes).view({classes, classes}).to(at::kCPU);
}

Confusion ConfusionMatrix::compute(const comm::Group& group) const {
  return {sum_over(group, counts_)};
}

namespace {

struct Outcomes {
  Tensor both, actual, found;  // double [classes]: true positives, samples and predictions of a class
};

Outcomes outcomes(const Tensor& counts) {
  return {counts.diagonal().to(at::kDouble), counts.sum(1).to(at::kDouble), counts.sum(0).to(at::kDouble)};
}

}  // namespace

double Confusion::accuracy() const {
  return counts.trace().item<double>() / counts.sum().item<double>();
}
Tensor Confusion::precision() const {
  const auto [both, actual, found] = outcomes(counts);
  return both / found;
}
Tensor Confusion::recall() const {
  const auto [both, actual, found] = outcomes(counts);
  return both / actual;
}
Tensor Confusion::iou() const {
  const auto [both, actual, found] = outcomes(counts);
  return both / (actual + found - both);
}
Tensor Confusion::dice() const {
  const auto [both, actual, found] = outcomes(counts);
  return 2 * both / (actual + found);
}
double Confusion::mean_iou() const {
  return mean_without_nan(iou());
}
double Confusion::mean_dice() const {
  return mean_without_nan(dice());
}

}  // namespace hasten::data
