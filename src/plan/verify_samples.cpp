// Samples and losses of a step of two runs; see verify_step.h.
#include <algorithm>
#include <cmath>
#include <numeric>

#include "hasten/core/count_text.h"
#include "hasten/core/number.h"
#include "hasten/core/text.h"
#include "plan/verify_step.h"

namespace hasten::plan {
namespace {

std::map<int, VerifyShare> shares_of(const VerifyRun& run, size_t step) {
  std::map<int, VerifyShare> shares;
  for (const auto& rank : run.ranks) {
    if (step >= rank.steps.size()) continue;
    for (const auto& batch : rank.steps[step].batches) shares[batch.share].batches.push_back(&batch);
    for (const auto& loss : rank.steps[step].losses) shares[loss.share].losses.push_back(&loss);
  }
  return shares;
}

std::vector<int64_t> sorted_union(const std::map<int, VerifyShare>& shares) {
  std::vector<int64_t> all;
  for (const auto& [rank, share] : shares) {
    const auto positions = share.positions();
    all.insert(all.end(), positions.begin(), positions.end());
  }
  std::sort(all.begin(), all.end());
  return all;
}

bool all_read_the_same(const std::map<int, VerifyShare>& shares) {
  if (shares.size() < 2) return false;
  const auto first = shares.begin()->second.positions();
  return !first.empty() && std::all_of(shares.begin(), shares.end(),
                                       [&](const auto& share) { return share.second.positions() == first; });
}

bool any_unprepared(const std::map<int, VerifyShare>& shares) {
  return std::any_of(shares.begin(), shares.end(), [](const auto& share) {
    return std::any_of(share.second.batches.begin(), share.second.batches.end(),
                       [](const VerifyBatch* batch) { return !batch->is_prepared; });
  });
}

bool knows_positions(const std::map<int, VerifyShare>& shares) {
  return !shares.empty() && std::all_of(shares.begin(), shares.end(), [](const auto& share) {
    return !share.second.batches.empty() &&
           std::none_of(share.second.batches.begin(), share.second.batches.end(),
                        [](const VerifyBatch* batch) { return batch->positions.empty(); });
  });
}

VerifyVerdict found(VerifyDifference difference, const VerifyPair& pair, std::string what, std::string cause) {
  return {.difference = difference,
          .step = static_cast<int64_t>(pair.step),
          .what = std::move(what),
          .cause = std::move(cause)};
}

std::string first_of(const std::vector<int64_t>& positions) {
  constexpr size_t kShown = 4;
  std::vector<std::string> words;
  for (size_t i = 0; i < std::min(kShown, positions.size()); ++i) words.push_back(text(positions[i]));
  return join(words, ", ") + (positions.size() > kShown ? ", …" : "");
}

std::optional<VerifyVerdict> check_positions(const VerifyPair& pair) {
  const auto& one = pair.shares_of_one;
  const auto& many = pair.shares_of_many;
  if (!knows_positions(many)) return std::nullopt;
  if (all_read_the_same(many) && !(all_read_the_same(one) && one.size() == many.size())) {
    const auto positions = many.begin()->second.positions();
    return found(VerifyDifference::kSamples, pair,
                 text("all ", count_text(many.size(), "rank"), " have the same samples (", first_of(positions), ")"),
                 any_unprepared(many)
                     ? "the loader was not prepared, so every rank reads everything. Give it to accelerator.prepare."
                     : "every rank reads everything: a sampler of the program's own spreads nothing, or the dataset is "
                       "as large as one batch. Leave spreading to the prepared loader.");
  }
  if (!knows_positions(one)) return std::nullopt;
  if (one.size() == many.size()) {
    for (const auto& [rank, share] : many) {
      const auto other = one.find(rank);
      if (other == one.end() || other->second.positions() == share.positions()) continue;
      const bool same_set = sorted_union(one) == sorted_union(many);
      return found(VerifyDifference::kSamples, pair,
                   text("rank ", rank, " has samples ", first_of(share.positions()), "; ", processes_text(pair.one),
                        first_of(other->second.positions()).empty() ? "" : ": ", first_of(other->second.positions())),
                   same_set ? "the step has the same samples, shared out among the ranks in another way: a sampler or "
                              "batch sampler of the program's own that depends on the rank."
                            : "the step has other samples: a sampler of the program's own that depends on the rank or "
                              "on a seed of its own, a batch size made from the number of processes, or random_split "
                              "with a generator that no seed was given to.");
    }
    return std::nullopt;
  }
  if (sorted_union(one) == sorted_union(many)) return std::nullopt;
  return found(VerifyDifference::kSamples, pair,
               text("the step has ", count_text(sorted_union(many).size(), "sample"), " on ",
                    processes_text(pair.many), " and ",
                    sorted_union(one).size(), " on ", processes_text(pair.one),
                    sorted_union(one).size() == sorted_union(many).size() ? ", not the same ones" : ""),
               "the global batch is another one. Compare runs whose steps have the same samples: split_batches, or a "
               "batch size divided by the number of processes.");
}

std::optional<VerifyVerdict> check_bytes(const VerifyPair& pair) {
  if (pair.shares_of_one.size() != pair.shares_of_many.size()) return std::nullopt;
  for (const auto& [rank, share] : pair.shares_of_many) {
    const auto other = pair.shares_of_one.find(rank);
    if (other == pair.shares_of_one.end() || other->second.batches.size() != share.batches.size()) continue;
    for (size_t i = 0; i < share.batches.size(); ++i) {
      const auto& a = other->second.batches[i]->bytes;
      const auto& b = share.batches[i]->bytes;
      if (a.empty() || b.empty() || a == b) continue;
      return found(
          VerifyDifference::kBytes, pair,
          text("the samples of rank ", rank, " are the same ones, but the dataset gave other values"),
          "what the dataset does to its samples (augmentation) draws from a generator that is not the "
          "loader's, as data::worker_generator() is. Or the dataset is another one: random_split with a generator "
          "that no seed was given to, or what cannot be read twice (a pipe).");
    }
  }
  return std::nullopt;
}

// The mean of the shares' losses, by weight where they have one.
double mean_loss(const std::map<int, VerifyShare>& shares) {
  double sum = 0, weights = 0;
  for (const auto& [rank, share] : shares) {
    for (const auto* loss : share.losses) {
      const double weight = loss->weight.value_or(1.0);
      sum += weight > 0 ? weight * loss->value.value_or(NAN) : 0;
      weights += weight;
    }
  }
  return weights > 0 ? sum / weights : 0;
}

std::string number(double value) {
  return core::general_text(value, 6);
}

}  // namespace

std::vector<int64_t> VerifyShare::positions() const {
  std::vector<int64_t> all;
  for (const auto* batch : batches) all.insert(all.end(), batch->positions.begin(), batch->positions.end());
  return all;
}

double VerifyShare::loss() const {
  double sum = 0;
  for (const auto* loss : losses) sum += loss->value.value_or(NAN);
  return sum;
}

VerifyPair pair_of(const VerifyRun& one, const VerifyRun& many, size_t step, double tolerance) {
  return {one, many, step, tolerance, shares_of(one, step), shares_of(many, step)};
}

std::optional<VerifyVerdict> check_samples(const VerifyPair& pair) {
  auto verdict = check_positions(pair);
  return verdict ? verdict : check_bytes(pair);
}

std::optional<VerifyVerdict> check_losses(const VerifyPair& pair, double& worst) {
  const auto& one = pair.shares_of_one;
  const auto& many = pair.shares_of_many;
  const auto with_losses = [](const auto& shares) {
    return std::count_if(shares.begin(), shares.end(), [](const auto& share) { return !share.second.losses.empty(); });
  };
  if (with_losses(one) != with_losses(many)) {
    const double a = mean_loss(one), b = mean_loss(many), far = relative_difference(a, b);
    worst = std::max(worst, far);
    if (far <= pair.tolerance) return std::nullopt;
    return found(VerifyDifference::kLosses, pair,
                 text("the loss is ", number(b), " on ", processes_text(pair.many), " (the mean over the ranks) and ",
                      number(a), " on ", processes_text(pair.one)),
                 cause_of_losses(pair, {}, b != 0 ? std::optional(a / b) : std::nullopt));
  }
  std::vector<int> differing;
  std::optional<double> factor;
  bool one_factor = true;
  for (const auto& [rank, share] : many) {
    const auto other = one.find(rank);
    if (other == one.end()) continue;
    const double far = relative_difference(other->second.loss(), share.loss());
    worst = std::max(worst, far);
    if (far > pair.tolerance) differing.push_back(rank);
    const double own = share.loss() / other->second.loss();
    one_factor = one_factor && std::isfinite(own) && (!factor || std::abs(own - *factor) <= 1e-3 * std::abs(*factor));
    if (!factor) factor = own;
  }
  if (differing.empty()) return std::nullopt;
  const int rank = differing.front();
  return found(
      VerifyDifference::kLosses, pair,
      text("the loss of rank ", rank, "'s batch is ", number(many.at(rank).loss()), " on ", processes_text(pair.many),
           " and ", number(one.at(rank).loss()), " on ", processes_text(pair.one), ", for the same samples"),
      cause_of_losses(pair, differing, one_factor ? factor : std::nullopt));
}

}  // namespace hasten::plan
