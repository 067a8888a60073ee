// The order of the comparison, and its words; see verify_runs.h.
#include "hasten/plan/verify_runs.h"

#include <algorithm>
#include <cmath>

#include "hasten/core/count_text.h"
#include "hasten/core/number.h"
#include "hasten/core/text.h"
#include "plan/verify_step.h"

namespace hasten::plan {
namespace {

using enum VerifyDifference;

// Gradients in two precisions differ by the rounding of every layer, which does not cancel.
constexpr double kExact = 2e-5, kHalf = 2e-2, kUnlike = 1e-1;

double tolerance_of(const VerifyRun& one, const VerifyRun& many) {
  const auto& first = one.ranks.front().precision;
  const auto& second = many.ranks.front().precision;
  if (first != second) return kUnlike;
  return first == "no" ? kExact : kHalf;
}

// Adam makes steps of one size of gradients near zero, so their rounding turns the step round. What this leaves in the
// parameters comes back in the next gradients, larger by up to so much.
constexpr double kGrowth = 1000;
constexpr double kMostDrift = 0.1;

std::string short_text(double number) {
  return core::general_text(number, 2);
}

VerifyVerdict at_step(const VerifyPair& pair, VerifyDifference difference, std::string what, std::string cause) {
  return {.difference = difference,
          .step = static_cast<int64_t>(pair.step),
          .what = std::move(what),
          .cause = std::move(cause)};
}

// Ranks of one run that hold other values than its first.
struct RankDifference {
  int rank = 0;
  DigestDifference digests = {};
};

template <class Part>
std::optional<RankDifference> among_ranks(const VerifyRun& run, double tolerance, const Part& part,
                                          const std::set<std::string>& noise = {}) {
  for (size_t i = 1; i < run.ranks.size(); ++i) {
    const VerifyDigests* mine = part(run.ranks[i]);
    const VerifyDigests* first = part(run.ranks.front());
    if (mine == nullptr || first == nullptr) continue;
    auto difference = compare_digests(*first, *mine, tolerance, nullptr, noise);
    if (difference.any()) return RankDifference{run.ranks[i].rank, std::move(difference)};
  }
  return std::nullopt;
}

std::optional<VerifyVerdict> check_record(const VerifyRun& one, const VerifyRun& many) {
  for (const auto* run : {&one, &many}) {
    if (run->ranks.empty()) {
      return VerifyVerdict{.difference = kNoRecord,
                           .what = text("the run on ", processes_text(*run), " has made no Accelerator"),
                           .cause = "hasten verify records what goes through an Accelerator of the program."};
    }
    if (run->ranks.front().steps.empty()) {
      return VerifyVerdict{
          .difference = kNoRecord,
          .what = text("the run on ", processes_text(*run), " has stepped no prepared optimizer"),
          .cause =
              "an optimizer that was not prepared steps unseen, and with the gradients of one batch of several. "
              "Give it to accelerator.prepare."};
    }
  }
  return std::nullopt;
}

std::optional<VerifyVerdict> check_start(const VerifyRun& one, const VerifyRun& many, double tolerance) {
  if (const auto ranks = among_ranks(
          many, tolerance, [](const VerifyRank& rank) { return rank.has_started ? &rank.parameters : nullptr; })) {
    return VerifyVerdict{.difference = kStart,
                         .what = text("before the first step rank ", ranks->rank, " and rank 0 differ in ",
                                      names_text(ranks->digests, "parameters")),
                         .cause =
                             "they belong to no prepared model, and the ranks have drawn them with other seeds. "
                             "Give their module to accelerator.prepare."};
  }
  const auto difference = compare_digests(one.ranks.front().parameters, many.ranks.front().parameters, tolerance);
  if (!difference.any()) return std::nullopt;
  return VerifyVerdict{.difference = kStart,
                       .what = text("before the first step the runs differ in ", names_text(difference, "parameters")),
                       .cause =
                           "initial values depend on the time, on a device's generator or on the number of "
                           "processes. Seed them: AcceleratorOptions::seed."};
}

// Writes to parameters between two steps.
std::optional<VerifyVerdict> check_writes(const VerifyPair& pair) {
  constexpr double kEqual = 1e-12;
  const auto before_of = [&](const VerifyRank& rank) -> const VerifyDigests* {
    return pair.step < rank.steps.size() ? &rank.steps[pair.step].before : nullptr;
  };
  if (const auto ranks = among_ranks(pair.many, pair.tolerance, before_of)) {
    return at_step(
        pair, kRankParameters,
        text("before it rank ", ranks->rank, " and rank 0 differ in ", names_text(ranks->digests, "parameters")),
        "they were equal behind the step before: the program writes to them on some ranks only.");
  }
  if (pair.step == 0) return std::nullopt;
  const auto wrote = [&](const VerifyRun& run) {
    const auto& steps = run.ranks.front().steps;
    const auto& before = steps[pair.step].before;
    return !before.empty() && compare_digests(steps[pair.step - 1].parameters, before, kEqual).any();
  };
  if (!wrote(pair.one) && !wrote(pair.many)) return std::nullopt;
  const auto difference = compare_digests(pair.first().before, pair.second().before, pair.tolerance);
  if (!difference.any()) return std::nullopt;
  return at_step(pair, kParameters, text("before it the runs differ in ", names_text(difference, "parameters")),
                 "the program writes to them between its steps: an optimizer that was not prepared, or code of its "
                 "own.");
}

std::optional<VerifyVerdict> check_gradients(const VerifyPair& pair, double& worst) {
  const auto step_of = [&](const VerifyRank& rank) -> const VerifyDigests* {
    return pair.step < rank.steps.size() ? &rank.steps[pair.step].gradients : nullptr;
  };
  if (const auto ranks = among_ranks(pair.many, pair.tolerance, step_of, noise_of(pair.second().gradients))) {
    return at_step(
        pair, kRankGradients,
        text("rank ", ranks->rank, " and rank 0 have other gradients of ", names_text(ranks->digests, "parameters")),
        cause_of_rank_gradients(pair, ranks->digests));
  }
  const auto& first = pair.first().gradients;
  const auto& second = pair.second().gradients;
  const auto difference = compare_digests(first, second, pair.tolerance, nullptr, noise_of(first));
  worst = std::max(worst, difference.any() ? 0 : difference.worst);
  if (!difference.any()) return std::nullopt;
  std::string what = text("gradients of ", names_text(difference, "parameters"));
  if (difference.factor) {
    what += text(" are ", core::fixed_text(*difference.factor, 3), " times those of ", processes_text(pair.one));
  } else {
    what += text(" differ by up to ", short_text(difference.worst), " of their norm");
  }
  return at_step(pair, kGradients, std::move(what), cause_of_gradients(pair, difference));
}

std::optional<VerifyVerdict> check_norm(const VerifyPair& pair) {
  const auto& a = pair.first().norm;
  const auto& b = pair.second().norm;
  if (!a || !b || relative_difference(*a, *b) <= pair.tolerance) return std::nullopt;
  return at_step(pair, kNorm,
                 text("the norm before clipping is ", core::general_text(*b, 6), " on ", processes_text(pair.many),
                      " and ", core::general_text(*a, 6), " on ", processes_text(pair.one)),
                 "gradients are the same: they were clipped before the exchange, or the norm is of one rank's part of "
                 "them. Clip with accelerator.clip_grad_norm_ behind the backward that ends the window.");
}

// Returns the cause of a rate that is `factor` times that of one process.
std::string cause_of_rates(const VerifyPair& pair, double factor) {
  const double scaled = std::sqrt(static_cast<double>(pair.num_ranks()));
  if (pair.step == 0 || relative_difference(factor, scaled) <= 1e-3) {
    return "the program makes it from the number of processes, which changes what is trained. Where that is meant "
           "(scale_lr), this difference is by design.";
  }
  return "a schedule whose length is made from the number of processes (make it from size() of the prepared loader), a "
         "scheduler that moves as often as there are processes (step_per_process), or one that was not given to "
         "accelerator.prepare.";
}

std::optional<VerifyVerdict> check_rates(const VerifyPair& pair) {
  const VerifyStep &a = pair.first(), &b = pair.second();
  for (const auto& [name, rate] : b.rates) {
    const auto other = a.rates.find(name);
    if (other == a.rates.end() || relative_difference(other->second, rate) <= 1e-9) continue;
    return at_step(pair, kRates,
                   text(name, " is ", core::general_text(rate, 6), " on ", processes_text(pair.many), " and ",
                        core::general_text(other->second, 6), " on ", processes_text(pair.one)),
                   cause_of_rates(pair, rate / other->second));
  }
  if (a.skipped != b.skipped) {
    return at_step(pair, kRates,
                   text("the step was skipped on ", processes_text(b.skipped ? pair.many : pair.one), " alone"),
                   "gradients overflowed there, or the program skips steps on what one rank sees.");
  }
  return std::nullopt;
}

std::optional<VerifyVerdict> check_parameters(const VerifyPair& pair, double& worst) {
  const auto before_of = [&](const VerifyRun& run) {
    const auto& rank = run.ranks.front();
    return pair.step == 0 ? &rank.parameters : &rank.steps[pair.step - 1].parameters;
  };
  const auto& first = pair.first().parameters;
  const auto difference = compare_digests(first, pair.second().parameters, pair.tolerance, before_of(pair.one),
                                          noise_of(pair.first().gradients));
  worst = std::max(worst, difference.any() ? 0 : difference.worst);
  if (difference.any()) {
    return at_step(pair, kParameters,
                   text("behind it ", names_text(difference, "parameters"), " differ by up to ",
                        short_text(difference.worst), " of their norm"),
                   cause_of_parameters(pair, difference));
  }
  const auto ranks = among_ranks(pair.many, pair.tolerance, [&](const VerifyRank& rank) -> const VerifyDigests* {
    return pair.step < rank.steps.size() ? &rank.steps[pair.step].parameters : nullptr;
  });
  if (!ranks) return std::nullopt;
  return at_step(
      pair, kRankParameters,
      text("behind it rank ", ranks->rank, " and rank 0 differ in ", names_text(ranks->digests, "parameters")),
      "the ranks step them apart: an optimizer that was not prepared, or a write on some ranks only.");
}

// A bias in front of a batch norm has a gradient of nothing but rounding, of which Adam makes whole steps. The outputs
// stay, but for the running mean, which has the bias in it. Returns the means that differ by no more than such biases.
std::set<std::string> means_behind_noise(const VerifyPair& pair) {
  constexpr double kOfEstimates = 3;
  const auto& one = pair.one.ranks.front().steps;
  const auto& many = pair.many.ranks.front().steps;
  double allowed = 0;
  for (size_t step = 0; step <= pair.step; ++step) {
    double of_biases = 0;
    for (const auto& name : noise_of(one[step].gradients)) {
      const auto a = one[step].parameters.find(name), b = many[step].parameters.find(name);
      if (a != one[step].parameters.end() && b != many[step].parameters.end())
        of_biases += distance(a->second, b->second);
    }
    allowed = std::max(allowed, kOfEstimates * of_biases);
  }
  std::set<std::string> names;
  for (const auto& [name, digest] : pair.first().buffers) {
    const auto other = pair.second().buffers.find(name);
    const bool is_mean = name.ends_with("running_mean") && other != pair.second().buffers.end();
    if (is_mean && distance(digest, other->second) <= allowed) names.insert(name);
  }
  return names;
}

std::optional<VerifyVerdict> check_buffers(const VerifyPair& pair) {
  const auto difference =
      compare_digests(pair.first().buffers, pair.second().buffers, pair.tolerance, nullptr, means_behind_noise(pair));
  if (!difference.any()) return std::nullopt;
  return at_step(pair, kBuffers,
                 text("behind it ", names_text(difference, "buffers"), " differ by up to ",
                      short_text(difference.worst), " of their norm"),
                 cause_of_buffers(pair));
}

std::optional<VerifyVerdict> check_step(const VerifyPair& pair, VerifyVerdict& so_far) {
  if (auto samples = check_samples(pair)) return samples;
  if (auto writes = check_writes(pair)) return writes;
  if (pair.first().optimizer == 0 && pair.first().losses.empty() && pair.second().losses.empty()) {
    return at_step(pair, kLosses, "no backward before it went through the Accelerator",
                   "loss.backward() is not divided by the batches of a window, and its gradients are not waited for. "
                   "Call accelerator.backward(loss).");
  }
  if (auto losses = check_losses(pair, so_far.losses)) return losses;
  if (auto gradients = check_gradients(pair, so_far.gradients)) return gradients;
  if (auto norm = check_norm(pair)) return norm;
  if (auto rates = check_rates(pair)) return rates;
  if (auto parameters = check_parameters(pair, so_far.parameters)) return parameters;
  return check_buffers(pair);
}

// Batches of a run's ranks, up to what its recorder saw.
int64_t batches_of(const VerifyRun& run) {
  int64_t count = 0;
  for (const auto& rank : run.ranks) {
    for (const auto& step : rank.steps) count += static_cast<int64_t>(step.batches.size());
  }
  return count;
}

size_t least_steps(const VerifyRun& run) {
  size_t least = run.ranks.front().steps.size();
  for (const auto& rank : run.ranks) least = std::min(least, rank.steps.size());
  return least;
}

constexpr const char* kLeftAlone =
    "a rank left its loop before the others: a break on what one rank sees, or a loader "
    "that was not prepared. Decide together: set_trigger and check_trigger.";

std::optional<VerifyVerdict> check_num_steps(const VerifyRun& one, const VerifyRun& many) {
  const size_t of_one = least_steps(one), of_many = least_steps(many);
  for (const auto& rank : many.ranks) {
    if (rank.steps.size() == of_many) continue;
    return VerifyVerdict{
        .difference = kNumSteps,
        .step = static_cast<int64_t>(of_many),
        .what = text("some ranks made ", count_text(of_many, "step"), ", rank ", rank.rank, " made ",
                     rank.steps.size()),
        .cause = kLeftAlone};
  }
  if (of_one == of_many) return std::nullopt;
  return VerifyVerdict{.difference = kNumSteps,
                       .step = static_cast<int64_t>(std::min(of_one, of_many)),
                       .what = text(processes_text(one), " made ", count_text(of_one, "step"), " of ",
                                    count_text(batches_of(one), "batch"),
                                    " and ", processes_text(many), " ", of_many, " of ", batches_of(many)),
                       .cause =
                           "the length of the loop depends on the number of processes: a loader that was not "
                           "prepared, a number of steps made from it, or an early end."};
}

}  // namespace

VerifyVerdict compare_runs(const VerifyRun& one, const VerifyRun& many, const VerifyRunsOptions& options) {
  if (auto record = check_record(one, many)) return *record;
  const double tolerance = options.tolerance.value_or(tolerance_of(one, many));
  VerifyVerdict verdict;
  const auto ended = [&verdict](VerifyVerdict found) {
    found.num_steps = verdict.num_steps;
    found.losses = verdict.losses;
    found.gradients = verdict.gradients;
    found.parameters = verdict.parameters;
    return found;
  };
  if (auto start = check_start(one, many, tolerance)) return ended(*std::move(start));
  const size_t num_steps = std::min(least_steps(one), least_steps(many));
  for (size_t step = 0; step < num_steps; ++step) {
    // A wider tolerance holds such rounding as well.
    const bool is_exact = !options.tolerance && tolerance == kExact;
    const double drift = is_exact && verdict.parameters > 0.1 * tolerance ? kGrowth * verdict.parameters : 0;
    if (drift > kMostDrift) {
      verdict.num_drifted = static_cast<int64_t>(num_steps - step);
      return verdict;
    }
    const double own = tolerance * std::sqrt(static_cast<double>(step + 1));
    const auto pair = pair_of(one, many, step, std::max(own, drift));
    if (auto found = check_step(pair, verdict)) return ended(*std::move(found));
    ++verdict.num_steps;
  }
  if (auto found = check_num_steps(one, many)) return ended(*std::move(found));
  return verdict;
}

std::optional<VerifyVerdict> find_rank_that_left(const VerifyRun& run) {
  for (const auto& left : run.ranks) {
    if (!left.has_ended) continue;
    for (const auto& other : run.ranks) {
      if (other.has_ended || other.num_begun <= left.num_begun) continue;
      return VerifyVerdict{.difference = kNumSteps,
                           .step = left.num_begun,
                           .what = text("rank ", left.rank, " ended after ", count_text(left.num_begun, "step"),
                                        ", rank ",
                                        other.rank, " began another"),
                           .cause = kLeftAlone};
    }
  }
  return std::nullopt;
}

std::string verify_text(const VerifyVerdict& verdict, const VerifyRun& one, const VerifyRun& many) {
  if (verdict.same()) {
    const std::string drifted = verdict.num_drifted == 0
                                    ? ""
                                    : text("; the ", verdict.num_drifted,
                                           " behind them are not compared: the optimizer has made rounding so large "
                                           "that it would hide a mistake");
    return text("hasten verify: ", verdict.num_steps, verdict.num_steps == 1 ? " step" : " steps", " on ",
                one.world_size(), " and on ", many.world_size(), many.world_size() == 1 ? " process" : " processes",
                " are the same: losses to ", short_text(verdict.losses), ", gradients to ",
                short_text(verdict.gradients), ", parameters to ", short_text(verdict.parameters), drifted, "\n");
  }
  std::string words = "hasten verify: ";
  if (verdict.step) words += text("step ", *verdict.step, " differs: ");
  words += verdict.what + "\n";
  if (!verdict.cause.empty()) words += text("  ", verdict.cause, "\n");
  return words;
}

}  // namespace hasten::plan
