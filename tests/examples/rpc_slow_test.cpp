// The tutorials of examples/rpc, trained until they have learned.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <string>
#include <vector>

#include "cli/command.h"

namespace hasten::test {
namespace {

// The last number that a program prints behind `word`; it must end well.
double last_number_of(const std::string& roles, const std::vector<std::string>& words, const std::string& word) {
  std::vector<std::string> all = {HASTEN_COMMAND, "launch", "--roles", roles, HASTEN_BINARY_DIR "/examples/all_rpc"};
  all.insert(all.end(), words.begin(), words.end());
  const CommandResult result = run_command(all, {{"OMP_NUM_THREADS", "1"}});
  EXPECT_EQ(result.exit_code, 0) << result.err;
  const size_t at = result.out.rfind(word + " ");
  if (at == std::string::npos) {
    ADD_FAILURE() << "no '" << word << "' in " << result.out;
    return 0;
  }
  return std::stod(result.out.substr(at + word.size() + 1));
}

TEST(SlowRpcExamples, CartPoleIsSolvedFromThreeSeeds) {
  for (const char* seed : {"543", "1", "2"})
    EXPECT_GE(last_number_of("agent=1,observer=2", {"reinforce", "1500", seed}, "running reward"), 195)
        << "seed " << seed;
}

TEST(SlowRpcExamples, TheParameterServerLearnsEveryTime) {
  for (int i = 0; i < 20; ++i)
    EXPECT_GE(last_number_of("ps=1,trainer=2", {"parameter_server", "240"}, "accuracy"), 0.97) << "run " << i;
}

}  // namespace
}  // namespace hasten::test
