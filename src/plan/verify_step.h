// A step of two runs side by side, the checks of its parts, and the causes that these name. Part of verify_runs.cpp.
#pragma once

#include <map>
#include <optional>
#include <string>
#include <vector>

#include "hasten/plan/verify_record.h"
#include "hasten/plan/verify_verdict.h"

namespace hasten::plan {

/// What one rank of the many computes in a step, whichever process has computed it.
struct VerifyShare {
  std::vector<const VerifyBatch*> batches = {};
  std::vector<const VerifyLoss*> losses = {};

  std::vector<int64_t> positions() const;
  double loss() const;  ///< summed over the backwards
};

struct VerifyPair {
  const VerifyRun& one;
  const VerifyRun& many;
  size_t step;
  double tolerance;
  std::map<int, VerifyShare> shares_of_one = {}, shares_of_many = {};

  const VerifyStep& first() const { return one.ranks.front().steps[step]; }
  const VerifyStep& second() const { return many.ranks.front().steps[step]; }
  int num_ranks() const { return many.num_shares(); }
};

VerifyPair pair_of(const VerifyRun& one, const VerifyRun& many, size_t step, double tolerance);

/// Parameters whose values differ by more than the tolerance, or that one side lacks.
struct DigestDifference {
  std::vector<std::string> names = {};
  size_t num_all = 0;
  double worst = 0;  ///< of all
  /// The one factor of all tensors of the second side, if there is one.
  std::optional<double> factor = {};
  bool any() const { return !names.empty(); }
};

/// `before_*`: the values before a step, by whose change values are judged as well; null for gradients. `noise`:
/// tensors to leave out.
DigestDifference compare_digests(const VerifyDigests& first, const VerifyDigests& second, double tolerance,
                                 const VerifyDigests* before = nullptr, const std::set<std::string>& noise = {});
/// Names of tensors whose gradient is nothing but rounding.
std::set<std::string> noise_of(const VerifyDigests& gradients);
/// An estimate of the norm of a - b.
double distance(const VerifyDigest& a, const VerifyDigest& b);
/// |a - b| over the larger; 0 for two that are no numbers.
double relative_difference(double a, double b);
/// "all 12 parameters", "conv.weight", "3 of 12 parameters (a, b, …)".
std::string names_text(const DigestDifference& difference, const std::string& what);

std::optional<VerifyVerdict> check_samples(const VerifyPair& pair);
std::optional<VerifyVerdict> check_losses(const VerifyPair& pair, double& worst);

std::string cause_of_losses(const VerifyPair& pair, const std::vector<int>& shares, std::optional<double> factor);
std::string cause_of_rank_gradients(const VerifyPair& pair, const DigestDifference& difference);
std::string cause_of_gradients(const VerifyPair& pair, const DigestDifference& difference);
std::string cause_of_parameters(const VerifyPair& pair, const DigestDifference& difference);
std::string cause_of_buffers(const VerifyPair& pair);

}  // namespace hasten::plan
