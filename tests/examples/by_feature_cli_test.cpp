// The examples by feature: each is the base program with a few other lines, and each runs.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <filesystem>
#include <fstream>
#include <regex>
#include <string>
#include <vector>

#include "cli/command.h"
#include "support/folder.h"

namespace hasten::test {
namespace {

using ::testing::HasSubstr;
using ::testing::MatchesRegex;
using Lines = std::vector<std::string>;

const std::string kSources = HASTEN_SOURCE_DIR "/examples/by_feature/";
const std::string kPrograms = HASTEN_BINARY_DIR "/examples/all_by_feature";

// The lines of a program without its first comment.
Lines code_of(const std::string& name) {
  std::ifstream file(kSources + name + ".cpp");
  EXPECT_TRUE(file) << name;
  Lines lines;
  for (std::string line; std::getline(file, line);) {
    if (!lines.empty() || line.rfind("//", 0) != 0) lines.push_back(line);
  }
  return lines;
}

// Lines that `other` has and `base` has not, in the order of both: what diff shows with a "+".
size_t added_lines(const Lines& base, const Lines& other) {
  std::vector<std::vector<size_t>> common(base.size() + 1, std::vector<size_t>(other.size() + 1, 0));
  for (size_t i = 0; i < base.size(); ++i) {
    for (size_t j = 0; j < other.size(); ++j) {
      common[i + 1][j + 1] = base[i] == other[j] ? common[i][j] + 1 : std::max(common[i][j + 1], common[i + 1][j]);
    }
  }
  return other.size() - common.back().back();
}

struct Feature {
  const char* name;
  size_t most_added;
};

const std::vector<Feature> kFeatures = {{"automatic_batch_size", 4},
                                        {"automatic_gradient_accumulation", 13},
                                        {"checkpointing", 31},
                                        {"comm_hooks", 5},
                                        {"context_parallel", 18},
                                        {"cross_validation", 24},
                                        {"early_stopping", 9},
                                        {"gan", 34},
                                        {"gradient_accumulation", 4},
                                        {"gradient_accumulation_for_autoregressive_models", 24},
                                        {"local_sgd", 3},
                                        {"metrics", 13},
                                        {"mixed_precision", 6},
                                        {"pipeline_parallel", 4},
                                        {"preemption", 12},
                                        {"profiler", 10},
                                        {"resume", 27},
                                        {"schedule_free", 59},
                                        {"survive", 22},
                                        {"sync_batch_norm", 4},
                                        {"tensor_parallel", 5},
                                        {"three_d", 15},
                                        {"tracking", 13},
                                        {"uneven_inputs", 14},
                                        {"warm_up", 13}};

TEST(ByFeature, EachIsTheBaseWithAFewOtherLines) {
  const Lines base = code_of("base");
  for (const auto& feature : kFeatures) {
    const size_t added = added_lines(base, code_of(feature.name));
    EXPECT_GT(added, 0u) << feature.name;
    EXPECT_LE(added, feature.most_added) << feature.name;
  }
}

TEST(ByFeature, EveryProgramOfTheFolderIsHere) {
  Lines names, known = {"base"};
  for (const auto& entry : std::filesystem::directory_iterator(kSources)) {
    names.push_back(entry.path().stem());
  }
  for (const auto& feature : kFeatures) known.emplace_back(feature.name);

  EXPECT_THAT(names, ::testing::UnorderedElementsAreArray(known));
}

class ByFeatureOnProcesses : public testing::InFolder, public ::testing::WithParamInterface<int> {
 protected:
  static Lines words(const std::string& program, const Lines& arguments = {}) {
    Lines all = {kPrograms, program};
    if (GetParam() > 1) all.insert(all.begin(), {HASTEN_COMMAND, "launch", "-n", std::to_string(GetParam())});
    all.insert(all.end(), arguments.begin(), arguments.end());
    return all;
  }
  // What it prints; it must end well.
  static std::string output(const std::string& program, const Lines& arguments = {}) {
    const CommandResult result = run_command(words(program, arguments), {{"OMP_NUM_THREADS", "1"}});
    EXPECT_EQ(result.exit_code, 0) << result.err;
    return result.out;
  }
};

TEST_P(ByFeatureOnProcesses, TheBaseLearnsAndCountsEachSampleOnce) {
  EXPECT_THAT(output("base"), MatchesRegex("epoch 0: [0-9]+ of 250 right\nepoch 1: [0-9]+ of 250 right\n"
                                           "epoch 2: 2[2-5][0-9] of 250 right\n"));
}

TEST_P(ByFeatureOnProcesses, AccumulationLocalSgdAndWarmUpLearn) {
  EXPECT_THAT(output("mixed_precision"), MatchesRegex("computes in bf16\n(.|\n)*epoch 2: 2[2-5][0-9] of 250 right\n"));
  for (const char* program : {"gradient_accumulation", "local_sgd"}) {
    EXPECT_THAT(output(program), MatchesRegex("(.|\n)*epoch 2: 2[2-5][0-9] of 250 right\n")) << program;
  }
  // The schedule ends with the training, whatever the number of processes.
  EXPECT_THAT(output("warm_up"),
              MatchesRegex("(.|\n)*epoch 2: 2[2-5][0-9] of 250 right, rate (0|[0-9.]+e-[1-9][0-9])\n"));
}

TEST_P(ByFeatureOnProcesses, CommHooksAndSyncBatchNormLearn) {
  for (const char* program : {"comm_hooks", "sync_batch_norm"}) {
    EXPECT_THAT(output(program), MatchesRegex("(.|\n)*epoch 2: 2[2-5][0-9] of 250 right\n")) << program;
  }
}

TEST_P(ByFeatureOnProcesses, CutLayersAndSequencesLearnAsOneProcess) {
  const std::string units = GetParam() == 1 ? "32 of 32 hidden units\n" : "16 of 32 hidden units\n";
  const std::string whole = run_command({kPrograms, "base"}, {{"OMP_NUM_THREADS", "1"}}).out;
  EXPECT_EQ(output("tensor_parallel"), units + whole);
  EXPECT_THAT(output("context_parallel"), MatchesRegex("(.|\n)*epoch 2: (3[6-9][0-9][0-9]|4000) of 4000 right\n"));
}

TEST_P(ByFeatureOnProcesses, StagesLearnAsOneProcess) {
  EXPECT_EQ(output("pipeline_parallel"), run_command({kPrograms, "base"}, {{"OMP_NUM_THREADS", "1"}}).out);
}

// On two processes two stages, on eight two ranks of each axis: as data parallelism alone on as many copies.
TEST_P(ByFeatureOnProcesses, ThreeAxesLearnAsDataParallelismAlone) {
  const std::string stages = std::to_string(GetParam());
  EXPECT_EQ(output("three_d", {stages, "1"}), "32 of 32 hidden units, on the first stage\n" +
                                                  run_command({kPrograms, "base"}, {{"OMP_NUM_THREADS", "1"}}).out);
  if (GetParam() == 1) return;
  const auto all = run_command({HASTEN_COMMAND, "launch", "-n", "8", kPrograms, "three_d"}, {{"OMP_NUM_THREADS", "1"}});
  EXPECT_EQ(all.exit_code, 0) << all.err;
  EXPECT_EQ(all.out, "16 of 32 hidden units, on the first stage\n" + output("base"));
}

TEST_P(ByFeatureOnProcesses, UnevenInputsAreTrainedOnOnce) {
  EXPECT_THAT(output("uneven_inputs"), MatchesRegex("(epoch [0-2]: 2[0-9]+ of 250 right, trained on 1010\n){3}"));
}

TEST_P(ByFeatureOnProcesses, TheBatchSizeIsTheLargestThatFits) {
  EXPECT_THAT(output("automatic_batch_size"), MatchesRegex("batches of 512\nepoch 0(.|\n)*epoch 2: (.|\n)*"));
}

TEST_P(ByFeatureOnProcesses, MetricsAreCountedOverAllRanks) {
  EXPECT_THAT(output("metrics"), MatchesRegex("(.|\n)*epoch 2: accuracy 0.9[0-9]*, top-2 [0-9.]+, F1 0.9[0-9]*\n"));
}

TEST_P(ByFeatureOnProcesses, ResumedInMidEpochItEndsAsWithoutTheStop) {
  const std::string whole = output("base");

  const std::string stopped = output("resume", {"stop", folder_});
  const std::string resumed = output("resume", {"go_on", folder_});

  EXPECT_THAT(stopped, HasSubstr("stopped in epoch"));
  EXPECT_THAT(resumed, HasSubstr("epoch 2"));
  EXPECT_EQ(whole.substr(whole.size() - resumed.size()), resumed);
}

TEST_P(ByFeatureOnProcesses, CheckpointingGoesOnFromTheNewestComplete) {
  const std::string first = output("checkpointing", {folder_});
  const std::string again = output("checkpointing", {folder_});

  EXPECT_THAT(first, HasSubstr("begins"));
  EXPECT_THAT(first, HasSubstr("epoch 2"));
  EXPECT_THAT(again, HasSubstr("goes on at step "));
}

TEST_P(ByFeatureOnProcesses, WithoutAScheduleAndOverFoldsItLearns) {
  EXPECT_THAT(output("schedule_free"), MatchesRegex("(.|\n)*epoch 2: 2[2-5][0-9] of 250 right\n"));
  EXPECT_THAT(output("cross_validation"), MatchesRegex("2[2-5][0-9] of 250 right\n"));
  EXPECT_THAT(output("automatic_gradient_accumulation"),
              MatchesRegex("1 batches of 128 make a step\n2 batches of 64 make a step\n4 batches of 32 make a step\n"
                           "(.|\n)*epoch 5: 2[0-5][0-9] of 250 right\n"));
}

// A sequence of n tokens has n - 1 that follow another; each is known once its successor has been learned.
TEST_P(ByFeatureOnProcesses, AutoregressiveModelsLearnEachToken) {
  const std::string said = output("gradient_accumulation_for_autoregressive_models");
  const std::regex form("(.|\n)*epoch 2: ([0-9]+) of ([0-9]+) right\n");

  std::smatch found;
  ASSERT_TRUE(std::regex_match(said, found, form)) << said;
  EXPECT_GT(std::stod(found[2]), 0.9 * std::stod(found[3]));
}

TEST_P(ByFeatureOnProcesses, EarlyStoppingEndsAllRanksBeforeTheLastEpoch) {
  EXPECT_THAT(output("early_stopping"), MatchesRegex("(.|\n)*stopped in epoch 1?[0-9]: 2[2-5][0-9] of 250 right\n"));
}

TEST_P(ByFeatureOnProcesses, TheProfilerAndTrackersLeaveTheirFiles) {
  output("profiler", {folder_});
  output("tracking", {folder_});

  for (int rank = 0; rank < GetParam(); ++rank) {
    std::ifstream file(path("trace_" + std::to_string(rank) + ".json"));
    const std::string trace(std::istreambuf_iterator<char>(file), {});
    EXPECT_THAT(trace, HasSubstr("aten::addmm"));
  }
  size_t events = 0;
  for (const auto& entry : std::filesystem::recursive_directory_iterator(folder_))
    events += entry.path().filename().string().find("tfevents") != std::string::npos ? 1 : 0;
  EXPECT_GE(events, 1u);
}

TEST_P(ByFeatureOnProcesses, PreemptionEndsInOrderWithTheModelSaved) {
  Command command(words("preemption", {path("model.pt")}), {{"OMP_NUM_THREADS", "1"}});
  EXPECT_THAT(command.read_line(), HasSubstr("epoch 0"));

  kill(command.pid(), GetParam() == 1 ? SIGTERM : SIGUSR1);

  const CommandResult result = command.finish();
  EXPECT_EQ(result.exit_code, 0) << result.err;
  EXPECT_THAT(result.out, MatchesRegex("(.|\n)*stopped in epoch [0-9]+\n"));
  EXPECT_TRUE(std::filesystem::exists(path("model.pt")));
}

// Rank 1 kills itself in its 30th batch. Where nothing replaces it, the program is the plain loop.
TEST_P(ByFeatureOnProcesses, SurviveEndsAsIfNoProcessHadDied) {
  if (GetParam() == 1) {
    EXPECT_THAT(output("survive"), HasSubstr("150 steps; the first weight is "));
    return;
  }
  const auto survive = [](const Lines& arguments) {
    Lines all = {HASTEN_COMMAND, "launch", "-n", "2", "--survive", "1", kPrograms, "survive"};
    all.insert(all.end(), arguments.begin(), arguments.end());
    return run_command(all, {{"OMP_NUM_THREADS", "1"}});
  };

  const CommandResult undisturbed = survive({}), killed = survive({"30"});

  EXPECT_EQ(undisturbed.exit_code, 0) << undisturbed.err;
  EXPECT_EQ(killed.exit_code, 0) << killed.err;
  EXPECT_THAT(undisturbed.out, HasSubstr("75 steps; the first weight is "));
  EXPECT_EQ(killed.out, undisturbed.out);
  EXPECT_THAT(killed.err, HasSubstr("rank 1 has ended (killed by SIGKILL) behind step 29 and is replaced, 1 of 1"));
}

// The discriminator is ahead at first; then the generator learns, and fewer points are told apart.
TEST_P(ByFeatureOnProcesses, TheGanTrainsBothNetworks) {
  const std::string said = output("gan");
  const std::regex form("epoch 0: ([0-9]+) of 500 told apart\n[^\n]*\nepoch 2: ([0-9]+) of 500 told apart\n");

  std::smatch found;
  ASSERT_TRUE(std::regex_match(said, found, form)) << said;
  EXPECT_GT(std::stoi(found[1]), 400);
  EXPECT_LT(std::stoi(found[2]), std::stoi(found[1]));
}

INSTANTIATE_TEST_SUITE_P(Processes, ByFeatureOnProcesses, ::testing::Values(1, 2));

}  // namespace
}  // namespace hasten::test
