// Hosts with folders of their own, where a run has ended while they renamed the folders of a save.
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <torch/torch.h>

#include <cstdlib>
#include <filesystem>
#include <iostream>

#include "checkpoint/training_run.h"
#include "hasten/checkpoint/checkpoints.h"
#include "hasten/core/text.h"
#include "support/folder.h"
#include "support/processes.h"
#include "support/ranks.h"

namespace hasten {
namespace {

using ::testing::HasSubstr;
using testing::run_ranks;
namespace fs = std::filesystem;

using UnsharedFolders = testing::InFolder;

/// The rank on a host of its own.
process::Process alone_on_host(const process::Process& process) {
  process::RankInfo identity = process.identity();
  identity.local_rank = 0;
  identity.local_world_size = 1;
  identity.node_rank = identity.rank;
  return process::Process(identity, process.group(), process.device());
}

/// Two saves, of steps 1 and 2, on two hosts. Each rank's project_dir is its host's.
void save_twice(const std::function<std::string(int)>& folder_of) {
  run_ranks(2, [&](process::Process& process) {
    TrainingRun run(alone_on_host(process), {2}, folder_of(process.rank()));
    for (int i = 0; i < 2; ++i) {
      run.train(1);
      run.accelerator.save_state().wait();
    }
    process.wait_for_everyone();
  });
}

TEST_F(UnsharedFolders, ResumeTakesTheNewestSaveThatAllHostsHave) {
  const auto folder_of = [&](int rank) { return path(text("host", rank)); };
  const auto resumed_step = [&] {
    int64_t step = -1;
    run_ranks(2, [&](process::Process& process) {
      TrainingRun run(alone_on_host(process), {2}, folder_of(process.rank()), 9);
      const auto resumed = run.accelerator.resume();
      if (process.rank() == 1) step = resumed ? resumed->step : 0;
      process.wait_for_everyone();
    });
    return step;
  };
  save_twice(folder_of);
  EXPECT_EQ(resumed_step(), 2);

  // The second save came to the first host alone.
  fs::remove_all(path("host1/checkpoints/checkpoint_1"));
  EXPECT_EQ(resumed_step(), 1);
  // And an earlier run has used its number on the other host.
  fs::copy(path("host1/checkpoints/checkpoint_0"), path("host1/checkpoints/checkpoint_1"), fs::copy_options::recursive);
  EXPECT_EQ(resumed_step(), 1);
}

TEST_F(UnsharedFolders, WhereNoSaveIsOnAllHostsTheRunBeginsAnewAndSaysWhichHaveWhich) {
  const auto folder_of = [&](int rank) { return path(text("host", rank)); };
  save_twice(folder_of);
  fs::remove_all(path("host1/checkpoints/checkpoint_1"));
  fs::remove_all(path("host0/checkpoints/checkpoint_0"));

  ::testing::internal::CaptureStderr();
  run_ranks(2, [&](process::Process& process) {
    TrainingRun run(alone_on_host(process), {2}, folder_of(process.rank()));
    EXPECT_FALSE(run.accelerator.resume().has_value());
    process.wait_for_everyone();
  });

  EXPECT_THAT(
      ::testing::internal::GetCapturedStderr(),
      HasSubstr("no checkpoint is complete on every host: node 0 has checkpoint_1; node 1 has checkpoint_0; the "
                "run begins anew"));
}

// In a folder of its own, as on a disk of its own.
HASTEN_PROCESS_CASE(loads_the_folder_of_its_host) {
  const process::Process process({.cpu = true});
  TrainingRun run(alone_on_host(process), {2});
  fs::current_path(text(std::getenv("HASTEN_TEST_FOLDER"), "/host", process.rank(), "/checkpoints"));
  std::cout << testing::words_of<UsageError>([&] { run.accelerator.load_state("checkpoint_1"); }) << std::endl;
  process.wait_for_everyone();
  return 0;
}

TEST_F(UnsharedFolders, APathThatIsAnotherSaveOnAnotherHostIsRefusedWithTheHosts) {
  save_twice([&](int rank) { return path(text("host", rank)); });
  fs::remove_all(path("host1/checkpoints/checkpoint_1"));
  fs::rename(path("host1/checkpoints/checkpoint_0"), path("host1/checkpoints/checkpoint_1"));

  const auto results = testing::run_processes(2, "loads_the_folder_of_its_host", {{"HASTEN_TEST_FOLDER", path("")}});

  for (const auto& [exit_code, output] : results) {
    EXPECT_EQ(exit_code, 0) << output;
    EXPECT_THAT(output, HasSubstr("'checkpoint_1' is not one save on all hosts: node 0 has "));
    EXPECT_THAT(output, HasSubstr(", step 2; node 1 has "));
    EXPECT_THAT(output, HasSubstr(", step 1. A run may have ended while its hosts renamed their folders"));
  }
}

}  // namespace
}  // namespace hasten
