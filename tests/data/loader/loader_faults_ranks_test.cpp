// Loaders in real processes: left and destroyed in mid-epoch over and over, and a sample that cannot be read
// on one of the ranks.
#include <gtest/gtest.h>
#include <sys/resource.h>
#include <torch/data/dataloader_options.h>
#include <torch/types.h>

#include <filesystem>
#include <fstream>
#include <iostream>
#include <iterator>

#include "hasten/core/error.h"
#include "hasten/data/loader/loader.h"
#include "support/processes.h"
#include "support/samples.h"
#include "support/sanitizers.h"

namespace hasten::data {
namespace {

using testing::Broken;
using testing::Counting;
using testing::Range;
using torch::data::DataLoaderOptions;
using torch::data::samplers::RandomSampler;
using torch::data::samplers::SequentialSampler;

constexpr int kDestructions = 200;

/// Entries of a folder of /proc/self: threads, open files.
auto count_of(const char* folder) {
  const std::filesystem::directory_iterator entries(std::string("/proc/self/") + folder);
  return std::distance(begin(entries), end(entries));
}

/// Begins an epoch and destroys the loader in its midst, in turn with its pass before it and behind it.
template <class Loader>
void destroy_in_mid_epoch(Loader ours, const process::Process& process, int round) {
  ours.prepare(process, std::make_shared<training::GradientState>());
  auto handle = std::make_optional(std::move(ours));
  auto it = std::make_optional(handle->begin());
  for (int step = 0; step < round % 3; ++step) ++*it;
  if (round % 2 == 0) handle.reset();
  it.reset();
}

HASTEN_PROCESS_CASE(destructions) {
  const process::Process process({.cpu = true});
  const Range dataset(100);
  const auto users = dataset.reads().use_count();
  const auto destroy_all = [&](int round) {
    const auto options = DataLoaderOptions(2).workers(2);
    destroy_in_mid_epoch(loader<RandomSampler>(dataset, options), process, round);
    destroy_in_mid_epoch(loader(dataset, SeedableRandomSampler(100), options), process, round);
    destroy_in_mid_epoch(loader(Counting(100), options), process, round);
  };
  destroy_all(0);  // what libtorch itself starts at first use
  const auto threads = count_of("task"), files = count_of("fd");
  for (int round = 0; round < kDestructions; ++round) destroy_all(round);
  std::cout << "left: " << dataset.reads().use_count() - users << " copies, " << count_of("task") - threads
            << " threads, " << count_of("fd") - files << " files\n";
  process.wait_for_everyone();
  return 0;
}

TEST(LoaderProcesses, TwoHundredDestructionsInMidEpochLeaveNothingBehind) {
  for (const auto& rank : testing::run_processes(2, "destructions")) {
    EXPECT_EQ(rank.exit_code, 0) << rank.output;
    EXPECT_NE(rank.output.find("left: 0 copies, 0 threads, 0 files"), std::string::npos) << rank.output;
  }
}

/// Trains until the sample that cannot be read, says what the loop got, and ends as a program does that does
/// not catch it: rank 0, which serves the store, stays until the others have read the words there.
int train_with_broken(size_t sample) {
  const process::Process process({.cpu = true});
  auto ours = loader<SequentialSampler>(Broken(sample, 200), DataLoaderOptions(2).workers(2));
  ours.prepare(process, std::make_shared<training::GradientState>());
  process.wait_for_everyone();
  std::cout << "in the loop" << std::endl;
  try {
    for ([[maybe_unused]] auto& batch : ours) process.group().all_reduce_(torch::ones({1}));
  } catch (const Error& error) {
    std::cout << "caught: " << error.what() << std::endl;
    throw;
  }
  return 0;
}

// Batches of 2 go round 3 ranks: sample 19 is in the tenth batch, rank 0's, sample 21 in the next one.
HASTEN_PROCESS_CASE(broken_sample_of_rank_0) {
  return train_with_broken(19);
}
HASTEN_PROCESS_CASE(broken_sample_of_rank_1) {
  return train_with_broken(21);
}

/// Each rank's output, all of which must come within 10 seconds of the loop's start.
std::vector<std::string> outputs_within_ten_seconds(const std::string& name) {
  testing::Processes ranks(3, name);
  for (int rank = 0; rank < 3; ++rank) EXPECT_TRUE(ranks.wait_for_output(rank, "in the loop"));
  std::vector<std::string> outputs;
  for (const auto& rank : ranks.wait(std::chrono::seconds(10))) {
    EXPECT_NE(rank.exit_code, -1) << "it did not end";
    outputs.push_back(rank.output);
  }
  return outputs;
}

void expect_everywhere(const std::string& words, const std::vector<std::string>& outputs) {
  for (const auto& output : outputs) {
    const size_t caught = output.find("caught: ");
    ASSERT_NE(caught, std::string::npos) << output;
    EXPECT_NE(output.find(words, caught), std::string::npos) << output;
  }
}

TEST(LoaderProcesses, ABrokenSampleReachesTheLoopOfEveryRankWithItsIndexAndRank) {
  expect_everywhere("[data] rank 1/3: the dataset failed on sample 21 of 200: a hole in the disk",
                    outputs_within_ten_seconds("broken_sample_of_rank_1"));
}

TEST(LoaderProcesses, SoDoesOneOfRank0WhichServesTheStore) {
  expect_everywhere("[data] rank 0/3: the dataset failed on sample 19 of 200: a hole in the disk",
                    outputs_within_ten_seconds("broken_sample_of_rank_0"));
}

/// More threads than there is memory for their stacks.
HASTEN_PROCESS_CASE(no_more_threads) {
  size_t pages = 0;
  std::ifstream("/proc/self/statm") >> pages;
  const rlimit limit{pages * 4096 + (60ul << 20), RLIM_INFINITY};
  setrlimit(RLIMIT_AS, &limit);
  try {
    loader<SequentialSampler>(Range(20), DataLoaderOptions(2).workers(64)).begin();
    std::cout << "no error\n";
  } catch (const UsageError& error) {
    std::cout << "caught: " << error.what() << std::endl;
  }
  return 0;
}

TEST(LoaderProcesses, WorkersThatCannotBeStartedAreAnError) {
  if (testing::kSanitized) GTEST_SKIP() << "a sanitizer's threads take more address space than the limit leaves";
  const auto rank = testing::run_processes(1, "no_more_threads").at(0);

  EXPECT_EQ(rank.exit_code, 0) << rank.output;
  EXPECT_NE(rank.output.find("caught: [data] of workers = 64 the system started "), std::string::npos) << rank.output;
  EXPECT_NE(rank.output.find("Give fewer workers"), std::string::npos) << rank.output;
}

}  // namespace
}  // namespace hasten::data
