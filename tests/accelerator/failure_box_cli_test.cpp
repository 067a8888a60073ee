// The launcher's report of a run in which a thread of a rank fails: that rank is named, with the thread's words.
//
// The program is a case of this test program (support/processes.h); FAILS_IN names the place.
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <torch/torch.h>
#include <unistd.h>

#include <chrono>
#include <csignal>
#include <filesystem>
#include <stdexcept>
#include <string>
#include <thread>
#include <vector>

#include "cli/command.h"
#include "hasten/accelerator.h"
#include "hasten/core/env.h"
#include "hasten/data/dataset/map.h"
#include "support/processes.h"

namespace hasten {
namespace {

using ::testing::ContainsRegex;
using ::testing::HasSubstr;
using ::testing::Not;

std::string place_of_failure() {
  return Environment::current().text("FAILS_IN").value_or("");
}

bool fails_here(const std::string& place) {
  const auto rank = Environment::current().text("FAILING_RANK").value_or("1");
  return place_of_failure() == place && Environment::current().text("RANK") == rank;
}

struct FailingRows : torch::data::Dataset<FailingRows> {
  torch::data::Example<> get(size_t index) override {
    if (index >= 30 && fails_here("dataset")) throw std::runtime_error("row is torn");
    if (index >= 30 && fails_here("dataset_number")) throw 7;
    return {torch::ones({4}), torch::ones({1})};
  }
  torch::optional<size_t> size() const override { return 72; }
};

HASTEN_PROCESS_CASE(fails_in_a_thread) {
  AcceleratorOptions options;
  if (place_of_failure() == "stop") options.timeout = std::chrono::seconds(3);
  Accelerator accelerator(options);
  torch::nn::Linear net(4, 1);
  torch::optim::SGD sgd(net->parameters(), 0.1);
  auto [model, optimizer, train] = accelerator.prepare(
      net, sgd,
      data::loader<torch::data::samplers::SequentialSampler>(
          data::map(FailingRows(), torch::data::transforms::Stack<>()), torch::data::DataLoaderOptions(2).workers(2)));
  std::thread own;
  if (fails_here("thread")) own = std::thread([] { throw std::runtime_error("the thread is lost"); });
  if (fails_here("thread_number")) own = std::thread([] { throw 7; });
  for (int epoch = 0; epoch < 1000; ++epoch) {
    for (auto& batch : train) {
      optimizer.zero_grad();
      while (epoch == 1 && fails_here("hang")) pause();
      if (epoch == 1 && fails_here("early")) return 7;
      if (epoch == 1 && fails_here("early_end")) return 0;
      if (epoch == 1 && fails_here("stop")) raise(SIGSTOP);
      accelerator.backward(torch::mse_loss(model(batch.data), batch.target));
      optimizer.step();
    }
  }
  return 0;
}

test::CommandResult launch(const std::string& place, const std::string& rank,
                           const std::vector<std::string>& options = {}) {
  const auto self = std::filesystem::read_symlink("/proc/self/exe");
  std::vector<std::string> words = {(self.parent_path().parent_path() / "bin/hasten").string(), "launch", "-n", "3"};
  words.insert(words.end(), options.begin(), options.end());
  words.push_back(self.string());
  return test::run_command(words,
                           {{"HASTEN_TEST_CASE", "fails_in_a_thread"}, {"FAILS_IN", place}, {"FAILING_RANK", rank}});
}

TEST(FailureBox, AThreadThatThrowsIsTheFirstFailureOfItsRank) {
  for (const std::string rank : {"0", "1"}) {
    for (const auto& [place, words] :
         {std::pair("dataset", "row is torn"), std::pair("dataset_number", "an exception that is no std::exception"),
          std::pair("thread", "the thread is lost"), std::pair("thread_number", "no std::exception")}) {
      const auto result = launch(place, rank);

      EXPECT_EQ(result.exit_code, 1) << place << result.err;
      // Its exit code, or that it was still ending when the launcher's signal came.
      EXPECT_THAT(result.err, ContainsRegex("rank " + rank + " of 3 failed first: (exit code 1|an uncaught exception)"))
          << place;
      EXPECT_THAT(result.err, HasSubstr(words)) << place;
      EXPECT_THAT(result.err, Not(HasSubstr("failed first: killed by"))) << place;
    }
  }
}

// Rank 0, too, which waits for the others as the server of their store.
TEST(FailureBox, ARankThatEndsWhileTheOthersGoOnIsTheCause) {
  for (const std::string rank : {"0", "1", "2"}) {
    const auto code = launch("early", rank), none = launch("early_end", rank);

    EXPECT_EQ(code.exit_code, 7) << code.err;
    EXPECT_THAT(code.err, HasSubstr("rank " + rank + " of 3 failed first: exit code 7"));
    EXPECT_EQ(none.exit_code, 1) << none.err;
    EXPECT_THAT(none.err, ContainsRegex("cause: rank " + rank + " after step [0-9]+ ended with exit code 0 while"));
  }
}

TEST(FailureBox, ARankThatIsStoppedIsNamedWhenTheOthersHaveWaitedLongEnough) {
  for (const std::string rank : {"1", "2"}) {
    const auto result = launch("stop", rank);

    EXPECT_EQ(result.exit_code, 1) << result.err;
    EXPECT_THAT(result.err, ContainsRegex("rank [012]/3: .*rank " + rank)) << rank;
    EXPECT_THAT(result.err, Not(HasSubstr("rank " + rank + " of 3 failed first: an uncaught"))) << rank;
  }
}

TEST(FailureBox, AMainProcessThatIsStoppedHoldsNobody) {
  const auto result = launch("stop", "0");

  EXPECT_EQ(result.exit_code, 1) << result.err;
  EXPECT_THAT(result.err, ContainsRegex("rank [12]/3: .*was not completed: .*the store is gone"));
}

TEST(FailureBox, ARankThatTheWatchHasKilledForAHangIsSaidToBe) {
  const auto result = launch("hang", "1", {"--hang_after", "1.5", "--on_hang", "kill"});

  EXPECT_EQ(result.exit_code, 128 + SIGKILL);
  EXPECT_THAT(result.err, HasSubstr("rank 1 of 3 failed first: killed by SIGKILL"));
  EXPECT_THAT(result.err, HasSubstr("hint: the watch has ended it because of a hang, as --on_hang kill asks for"));
  EXPECT_THAT(result.err, HasSubstr("it was in: step "));
}

}  // namespace
}  // namespace hasten
