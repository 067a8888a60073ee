// The comparison of two records, from records that are made here.
#include "hasten/plan/verify_runs.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cmath>
#include <limits>

#include "hasten/core/error.h"

namespace hasten::plan {
namespace {

using ::testing::HasSubstr;
using ::testing::StartsWith;
using enum VerifyDifference;

VerifyDigest digest(double norm, double part = 0.5) {
  return {norm, {norm * part, -norm * part, norm, norm * 0.1}};
}

VerifyDigest times(VerifyDigest digest, double factor) {
  digest.norm *= factor;
  for (double& product : digest.products) product *= factor;
  return digest;
}

VerifyDigests net(double factor = 1) {
  return {{"conv.weight", times(digest(2.0), factor)},
          {"conv.bias", times(digest(0.5, 0.2), factor)},
          {"head.weight", times(digest(1.0, 0.9), factor)}};
}

VerifyStep step_of(int first_share, int num_shares, int64_t number) {
  VerifyStep step;
  for (int share = first_share; share < first_share + num_shares; ++share) {
    const int64_t first = 10 * number + 2 * share;
    step.batches.push_back({share, true, {first, first + 1}, "b" + std::to_string(first)});
    step.losses.push_back({share, 0.7 + 0.01 * share, {}, "g" + std::to_string(first)});
  }
  step.gradients = net(0.1);
  step.before = net(1 + 0.01 * static_cast<double>(number));
  step.parameters = net(1 + 0.01 * static_cast<double>(number + 1));
  step.buffers = {{"norm.running_mean", digest(0.1)}};
  step.rates = {{"group 0 lr", 0.1}};
  return step;
}

VerifyRank rank_of(int rank, int world_size, int num_shares, bool whole) {
  VerifyRank one{.rank = rank, .world_size = world_size, .num_shares = num_shares, .whole = whole, .has_started = true};
  one.parameters = net();
  for (int64_t step = 0; step < 3; ++step) {
    one.steps.push_back(step_of(rank, num_shares, step));
    if (whole) one.steps.back().losses = {{0, 0.705, {}, "g"}};
  }
  return one;
}

/// One process with the shares of two ranks.
VerifyRun one_process(bool whole = false) {
  return {{rank_of(0, 1, 2, whole)}};
}

VerifyRun two_processes() {
  return {{rank_of(0, 2, 1, false), rank_of(1, 2, 1, false)}};
}

std::vector<VerifyStep*> steps_of(VerifyRun& run, size_t step) {
  std::vector<VerifyStep*> steps;
  for (auto& rank : run.ranks) steps.push_back(&rank.steps[step]);
  return steps;
}

TEST(VerifyRuns, EqualRunsAreTheSameInOneLine) {
  const auto verdict = compare_runs(one_process(), two_processes());

  EXPECT_TRUE(verdict.same());
  EXPECT_EQ(verify_text(verdict, one_process(), two_processes()),
            "hasten verify: 3 steps on 1 and on 2 processes are the same: losses to 0, gradients to 0, parameters to "
            "0\n");
}

TEST(VerifyRuns, RoundingIsNoDifferenceAndIsSaid) {
  auto many = two_processes();
  for (auto* step : steps_of(many, 1)) step->gradients = net(0.1 * (1 + 1e-6));

  const auto verdict = compare_runs(one_process(), many);

  EXPECT_TRUE(verdict.same());
  EXPECT_NEAR(verdict.gradients, 1e-6, 1e-7);
}

TEST(VerifyRuns, ToleranceGrowsByTheRootOfTheStep) {
  auto many = two_processes();
  for (auto* step : steps_of(many, 2)) step->gradients = net(0.1 * (1 + 3e-5));
  auto earlier = two_processes();
  for (auto* step : steps_of(earlier, 0)) step->gradients = net(0.1 * (1 + 3e-5));

  EXPECT_TRUE(compare_runs(one_process(), many).same());
  EXPECT_EQ(compare_runs(one_process(), earlier).difference, kGradients);
}

// Parameters differ by little of their change, and the next gradients by more.
TEST(VerifyRuns, RoundingThatTheOptimizerMakesLargerEndsTheComparison) {
  const auto drifted = [](double parameters, double gradients) {
    auto many = two_processes();
    for (auto* step : steps_of(many, 0)) step->parameters = net(1.01 + parameters);
    for (auto* step : steps_of(many, 1)) step->gradients = net(0.1 * (1 + gradients));
    return compare_runs(one_process(), many);
  };

  EXPECT_TRUE(drifted(4e-5, 2e-3).same());
  EXPECT_EQ(drifted(4e-5, 6e-2).difference, kGradients);
  auto one = one_process(), many = two_processes();
  for (auto* step : steps_of(many, 0)) step->parameters = net(1.011);
  one.ranks[0].parameters = net(0.5), many.ranks[0].parameters = net(0.5), many.ranks[1].parameters = net(0.5);
  const auto verdict = compare_runs(one, many);
  EXPECT_TRUE(verdict.same());
  EXPECT_EQ(verdict.num_drifted, 2);
  EXPECT_THAT(verify_text(verdict, one, many), HasSubstr("the 2 behind them are not compared"));
}

TEST(VerifyRuns, HalfPrecisionOnOneSideHasAWiderTolerance) {
  auto many = two_processes();
  for (auto* step : steps_of(many, 0)) step->gradients = net(0.1 * (1 + 1e-3));

  EXPECT_EQ(compare_runs(one_process(), many).difference, kGradients);
  for (auto& rank : many.ranks) rank.precision = "bf16";
  EXPECT_TRUE(compare_runs(one_process(), many).same());
  EXPECT_FALSE(compare_runs(one_process(), many, {.tolerance = 1e-4}).same());
  for (auto* step : steps_of(many, 0)) step->gradients = net(0.1 * (1 + 5e-2));
  EXPECT_TRUE(compare_runs(one_process(), many).same());
  auto one = one_process();
  one.ranks[0].precision = "bf16";
  EXPECT_EQ(compare_runs(one, many).difference, kGradients) << "one precision on both sides";
  many.ranks[0].steps[0].gradients["conv.bias"] = many.ranks[1].steps[0].gradients["conv.bias"] = digest(0.05, 0.7);
  EXPECT_THAT(compare_runs(one_process(), many).cause, HasSubstr("compute in float32 and bf16"));
}

TEST(VerifyRuns, EqualSamplesOnAllRanksAreALoaderThatWasNotPrepared) {
  auto many = two_processes();
  many.ranks[1].steps[0].batches = many.ranks[0].steps[0].batches;
  many.ranks[1].steps[0].batches[0].share = 1;
  for (auto* step : steps_of(many, 0)) step->batches[0].is_prepared = false;

  const auto verdict = compare_runs(one_process(), many);

  EXPECT_EQ(verdict.difference, kSamples);
  EXPECT_EQ(verdict.step, 0);
  EXPECT_EQ(verdict.what, "all 2 ranks have the same samples (0, 1)");
  EXPECT_THAT(verdict.cause, HasSubstr("the loader was not prepared"));
}

TEST(VerifyRuns, OtherSamplesAreToldFromOnesSharedOutOtherwise) {
  auto others = two_processes(), swapped = two_processes();
  others.ranks[1].steps[1].batches[0].positions = {40, 41};
  std::swap(swapped.ranks[0].steps[1].batches[0].positions, swapped.ranks[1].steps[1].batches[0].positions);

  const auto first = compare_runs(one_process(), others), second = compare_runs(one_process(), swapped);

  EXPECT_EQ(first.difference, kSamples);
  EXPECT_EQ(first.step, 1);
  EXPECT_EQ(first.what, "rank 1 has samples 40, 41; one process: 12, 13");
  EXPECT_THAT(first.cause, HasSubstr("random_split"));
  EXPECT_THAT(second.cause, HasSubstr("shared out among the ranks in another way"));
}

TEST(VerifyRuns, OtherBytesOfEqualSamplesAreAugmentation) {
  auto many = two_processes();
  many.ranks[1].steps[0].batches[0].bytes = "other";

  const auto verdict = compare_runs(one_process(), many);

  EXPECT_EQ(verdict.difference, kBytes);
  EXPECT_THAT(verdict.cause, HasSubstr("data::worker_generator()"));
}

TEST(VerifyRuns, ALossOfOneRankIsABranchOnTheRank) {
  auto many = two_processes();
  many.ranks[1].steps[0].losses[0].value = 0.9;

  const auto verdict = compare_runs(one_process(), many);

  EXPECT_EQ(verdict.difference, kLosses);
  EXPECT_EQ(verdict.what,
            "the loss of rank 1's batch is 0.9 on 2 processes and 0.71 on one process, for the same samples");
  EXPECT_THAT(verdict.cause, StartsWith("only rank 1 computes it otherwise"));
}

TEST(VerifyRuns, LossesByOneFactorAreDividedByTheProcesses) {
  auto many = two_processes();
  for (auto& rank : many.ranks) rank.steps[0].losses[0].value = *rank.steps[0].losses[0].value / 2;

  EXPECT_THAT(compare_runs(one_process(), many).cause, HasSubstr("divides the loss by the number of processes"));
}

TEST(VerifyRuns, AnotherGeneratorBeforeALossIsADrawOutOfOrder) {
  auto many = two_processes();
  many.ranks[0].steps[0].losses[0].value = 0.9;
  many.ranks[0].steps[0].losses[0].generator = "other";

  EXPECT_THAT(compare_runs(one_process(), many).cause, StartsWith("before it rank 0 has drawn other random numbers"));
}

TEST(VerifyRuns, SyncBatchNormIsComparedWithWhole) {
  auto many = two_processes();
  for (auto& rank : many.ranks) {
    rank.sync_batch_norm = true;
    rank.steps[0].losses[0].value = 0.9 + 0.1 * rank.rank;
  }

  EXPECT_THAT(compare_runs(one_process(), many).cause, HasSubstr("--whole"));
}

TEST(VerifyRuns, InWholeTheMeanOfTheLossesCounts) {
  EXPECT_TRUE(compare_runs(one_process(true), two_processes()).same());

  auto sum = one_process(true), batch_norm = one_process(true), tokens = one_process(true);
  sum.ranks[0].steps[0].losses[0].value = 2 * 0.705;
  batch_norm.ranks[0].steps[0].losses[0].value = 0.72;
  tokens.ranks[0].steps[0].losses[0].value = 0.72;
  auto without = two_processes();
  for (auto& rank : without.ranks) rank.buffers.clear();
  auto with = two_processes();
  for (auto& rank : with.ranks) rank.buffers = {{"norm.running_mean", digest(0.0)}};

  EXPECT_THAT(compare_runs(sum, without).cause, HasSubstr("the loss is a sum over the batch"));
  EXPECT_THAT(compare_runs(batch_norm, with).cause, HasSubstr("convert_sync_batchnorm"));
  EXPECT_THAT(compare_runs(tokens, without).cause, HasSubstr("{.weight = n}"));
}

TEST(VerifyRuns, InWholeDrawsOfEachBatchAreNoMistake) {
  auto many = two_processes();
  for (auto* step : steps_of(many, 0)) step->losses[0].value = 0.9, step->losses[0].drew = true;

  EXPECT_THAT(compare_runs(one_process(true), many).cause, HasSubstr("draws random numbers for each batch"));
}

TEST(VerifyRuns, GradientsByOneFactorAreNamedByIt) {
  auto twice = two_processes(), half = two_processes();
  for (auto* step : steps_of(twice, 0)) step->gradients = net(0.2);
  for (auto* step : steps_of(half, 0)) step->gradients = net(0.05);

  const auto sum = compare_runs(one_process(), twice), quotient = compare_runs(one_process(), half);

  EXPECT_EQ(sum.difference, kGradients);
  EXPECT_EQ(sum.what, "gradients of all 3 parameters are 2.000 times those of one process");
  EXPECT_THAT(sum.cause, StartsWith("a sum over the ranks in the place of a mean"));
  EXPECT_THAT(quotient.cause, HasSubstr("divided by the number of processes twice"));
}

TEST(VerifyRuns, OneElementThatChangesAProductIsSeen) {
  auto many = two_processes();
  for (auto* step : steps_of(many, 0)) step->gradients["conv.bias"].products[2] += 0.001;

  const auto verdict = compare_runs(one_process(), many);

  EXPECT_EQ(verdict.difference, kGradients);
  EXPECT_THAT(verdict.what, HasSubstr("gradients of conv.bias differ"));
}

TEST(VerifyRuns, GradientsThatAreNothingButRoundingAreLeftOut) {
  auto one = one_process(), many = two_processes();
  one.ranks[0].steps[0].gradients["conv.bias"] = digest(1e-8);
  for (auto* step : steps_of(many, 0)) {
    step->gradients["conv.bias"] = digest(3e-8, -0.7);
    // Adam makes a full step of it.
    step->parameters["conv.bias"] = digest(0.6, 0.2);
  }
  for (auto* run : {&one, &many}) {
    for (auto& rank : run->ranks) rank.steps.resize(1);
  }

  EXPECT_TRUE(compare_runs(one, many).same());
  one.ranks[0].steps[0].gradients["conv.bias"] = digest(1e-4);
  for (auto* step : steps_of(many, 0)) step->gradients["conv.bias"] = digest(1.3e-4, -0.7);
  EXPECT_TRUE(compare_runs(one, many).same()) << "a bias far below its weight";
}

TEST(VerifyRuns, GradientsOfRanksThatDifferAreNotExchanged) {
  auto all = two_processes(), others = two_processes();
  all.ranks[1].steps[0].gradients = net(0.3);
  for (auto& rank : others.ranks) {
    rank.unprepared = {"head.weight"};
    rank.steps[0].gradients["head.weight"] = digest(0.1 + 0.1 * rank.rank);
  }

  const auto inside = compare_runs(one_process(), all), unprepared = compare_runs(one_process(), others);

  EXPECT_EQ(inside.difference, kRankGradients);
  EXPECT_THAT(inside.cause, HasSubstr("no_sync"));
  EXPECT_EQ(unprepared.what, "rank 1 and rank 0 have other gradients of head.weight");
  EXPECT_THAT(unprepared.cause, HasSubstr("belong to no prepared model"));
}

TEST(VerifyRuns, AZeroGradOfTheProgramsOwnIsSaid) {
  auto one = one_process(), many = two_processes();
  one.ranks[0].steps[0].changed = true;
  for (auto* step : steps_of(many, 0)) step->gradients = net(0.17);

  EXPECT_THAT(compare_runs(one, many).cause, HasSubstr("between the backwards of a window"));
}

TEST(VerifyRuns, ParametersThatChangeInsideAWindowAreSaidBeforeTheirConsequences) {
  auto one = one_process(), many = two_processes();
  one.ranks[0].steps[0].wrote = true;
  many.ranks[1].steps[0].losses[0].value = 0.9;

  const auto verdict = compare_runs(one, many);

  EXPECT_EQ(verdict.difference, kLosses);
  EXPECT_THAT(verdict.cause, HasSubstr("changes parameters between the backwards of a step"));
}

TEST(VerifyRuns, GradientsOfBatchNormsAloneAskForSyncBatchNorm) {
  auto one = one_process(true), many = two_processes();
  for (auto* run : {&one, &many}) {
    for (auto& rank : run->ranks) {
      rank.buffers = {{"norm.running_mean", digest(0.1)}};
      rank.steps[0].gradients["norm.weight"] = digest(run == &one ? 0.3 : 0.4);
    }
  }

  const auto verdict = compare_runs(one, many);

  EXPECT_EQ(verdict.difference, kGradients);
  EXPECT_THAT(verdict.what, StartsWith("gradients of norm.weight differ"));
  EXPECT_THAT(verdict.cause, HasSubstr("convert_sync_batchnorm"));
}

TEST(VerifyRuns, NormsRatesAndSkippedStepsComeBehindGradients) {
  auto one = one_process(), norm = two_processes(), rate = two_processes(), skip = two_processes();
  one.ranks[0].steps[0].norm = 1.0;
  for (auto* step : steps_of(norm, 0)) step->norm = 1.5;
  for (auto* step : steps_of(rate, 0)) step->rates["group 0 lr"] = 0.2;
  for (auto* step : steps_of(skip, 1)) step->skipped = true;

  EXPECT_EQ(compare_runs(one, norm).difference, kNorm);
  EXPECT_EQ(compare_runs(one, rate).what, "group 0 lr is 0.2 on 2 processes and 0.1 on one process");
  EXPECT_THAT(compare_runs(one, rate).cause, HasSubstr("the number of processes"));
  for (auto* step : steps_of(rate, 0)) step->rates["group 0 lr"] = 0.1;
  for (auto* step : steps_of(rate, 1)) step->rates["group 0 lr"] = 0.1 * std::sqrt(2.0);
  EXPECT_THAT(compare_runs(one, rate).cause, HasSubstr("scale_lr"));
  for (auto* step : steps_of(rate, 1)) step->rates["group 0 lr"] = 0.15;
  EXPECT_THAT(compare_runs(one, rate).cause, HasSubstr("size() of the prepared loader"));
  EXPECT_EQ(compare_runs(one, skip).what, "the step was skipped on 2 processes alone");
}

TEST(VerifyRuns, ParametersBehindEqualGradientsAreTheOptimizers) {
  auto many = two_processes();
  for (auto* step : steps_of(many, 1)) step->parameters["head.weight"] = digest(1.5, 0.9);

  const auto verdict = compare_runs(one_process(), many);

  EXPECT_EQ(verdict.difference, kParameters);
  EXPECT_EQ(verdict.step, 1);
  EXPECT_THAT(verdict.what, StartsWith("behind it head.weight differ"));
  EXPECT_THAT(verdict.cause, HasSubstr("an optimizer that was not prepared"));
}

TEST(VerifyRuns, RanksThatPartAreNamedWithTheParameter) {
  auto many = two_processes();
  many.ranks[1].steps[2].parameters["conv.bias"] = digest(0.9, 0.2);

  const auto verdict = compare_runs(one_process(), many);

  EXPECT_EQ(verdict.difference, kRankParameters);
  EXPECT_EQ(verdict.step, 2);
  EXPECT_EQ(verdict.what, "behind it rank 1 and rank 0 differ in conv.bias");
}

TEST(VerifyRuns, AWriteBetweenStepsIsToldFromTheStep) {
  auto rank = two_processes(), all = two_processes();
  rank.ranks[1].steps[1].before["conv.bias"] = digest(0.7, 0.2);
  for (auto* step : steps_of(all, 1)) step->before["conv.bias"] = digest(0.7, 0.2);

  const auto on_one = compare_runs(one_process(), rank), on_all = compare_runs(one_process(), all);

  EXPECT_EQ(on_one.difference, kRankParameters);
  EXPECT_EQ(on_one.what, "before it rank 1 and rank 0 differ in conv.bias");
  EXPECT_EQ(on_all.difference, kParameters);
  EXPECT_THAT(on_all.cause, HasSubstr("between its steps"));
}

TEST(VerifyRuns, StepsWithoutABackwardOfTheAcceleratorsAreSaid) {
  auto one = one_process(), many = two_processes();
  one.ranks[0].steps[0].losses.clear();
  for (auto* step : steps_of(many, 0)) step->losses.clear();

  EXPECT_THAT(compare_runs(one, many).cause, HasSubstr("Call accelerator.backward(loss)"));
}

TEST(VerifyRuns, RunningMeansBehindABiasOfNoiseAreLeftOut) {
  auto one = one_process(), many = two_processes();
  for (auto* run : {&one, &many}) {
    for (auto& rank : run->ranks) rank.steps[0].gradients["conv.bias"] = digest(1e-9);
  }
  for (auto* step : steps_of(many, 1)) step->buffers["norm.running_mean"] = digest(0.11);
  EXPECT_EQ(compare_runs(one, many).difference, kBuffers) << "more than the bias explains";
  for (auto* step : steps_of(many, 0)) step->parameters["conv.bias"] = digest(0.6, 0.2);
  EXPECT_TRUE(compare_runs(one, many).same());

  for (auto& rank : one.ranks) rank.steps[1].buffers["norm.running_var"] = digest(1.0);
  for (auto* step : steps_of(many, 1)) step->buffers["norm.running_var"] = digest(1.1);
  EXPECT_THAT(compare_runs(one, many).what, StartsWith("behind it norm.running_var differ"));
}

TEST(VerifyRuns, BuffersComeLast) {
  auto many = two_processes();
  for (auto* step : steps_of(many, 0)) step->buffers["norm.running_mean"] = digest(0.2);

  EXPECT_EQ(compare_runs(one_process(), many).difference, kBuffers);
  EXPECT_THAT(compare_runs(one_process(), many).cause, HasSubstr("buffers follow rank 0"));
}

TEST(VerifyRuns, StartingValuesAreComparedBeforeAllElse) {
  auto many = two_processes(), apart = two_processes();
  for (auto& rank : many.ranks) rank.parameters = net(1.1);
  apart.ranks[1].parameters = net(1.1);

  EXPECT_EQ(compare_runs(one_process(), many).difference, kStart);
  EXPECT_THAT(compare_runs(one_process(), many).cause, HasSubstr("AcceleratorOptions::seed"));
  EXPECT_EQ(compare_runs(one_process(), apart).what,
            "before the first step rank 1 and rank 0 differ in all 3 parameters");
}

TEST(VerifyRuns, OtherNumbersOfStepsNameTheSide) {
  auto fewer = two_processes(), uneven = two_processes();
  for (auto& rank : fewer.ranks) rank.steps.pop_back();
  uneven.ranks[1].steps.pop_back();

  EXPECT_EQ(compare_runs(one_process(), fewer).what, "one process made 3 steps of 6 batches and 2 processes 2 of 4");
  EXPECT_EQ(compare_runs(one_process(), uneven).what, "some ranks made 2 steps, rank 0 made 3");
}

TEST(VerifyRuns, WhatMakesNoStepsIsSaid) {
  auto without = two_processes();
  for (auto& rank : without.ranks) rank.steps.clear();

  EXPECT_THAT(compare_runs({}, two_processes()).what, HasSubstr("has made no Accelerator"));
  EXPECT_THAT(compare_runs(one_process(), without).cause, HasSubstr("an optimizer that was not prepared"));
}

TEST(VerifyRuns, NumbersThatAreNoneAreEqualOnBothSidesAndADifferenceOnOne) {
  const double nan = std::numeric_limits<double>::quiet_NaN();
  auto one = one_process(), many = two_processes();
  one.ranks[0].steps[0].losses[0].value = nan;

  EXPECT_EQ(compare_runs(one, many).difference, kLosses);
  many.ranks[0].steps[0].losses[0].value = nan;
  EXPECT_TRUE(compare_runs(one, many).same());
}

constexpr const char* kOpen = R"({"event":"open","world_size":1,"shares":2,"whole":false,"steps":20,"rank":0})";

TEST(VerifyRecord, LinesOfRanksAreReadAndHalfALineIsLeftOut) {
  const std::string start =
      R"({"event":"start","facts":{"precision":"bf16","shard_stage":2,"sync_batch_norm":true},"unprepared":["w"],)"
      R"("parameters":{"w":[1,2,3,4,5]},"buffers":{},"rank":0})";
  const std::string step =
      R"({"event":"step","step":0,"optimizer":0,"batches":[{"share":1,"prepared":true,"positions":[3,4],"bytes":"a"}],)"
      R"("losses":[{"share":1,"value":0.5,"generator":"c","drew":true,"weight":8}],"gradients":{"w":[1,1,1,1,1]},"changed":false,"wrote":false,)"
      R"("scale":1,"skipped":false,"rates":{"group 0 lr":0.1},"norm":2,"before":{},"parameters":{},"buffers":{},"rank":0})";

  const auto run = read_verify_run(std::string(kOpen) + "\n" + start + "\n" + step + "\n" + step.substr(0, 40), "r");

  ASSERT_EQ(run.ranks.size(), 1u);
  const auto& rank = run.ranks[0];
  EXPECT_EQ(run.num_shares(), 2);
  EXPECT_EQ(rank.precision, "bf16");
  EXPECT_TRUE(rank.sync_batch_norm);
  EXPECT_EQ(rank.parameters.at("w").products[3], 5);
  ASSERT_EQ(rank.steps.size(), 1u);
  EXPECT_EQ(rank.steps[0].losses[0].weight, 8);
  EXPECT_EQ(rank.steps[0].batches[0].positions, (std::vector<int64_t>{3, 4}));
  EXPECT_EQ(rank.steps[0].norm, 2);
}

TEST(VerifyRecord, ALineThatIsNoEventIsRefusedWithItsNumber) {
  try {
    read_verify_run(std::string(kOpen) + "\n{\"event\":\"start\",\"rank\":0}\n", "a.json");
    FAIL();
  } catch (const DataError& error) {
    EXPECT_THAT(error.what(), HasSubstr("line 2 is no event of a record"));
  }
}

}  // namespace
}  // namespace hasten::plan
