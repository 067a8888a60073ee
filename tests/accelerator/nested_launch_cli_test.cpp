// Runs inside of runs: two programs one after the other in each worker, a launcher in a worker, and more workers than
// cores.
//
// The program is a case of this test program (support/processes.h).
#include <gtest/gtest.h>
#include <torch/torch.h>

#include <cstdio>
#include <filesystem>
#include <string>
#include <vector>

#include "cli/command.h"
#include "hasten/accelerator.h"
#include "support/processes.h"

namespace hasten {
namespace {

HASTEN_PROCESS_CASE(sums_up) {
  const Accelerator accelerator({.cpu = true});
  const auto sum = accelerator.reduce(torch::ones({1000})).sum().item<int64_t>();
  std::printf("of %d sum %d\n", accelerator.num_processes(), static_cast<int>(sum));
  return 0;
}

const std::string kSelf = std::filesystem::read_symlink("/proc/self/exe");
const std::string kHasten = std::filesystem::path(kSelf).parent_path().parent_path() / "bin/hasten";

test::CommandResult launch(int num_processes, const std::vector<std::string>& program) {
  std::vector<std::string> words = {kHasten, "launch", "-n", std::to_string(num_processes), "--cpu", "--no_python"};
  words.insert(words.end(), program.begin(), program.end());
  return test::run_command(words, {{"HASTEN_TEST_CASE", "sums_up"}, {"OMP_NUM_THREADS", "1"}});
}

void expect_lines(const test::CommandResult& result, const std::string& line, size_t count) {
  EXPECT_EQ(result.exit_code, 0) << result.err;
  size_t found = 0;
  for (size_t at = result.out.find(line); at != std::string::npos; at = result.out.find(line, at + 1)) ++found;
  EXPECT_EQ(found, count) << result.out << result.err;
}

TEST(NestedLaunch, TwoProgramsOneAfterTheOtherInEachWorkerMeetTheirOwn) {
  expect_lines(launch(3, {"sh", "-c", "'" + kSelf + "' && '" + kSelf + "'"}), "of 3 sum 3000\n", 6);
}

TEST(NestedLaunch, ALauncherInAWorkerStartsARunOfItsOwn) {
  expect_lines(launch(2, {kHasten, "launch", "-n", "2", "--cpu", "--no_python", kSelf}), "of 2 sum 2000\n", 4);
}

TEST(NestedLaunch, MoreWorkersThanCoresEnd) {
  expect_lines(launch(12, {kSelf}), "of 12 sum 12000\n", 12);
}

}  // namespace
}  // namespace hasten
