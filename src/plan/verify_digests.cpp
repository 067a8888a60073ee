// Differences of tensors from their digests; see verify_step.h.
#include <algorithm>
#include <cmath>
#include <string_view>

#include "hasten/core/text.h"
#include "plan/verify_step.h"

namespace hasten::plan {
namespace {

/// A tensor is judged against at least this part of the largest. Rounding of a sum that comes out near zero is as large
/// as that of its terms.
constexpr double kLeastPart = 0.01;
/// A gradient below this part of the largest is what rounding left of a sum that is zero.
constexpr double kNoise = 1e-5;
/// So is that of a bias below this part of its weight's, as in front of a batch norm, which takes any bias out again.
constexpr double kNoiseOfBias = 1e-3;
constexpr double kSameFactor = 1e-3;

bool is_finite(const VerifyDigest& digest) {
  return std::isfinite(digest.norm);
}

double largest_norm(const VerifyDigests& digests) {
  double largest = 0;
  for (const auto& [name, digest] : digests) {
    if (is_finite(digest)) largest = std::max(largest, digest.norm);
  }
  return largest;
}

VerifyDigest times(VerifyDigest digest, double factor) {
  digest.norm *= factor;
  for (double& product : digest.products) product *= factor;
  return digest;
}

// The factor of `name` in the second side; nothing where its direction differs.
std::optional<double> factor_of(const VerifyDigest& first, const VerifyDigest& second) {
  if (!(first.norm > 0) || !(second.norm > 0) || !is_finite(first) || !is_finite(second)) return std::nullopt;
  const double factor = second.norm / first.norm;
  if (distance(times(first, factor), second) > kSameFactor * second.norm) return std::nullopt;
  return factor;
}

std::optional<double> common_factor(const VerifyDigests& first, const VerifyDigests& second,
                                    const std::set<std::string>& noise) {
  std::optional<double> common;
  for (const auto& [name, digest] : first) {
    const auto other = second.find(name);
    if (other == second.end() || noise.count(name) != 0) continue;
    const auto factor = factor_of(digest, other->second);
    if (!factor) return std::nullopt;
    if (common && std::abs(*common - *factor) > kSameFactor * *common) return std::nullopt;
    if (!common) common = factor;
  }
  return common;
}

}  // namespace

// From the products, exact in the mean over signs.
double distance(const VerifyDigest& a, const VerifyDigest& b) {
  double sum = 0;
  for (size_t i = 0; i < a.products.size(); ++i) sum += std::pow(a.products[i] - b.products[i], 2);
  return std::max(std::sqrt(sum / static_cast<double>(a.products.size())), std::abs(a.norm - b.norm));
}

double relative_difference(double a, double b) {
  if (!std::isfinite(a) || !std::isfinite(b)) return std::isfinite(a) == std::isfinite(b) ? 0 : INFINITY;
  const double larger = std::max(std::abs(a), std::abs(b));
  return larger > 0 ? std::abs(a - b) / larger : 0;
}

std::set<std::string> noise_of(const VerifyDigests& gradients) {
  const double largest = largest_norm(gradients);
  std::set<std::string> names;
  for (const auto& [name, digest] : gradients) {
    if (digest.norm <= kNoise * largest) names.insert(name);
    constexpr std::string_view kBias = "bias";
    if (!name.ends_with(kBias)) continue;
    const auto weight = gradients.find(name.substr(0, name.size() - kBias.size()) + "weight");
    if (weight != gradients.end() && digest.norm <= kNoiseOfBias * weight->second.norm) names.insert(name);
  }
  return names;
}

DigestDifference compare_digests(const VerifyDigests& first, const VerifyDigests& second, double tolerance,
                                 const VerifyDigests* before, const std::set<std::string>& noise) {
  DigestDifference result;
  const double least = kLeastPart * std::max(largest_norm(first), largest_norm(second));
  std::set<std::string> all;
  for (const auto& [name, digest] : first) all.insert(name);
  for (const auto& [name, digest] : second) all.insert(name);
  for (const auto& name : all) {
    if (noise.count(name) != 0) continue;
    ++result.num_all;
    const auto a = first.find(name), b = second.find(name);
    if (a == first.end() || b == second.end()) {
      result.names.push_back(name);
      continue;
    }
    if (!is_finite(a->second) && !is_finite(b->second)) continue;
    if (is_finite(a->second) != is_finite(b->second)) {
      result.names.push_back(name);
      result.worst = INFINITY;
      continue;
    }
    const double far = distance(a->second, b->second);
    if (far == 0) continue;
    const double size = std::max({a->second.norm, b->second.norm, least});
    double allowed = tolerance * size;
    if (before != nullptr) {
      // A step divides by small numbers: rounding of a gradient may turn the change of single elements round.
      const auto old = before->find(name);
      const double change = old == before->end() ? 0 : distance(old->second, a->second);
      allowed = std::max(allowed, std::sqrt(tolerance) * change);
    }
    result.worst = std::max(result.worst, far / size);
    if (far > allowed) result.names.push_back(name);
  }
  if (result.any() && result.names.size() == result.num_all) result.factor = common_factor(first, second, noise);
  return result;
}

std::string names_text(const DigestDifference& difference, const std::string& what) {
  constexpr size_t kShown = 3;
  const auto& names = difference.names;
  if (names.size() == 1) return names.front();
  std::vector<std::string> shown(names.begin(), names.begin() + std::min(names.size(), kShown));
  if (names.size() == difference.num_all) return text("all ", names.size(), " ", what);
  return text(names.size(), " of ", difference.num_all, " ", what, " (", join(shown, ", "),
              names.size() > kShown ? ", …)" : ")");
}

}  // namespace hasten::plan
