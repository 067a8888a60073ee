// The front door's functions for trackers, with real ranks.
#include <ATen/Functions.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <filesystem>
#include <fstream>
#include <sstream>

#include "hasten/accelerator.h"
#include "hasten/core/error.h"
#include "support/folder.h"
#include "support/ranks.h"

namespace hasten {
namespace {

using ::testing::HasSubstr;
using ::testing::Not;
using TrackedRuns = hasten::testing::InFolder;

std::string journal_text(const std::filesystem::path& path) {
  std::ifstream file(path);
  std::ostringstream bytes;
  bytes << file.rdbuf();
  return std::move(bytes).str();
}

TEST_F(TrackedRuns, AreOneRunForAllRanksAndTheMainProcessLogs) {
  testing::run_ranks(2, [&](process::Process& process) {
    Accelerator accelerator(process, {.log_with = {"journal"}, .project = {.project_dir = folder_}});
    accelerator.init_trackers("p", {{"lr", 0.5}});
    const at::Tensor loss = at::full({}, 0.25);
    accelerator.log({{"loss", loss}, {"rank", accelerator.rank()}}, 3);
    accelerator.log_images({{"input", at::zeros({1, 4, 4})}}, 3);
    accelerator.logger("mine").warning("careful");
    EXPECT_THROW(accelerator.log({{"many", at::zeros({2})}}), UsageError);
    accelerator.end_training();
  });

  std::vector<std::filesystem::path> runs;
  for (const auto& run : std::filesystem::directory_iterator(folder_ / "p")) runs.push_back(run.path());
  ASSERT_EQ(runs.size(), 1u);
  const std::string main = journal_text(runs[0] / "journal.jsonl"), other = journal_text(runs[0] / "journal-rank1.jsonl");
  EXPECT_THAT(main, HasSubstr(R"("step":3,"values":{"loss":0.25,"rank":0}})"));
  EXPECT_THAT(main, HasSubstr(R"("images":{"input":["media/input-3-0-0.png"]})"));
  EXPECT_THAT(main, HasSubstr(R"("text":"careful")"));
  EXPECT_THAT(main, HasSubstr(R"("end":"finished")"));
  EXPECT_THAT(other, Not(HasSubstr(R"("op":"log")")));
  EXPECT_THAT(other, HasSubstr(R"("op":"finish")"));
}

TEST_F(TrackedRuns, AreRefusedWhereNoTrackerIsNamed) {
  testing::run_ranks(1, [&](process::Process& process) {
    Accelerator accelerator(process, {.project = {.project_dir = folder_}});
    EXPECT_THROW(accelerator.init_trackers("p"), UsageError);
    EXPECT_THROW(accelerator.log({{"x", 1}}), UsageError);
    EXPECT_THROW(Accelerator(process, {.log_with = {"tensorbord"}}), UsageError);
    accelerator.end_training();
  });
}

}  // namespace
}  // namespace hasten
