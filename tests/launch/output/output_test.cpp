#include "launch/output/output.h"

#include <gtest/gtest.h>

#include <filesystem>
#include <fstream>

#include "hasten/core/error.h"

namespace hasten::launcher {
namespace {

WorkerPlace worker(int local_rank, int num_workers = 2) {
  return {.rank = 8 + local_rank, .local_rank = local_rank, .world_size = 16, .local_world_size = num_workers};
}

// "shown '<prefix>'", "file <path>" or both.
std::string describe(const StreamPlan& plan) {
  return (plan.shown ? "shown '" + plan.prefix + "' " : "") + (plan.file.empty() ? "" : "file " + plan.file);
}
std::string describe(const OutputPlan& plan) {
  return describe(plan.out) + " | " + describe(plan.err);
}

std::string error_of(const OutputOptions& options) {
  try {
    plan_output(options, worker(0), "/logs");
  } catch (const UsageError& error) {
    return error.what();
  }
  return "";
}

TEST(Output, PassesThroughUnlessAskedOtherwise) {
  EXPECT_EQ(describe(plan_output({}, worker(0), "/logs")), "shown ''  | shown '' ");
  EXPECT_FALSE(wants_files({}));
  EXPECT_FALSE(wants_files({.redirects = "0", .tee = "0"}));
}

TEST(Output, RedirectedStreamsGoToFilesOnly) {
  const OutputOptions options{.redirects = "0:3,1:2"};

  EXPECT_EQ(describe(plan_output(options, worker(0), "/logs")), "file /logs/0/stdout.log | file /logs/0/stderr.log");
  EXPECT_EQ(describe(plan_output(options, worker(1), "/logs")), "shown ''  | file /logs/1/stderr.log");
  EXPECT_TRUE(wants_files(options));
}

TEST(Output, TeedStreamsGoToFilesAndAreShownWithTorchrunsPrefix) {
  EXPECT_EQ(describe(plan_output({.redirects = "3", .tee = "1"}, worker(1), "/logs")),
            "shown '[default1]:' file /logs/1/stdout.log | file /logs/1/stderr.log");
}

TEST(Output, LinesWithAWordGoToOneFileOfAllWorkersAsFarAsTheyAreTeed) {
  const OutputOptions options{.redirects = "3", .tee = "0:1", .duplicate_stdout_filters = {"loss"}};

  const StreamPlan teed = plan_output(options, worker(0), "/logs").out;
  EXPECT_EQ(teed.words_file, "/logs/filtered_stdout.log");
  EXPECT_EQ(teed.words_prefix, "[default0]:");
  EXPECT_EQ(teed.words.size(), 1u);
  EXPECT_EQ(plan_output(options, worker(0), "/logs").err.words_file, "");
  EXPECT_EQ(plan_output(options, worker(1), "/logs").out.words_file, "");
}

TEST(Output, TheFilterSaysWhoIsShownAndDoesNotTouchFiles) {
  const OutputOptions options{.tee = "1", .local_ranks_filter = {1}};

  EXPECT_EQ(describe(plan_output(options, worker(0), "/logs")), "file /logs/0/stdout.log | ");
  EXPECT_EQ(describe(plan_output(options, worker(1), "/logs")),
            "shown '[default1]:' file /logs/1/stdout.log | shown '' ");
}

TEST(Output, PrefixesNameTheRankOfTheWholeRun) {
  EXPECT_EQ(describe(plan_output({.prefix_ranks = true, .colour_err = true}, worker(1), "")),
            "shown '[rank 9] '  | shown '\x1b[34m[rank 9]\x1b[0m ' ");
}

TEST(Output, NoFilesAreMadeInDevNull) {
  const OutputOptions options{.log_dir = "/dev/null", .redirects = "3"};

  EXPECT_EQ(describe(plan_output(options, worker(0), "")), "shown ''  | shown '' ");
  EXPECT_FALSE(wants_files(options));
}

TEST(Output, WhatIsMalformedOrNamesNobodyIsAUsageError) {
  EXPECT_EQ(error_of({.redirects = "4"}),
            "[launch] redirects '4' is none; expected 0 (no stream), 1 (output), 2 (error), 3 (both), or one of "
            "them for each local rank, like 0:3,1:2.");
  for (const char* wrong : {"x", "0:", ":3", "0:3,", "0:3,1", "1;3", "-1", "0:4", ","}) {
    EXPECT_NE(error_of({.tee = wrong}), "") << wrong;
  }
  EXPECT_EQ(error_of({.tee = "2:1"}), "[launch] tee names local rank 2, but this machine has 2 workers, 0 to 1.");
  EXPECT_EQ(error_of({.local_ranks_filter = {0, 5}}),
            "[launch] local_ranks_filter names local rank 5, but this machine has 2 workers, 0 to 1.");
}

TEST(Output, LogFoldersAreTorchruns) {
  const std::filesystem::path parent = ::testing::TempDir() + "hasten_output_test_" + std::to_string(getpid());
  const LogFolders logs(parent / "a" / "b", "job/7");

  const std::filesystem::path attempt = logs.make_attempt(3, 2);

  EXPECT_EQ(attempt.filename(), "attempt_3");
  EXPECT_TRUE(attempt.parent_path().filename().string().starts_with("job_7_"));
  EXPECT_EQ(attempt.parent_path().parent_path(), parent / "a" / "b");
  EXPECT_TRUE(std::filesystem::is_directory(attempt / "0"));
  EXPECT_TRUE(std::filesystem::is_directory(attempt / "1"));
  EXPECT_NE(LogFolders(parent / "a" / "b", "job/7").path(), logs.path());
  std::filesystem::remove_all(parent);
}

TEST(Output, ALogFolderThatCannotBeMadeIsAUsageError) {
  const std::string file = ::testing::TempDir() + "hasten_output_test_file_" + std::to_string(getpid());
  std::ofstream(file) << "";

  EXPECT_THROW(LogFolders(file + "/logs", "none"), UsageError);
  EXPECT_THROW(LogFolders(file, "none"), UsageError);
  std::filesystem::remove(file);
}

}  // namespace
}  // namespace hasten::launcher
