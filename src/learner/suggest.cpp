// See suggest.h.
#include "hasten/learner/suggest.h"

#include <algorithm>
#include <cmath>

#include "hasten/core/error.h"
#include "learner/at_least.h"

namespace hasten::learner {
namespace {

void require(const char* name, const std::vector<double>& lrs, const std::vector<double>& losses, size_t least) {
  if (lrs.size() != losses.size()) {
    throw UsageError(Origin{"learner"}, name, ": ", lrs.size(), " learning rates with ", losses.size(),
                     " losses; expected as many of each.");
  }
  if (lrs.size() < least) {
    throw UsageError(Origin{"learner"}, name, " needs at least ", least, " points of the curve, there are ", lrs.size(),
                     ". Run lr_find with a larger num_it.");
  }
}

/// numpy.gradient: central differences, one-sided at the ends.
std::vector<double> gradient(const std::vector<double>& values) {
  const size_t n = values.size();
  std::vector<double> result(n);
  for (size_t i = 0; i < n; ++i) {
    const size_t left = i == 0 ? 0 : i - 1, right = std::min(i + 1, n - 1);
    result[i] = (values[right] - values[left]) / static_cast<double>(right - left);
  }
  return result;
}

}  // namespace

std::string name_of(Suggestion suggestion) {
  switch (suggestion) {
    case Suggestion::kValley:
      return "valley";
    case Suggestion::kSlide:
      return "slide";
    case Suggestion::kMinimum:
      return "minimum";
    default:
      return "steep";
  }
}

double valley(const std::vector<double>& lrs, const std::vector<double>& losses) {
  require("valley", lrs, losses, 1);
  std::vector<size_t> length(losses.size(), 1);
  size_t end = 0;
  for (size_t i = 1; i < losses.size(); ++i) {
    for (size_t j = 0; j < i; ++j) {
      if (losses[i] < losses[j]) length[i] = std::max(length[i], length[j] + 1);
    }
    if (length[i] > length[end]) end = i;
  }
  const size_t n = length[end];
  if (n == 1) return lrs.front();
  // The index before the subsequence may lie before the curve: e - n is -1 for a curve that falls throughout.
  const auto index =
      static_cast<std::ptrdiff_t>(end) - static_cast<std::ptrdiff_t>(n) + static_cast<std::ptrdiff_t>(n / 3 + n / 6);
  const auto size = static_cast<std::ptrdiff_t>(lrs.size());
  return lrs[static_cast<size_t>(index < 0 ? index + size : index)];
}

double slide(const std::vector<double>& lrs, const std::vector<double>& losses, int lr_diff, double threshold) {
  const auto apart = static_cast<size_t>(at_least(1, "slide: lr_diff", lr_diff));
  require("slide", lrs, losses, apart + 1);
  const auto slopes = gradient(losses);
  size_t right = lrs.size() - 1;
  double result = lrs[right - apart];
  while (right >= apart && std::abs(slopes[right] - slopes[right - apart]) > threshold) {
    result = lrs[right - apart];
    if (right == apart) break;
    --right;
  }
  return result;
}

double minimum(const std::vector<double>& lrs, const std::vector<double>& losses) {
  require("minimum", lrs, losses, 1);
  return lrs[static_cast<size_t>(std::min_element(losses.begin(), losses.end()) - losses.begin())] / 10;
}

double steep(const std::vector<double>& lrs, const std::vector<double>& losses) {
  require("steep", lrs, losses, 2);
  size_t best = 0;
  double least = 0;
  for (size_t i = 0; i + 1 < lrs.size(); ++i) {
    const double slope = (losses[i + 1] - losses[i]) / (std::log(lrs[i + 1]) - std::log(lrs[i]));
    if (i == 0 || slope < least) {
      least = slope;
      best = i;
    }
  }
  return lrs[best];
}

double suggest(Suggestion how, const std::vector<double>& lrs, const std::vector<double>& losses) {
  switch (how) {
    case Suggestion::kValley:
      return valley(lrs, losses);
    case Suggestion::kSlide:
      return slide(lrs, losses);
    case Suggestion::kMinimum:
      return minimum(lrs, losses);
    default:
      return steep(lrs, losses);
  }
}

}  // namespace hasten::learner
