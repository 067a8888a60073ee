// Learning rates read from the curve of an LR range test: pure functions (fastai's valley, slide, minimum, steep).
#pragma once

#include <map>
#include <string>
#include <vector>

namespace hasten::learner {

/// How a learning rate is read from the curve.
enum class Suggestion { kValley, kSlide, kMinimum, kSteep };
/// "valley".
std::string name_of(Suggestion suggestion);

/// Takes the longest strictly falling subsequence, of length n and ending at e. Returns the rate at e - n + n/3 + n/6.
/// If nothing falls, it is the first rate.
/// Throws: UsageError for an empty curve, or lists of different lengths.
double valley(const std::vector<double>& lrs, const std::vector<double>& losses);
/// From the right, a pair `lr_diff` apart moves left while the slopes differ by more than `threshold`. Returns its left
/// rate.
/// Throws: as valley; UsageError for fewer than lr_diff + 1 points
/// and for an lr_diff below 1.
double slide(const std::vector<double>& lrs, const std::vector<double>& losses, int lr_diff = 15,
             double threshold = 0.005);
/// Returns a tenth of the rate with the least loss. Throws: as valley.
double minimum(const std::vector<double>& lrs, const std::vector<double>& losses);
/// Returns the rate with the steepest fall of the loss by the logarithm of the rate.
/// Throws: as valley; UsageError for one point.
double steep(const std::vector<double>& lrs, const std::vector<double>& losses);
/// Returns one of the above. Throws: as that one.
double suggest(Suggestion how, const std::vector<double>& lrs, const std::vector<double>& losses);

}  // namespace hasten::learner
