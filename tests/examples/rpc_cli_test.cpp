// The programs of examples/rpc, each on real processes.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cmath>
#include <filesystem>
#include <regex>
#include <string>
#include <vector>

#include "cli/command.h"

namespace hasten::test {
namespace {

using ::testing::HasSubstr;
using ::testing::MatchesRegex;

// What a program prints; it must end well.
std::string rpc_output(const std::string& roles, const std::vector<std::string>& words) {
  std::vector<std::string> all = {HASTEN_COMMAND, "launch", "--roles", roles, HASTEN_BINARY_DIR "/examples/all_rpc"};
  all.insert(all.end(), words.begin(), words.end());
  const CommandResult result = run_command(all, {{"OMP_NUM_THREADS", "1"}});
  EXPECT_EQ(result.exit_code, 0) << result.err;
  return result.out;
}

// The numbers that stand behind `word` in the text.
std::vector<double> numbers_after(const std::string& text, const std::string& word) {
  std::vector<double> numbers;
  const std::regex pattern(word + " ([-0-9.e]+)");
  for (std::sregex_iterator found(text.begin(), text.end(), pattern); found != std::sregex_iterator(); ++found)
    numbers.push_back(std::stod((*found)[1]));
  return numbers;
}

TEST(RpcExamples, ObserversPlayAndTheAgentLearns) {
  EXPECT_THAT(rpc_output("agent=1,observer=2", {"reinforce", "8"}),
              HasSubstr("ended after 8 rounds, 16 episodes, running reward"));
  EXPECT_THAT(rpc_output("agent=1,observer=2", {"reinforce_batched", "3"}),
              HasSubstr("ended after 3 rounds of 400 steps"));
}

TEST(RpcExamples, TheRnnLearnsOverTwoWorkers) {
  const std::string out = rpc_output("trainer=1,ps=1", {"rnn", "150"});

  EXPECT_GT(numbers_after(out, "loss").at(0), 3.5);
  EXPECT_LT(numbers_after(out, "first,").at(0), 2.0);
}

TEST(RpcExamples, TrainersLearnAtTheParameterServer) {
  EXPECT_GE(numbers_after(rpc_output("ps=1,trainer=2", {"parameter_server", "240"}), "accuracy").at(0), 0.97);
}

TEST(RpcExamples, BatchedUpdatesLearn) {
  EXPECT_LT(numbers_after(rpc_output("ps=1,trainer=3", {"batch_update", "80"}), "loss").at(0), 0.1);
}

TEST(RpcExamples, ThePipelineEndsWithAllNumbersOfMicroBatches) {
  const auto losses = numbers_after(rpc_output("master=1,stage=2", {"pipeline_resnet50", "8", "64", "1"}), "loss");

  ASSERT_EQ(losses.size(), 4u);  // 1, 2, 4 and 8 micro-batches
  for (const double loss : losses) EXPECT_TRUE(std::isfinite(loss) && loss > 0) << loss;
}

TEST(RpcExamples, DataParallelTrainersOverAServerStayEqual) {
  const std::string out = rpc_output("master=1,ps=1,trainer=2", {"ddp_and_rpc", "200"});

  EXPECT_EQ(numbers_after(out, "differ by").at(0), 0);
  EXPECT_LT(numbers_after(out, "loss").at(0), 1.7);  // that of a guess is log 8, 2.08
}

TEST(RpcExamples, HogWildAndAveragingLearn) {
  const double alone = numbers_after(rpc_output("worker=1", {"hogwild", "1200"}), "accuracy").at(0);
  const double together = numbers_after(rpc_output("worker=4", {"hogwild", "1200"}), "accuracy").at(0);

  EXPECT_GT(alone, 0.8);
  EXPECT_GT(together, alone - 0.05);
  EXPECT_LT(numbers_after(rpc_output("worker=2", {"averaging", "120"}), "loss").at(0), 0.5);
}

}  // namespace
}  // namespace hasten::test
