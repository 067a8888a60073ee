// Survive from end to end: ranks die at each place of a training, and its end is that of the undisturbed run.
#include "accelerator/survived_program.h"

namespace hasten::survived {
namespace {

using ::testing::HasSubstr;

HASTEN_PROCESS_CASE(survived_program) {
  return run_program();
}

TEST(Survive, EachPlaceOfARankThatDiesEndsAsTheUndisturbedRun) {
  const std::string expected = undisturbed("");

  // Rank 0 serves the store; two die at once; a newcomer dies; a step is made on one rank alone.
  expect_same_end(run_survived("", "1@forward:5,0@backward:9,2@optimizer:14,1@behind_step:3"), expected, "a step");
  expect_same_end(run_survived("", "0@main:1,1@prepared:1,2@data:40,0@prepared:1,2@evaluation:2,1@evaluation:13"),
                  expected, "start, data and evaluation");
}

TEST(Survive, RandomKillsOverSharedMemoryAndGloo) {
  for (const std::string backend : {"", "gloo"}) {
    const std::string expected = undisturbed(backend);

    const Ended ended = run_survived(backend, "", "6:" + std::to_string(backend.size()));

    expect_same_end(ended, expected, "backend " + backend);
  }
}

TEST(Survive, AccumulationWorkersAndSeveralOptimizersToo) {
  expect_same_end(run_survived("accumulates workers", "1@backward:4,0@optimizer:9,2@forward:22"),
                  undisturbed("accumulates workers"), "accumulation");
  const std::string gan = undisturbed("gan");
  expect_same_end(run_survived("gan", "1@between:4,0@behind_first:7,2@optimizer:9"), gan, "gan");
  // The state that an optimizer has made in its first step goes with that step.
  expect_same_end(run_survived("gan", "1@behind_first:1"), gan, "the first step of a gan");
}

TEST(Survive, SavesThatDeathsCutOffAreWholeOrNotThereAndAllComeToBe) {
  const std::string expected = undisturbed("saves");
  EXPECT_THAT(expected, HasSubstr("checkpoint_13 whole 60 13"));

  // Before a save, in each part of it and behind it. Rank 0 makes and commits the folder.
  expect_same_end(run_survived("saves", "1@evaluation:5,0@save:2,2@writing:2,1@saved:3,0@saved:1"), expected, "before");
  expect_same_end(run_survived("saves", "0@writing:1,1@writing:2,0@committing:2,2@committing:4,1@save:6"), expected,
                  "during");
}

// As a process leaves that ends before the others have the name.
TEST(Survive, AFolderThatNoOtherRankKnowsIsRemovedWhenTheyHaveMet) {
  expect_same_end(run_survived("saves leaves", "0@forward:5"), undisturbed("saves leaves"), "leaves");
}

TEST(Survive, AFolderOfAnotherRunThatSavesIntoTheSamePlaceStays) {
  const std::string expected = undisturbed("beside");
  EXPECT_THAT(expected, HasSubstr("another run's save: 1"));

  expect_same_end(run_survived("beside", "0@forward:5"), expected, "beside");
}

TEST(Survive, SavesInTheBackgroundToo) {
  const std::string expected = undisturbed("background");
  EXPECT_THAT(expected, ::testing::StartsWith("next 23\n")) << "none is torn";

  expect_same_end(run_survived("background", "1@save:2,0@saved:4,2@writing:6,0@writing:3,1@backward:29,0@committing:2"),
                  expected, "background");
  expect_same_end(run_survived("background", "", "6:5"), expected, "background, random");
}

TEST(Survive, RandomKillsOfARunThatSaves) {
  expect_same_end(run_survived("saves", "", "6:3"), undisturbed("saves"), "saves");
}

TEST(Survive, ARankInTheMainProcesssPlaceGoesOnWithItsTrackedRun) {
  const std::string expected = undisturbed("tracks");
  EXPECT_THAT(expected, ::testing::StartsWith("a run\nstep 0 "));
  EXPECT_THAT(expected, HasSubstr("\nstep 59 "));
  EXPECT_THAT(expected, HasSubstr("\nall shown\n"));

  expect_same_end(run_survived("tracks", "0@forward:5,1@optimizer:9,0@optimizer:14,0@evaluation:11"), expected,
                  "tracked");
}

TEST(Survive, AStepThatCatchesTheErrorIsDoneAgainAsWell) {
  expect_same_end(run_survived("swallows", "1@forward:5"), undisturbed("swallows"), "swallows");
}

TEST(Survive, ARankThatFailsAtOneStepAgainAndAgainEndsTheRun) {
  const Ended ended = run_survived("", "1@step_17:1!");

  EXPECT_EQ(ended.result.exit_code, 1);
  EXPECT_THAT(ended.result.err, HasSubstr("rank 1 has ended (exit code 1) behind step 16 and is replaced, 2 of 60"));
  EXPECT_THAT(ended.result.err, HasSubstr("is not replaced: it has ended 3 times at step 16"));
}

TEST(Survive, UsedUpReplacementsEndTheRunWithItsFailure) {
  const Ended ended = run_survived("", "1@forward:5,2@forward:9", "", 1);

  EXPECT_EQ(ended.result.exit_code, 128 + SIGKILL);
  EXPECT_THAT(ended.result.err, HasSubstr("is not replaced: the 1 of --survive were used up"));
  EXPECT_THAT(ended.result.err, HasSubstr("rank 2 of 3 failed first: killed by SIGKILL"));
}

TEST(Survive, WhatCannotBeSurvivedIsRefusedAtTheStart) {
  for (const auto& [program, words] :
       {std::pair("shards", "sharding (ZeRO, FSDP, DeepSpeed)"), std::pair("messages", "a message to rank"),
        std::pair("saves_before", "save_state before the ranks have met"),
        std::pair("local_sgd", "local_sgd under hasten launch --survive"),
        std::pair("plain", "a backward before the ranks have met")}) {
    const Ended ended = run_survived(program);

    EXPECT_EQ(ended.result.exit_code, 2) << program << ended.result.err;
    EXPECT_THAT(ended.result.err, HasSubstr(words)) << program;
  }
}

// The pretend device (tests/support/pretend) is there but in builds with a sanitizer or CUDA.
TEST(Survive, TrainingOnADeviceIsRefusedAtTheStart) {
  const auto device = std::filesystem::read_symlink("/proc/self/exe").parent_path() / "libhasten_pretend_device.so";
  if (!std::filesystem::exists(device)) GTEST_SKIP() << "this build has no " << device;
  const Ended ended = run_survived("", "", "", 60, {"/usr/bin/env", "LD_PRELOAD=" + device.string()});

  EXPECT_EQ(ended.result.exit_code, 2) << ended.result.err;
  EXPECT_THAT(ended.result.err, HasSubstr("hasten launch --survive does not go with\n  a device"));
}

}  // namespace
}  // namespace hasten::survived
