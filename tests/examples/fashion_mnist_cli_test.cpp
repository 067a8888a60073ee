#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <stdlib.h>

#include <filesystem>
#include <fstream>
#include <regex>

#include "cli/command.h"

namespace hasten::test {
namespace {

using ::testing::HasSubstr;
using ::testing::Not;

const std::string kProgram = HASTEN_BINARY_DIR "/examples/fashion_mnist";

// The example on one thread a process, in a folder of the test's own.
class FashionMnistExample : public ::testing::Test {
 protected:
  void SetUp() override {
    std::string name = ::testing::TempDir() + "fashion_mnist_XXXXXX";
    ASSERT_NE(mkdtemp(name.data()), nullptr);
    folder_ = name;
  }
  void TearDown() override { std::filesystem::remove_all(folder_); }

  std::string path(const std::string& name) const { return folder_ + "/" + name; }

  CommandResult run(int num_processes, const std::vector<std::string>& arguments) const {
    std::vector<std::string> words = {kProgram, "--threads", "1"};
    if (num_processes > 1)
      words.insert(words.begin(), {HASTEN_COMMAND, "launch", "-n", std::to_string(num_processes)});
    words.insert(words.end(), arguments.begin(), arguments.end());
    return run_command(words);
  }

  // "accuracy 0.8733 of 10000" where it stands in `text`.
  static std::string accuracy(const std::string& text) {
    std::smatch found;
    return std::regex_search(text, found, std::regex("accuracy 0\\.[0-9]{4} of [0-9]+")) ? found.str()
                                                                                         : "none";
  }

 private:
  std::string folder_;
};

class FashionMnistOnProcesses : public FashionMnistExample, public ::testing::WithParamInterface<int> {};

TEST_P(FashionMnistOnProcesses, TheSavedNetworkEvaluatesAsItDidInTraining) {
  const CommandResult trained =
      run(GetParam(), {"--epochs", "1", "--limit", "640", "--save", path("net.pt")});
  const CommandResult evaluated = run(1, {"--evaluate", path("net.pt")});

  EXPECT_EQ(trained.exit_code, 0) << trained.err;
  EXPECT_THAT(trained.out, ::testing::MatchesRegex(
                               "epoch 0: loss [0-9.]+, accuracy 0\\.[0-9]+ of 10000, [0-9]+ samples/s\n"));
  EXPECT_EQ(evaluated.exit_code, 0) << evaluated.err;
  EXPECT_EQ(evaluated.out, accuracy(trained.out) + "\n");
}

INSTANTIATE_TEST_SUITE_P(Processes, FashionMnistOnProcesses, ::testing::Values(1, 2));

TEST_F(FashionMnistExample, OnlyTheMainProcessShowsProgressInOneLineAnEpoch) {
  const CommandResult result = run(2, {"--epochs", "2", "--limit", "256"});

  EXPECT_THAT(result.err, ::testing::MatchesRegex("epoch 0: 2/2 \\[[^\n]*, loss [0-9.]+\\]\n"
                                                  "epoch 1: 2/2 \\[[^\n]*, loss [0-9.]+\\]\n"));
}

TEST_F(FashionMnistExample, TheSameSeedGivesTheSameNetwork) {
  const std::vector<std::string> arguments = {"--epochs", "1", "--limit", "256", "--seed", "7"};

  const std::string first = accuracy(run(1, arguments).out);
  const std::string second = accuracy(run(1, arguments).out);

  EXPECT_NE(first, "none");
  EXPECT_EQ(first, second);
}

TEST_F(FashionMnistExample, AMissingDataFolderIsNamedWithTheRemedy) {
  for (const int num_processes : {1, 2}) {
    const CommandResult result = run(num_processes, {"--data", "/no/such/folder"});

    EXPECT_EQ(result.exit_code, 2);
    EXPECT_THAT(result.err, HasSubstr("'/no/such/folder'"));
    EXPECT_THAT(result.err, HasSubstr("dataset-fashion-mnist"));
  }
}

TEST_F(FashionMnistExample, ATruncatedFileEndsEveryProcessAndIsNamed) {
  const std::string images = path("train-images-idx3-ubyte.gz");
  std::ofstream(images) << "\x1f\x8b\x08";

  const CommandResult result = run(2, {"--data", path("")});

  EXPECT_NE(result.exit_code, 0);
  EXPECT_THAT(result.err, HasSubstr(images));
  EXPECT_THAT(result.out, Not(HasSubstr("epoch")));
}

TEST_F(FashionMnistExample, AnUnknownOptionIsAUsageError) {
  EXPECT_EQ(run(1, {"--epoch", "1"}).exit_code, 2);
}

}  // namespace
}  // namespace hasten::test
