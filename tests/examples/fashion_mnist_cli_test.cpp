#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <stdlib.h>

#include <filesystem>
#include <fstream>
#include <random>
#include <regex>
#include <string>
#include <vector>

#include "cli/command.h"

namespace hasten::test {
namespace {

using ::testing::HasSubstr;
using ::testing::MatchesRegex;
using ::testing::Not;

const std::string kProgram = HASTEN_BINARY_DIR "/examples/fashion_mnist";

std::string four_bytes(size_t number) {
  std::string bytes;
  for (int shift = 24; shift >= 0; shift -= 8) bytes += static_cast<char>(number >> shift & 0xff);
  return bytes;
}

// A set in the form of Fashion-MNIST: image i shows kind i % 10, a bright row in the noise. One epoch over
// 320 of them gives an accuracy of about 0.7, which any difference between two networks would change.
void write_images(const std::string& folder, const std::string& split, size_t count) {
  std::ofstream images(folder + "/" + split + "-images-idx3-ubyte", std::ios::binary);
  std::ofstream labels(folder + "/" + split + "-labels-idx1-ubyte", std::ios::binary);
  images << std::string("\0\0\x08\3", 4) << four_bytes(count) << four_bytes(28) << four_bytes(28);
  labels << std::string("\0\0\x08\1", 4) << four_bytes(count);
  std::minstd_rand noise;
  for (size_t i = 0; i < count; ++i) {
    std::string image(28 * 28, '\0');
    for (char& pixel : image) pixel = static_cast<char>(noise() % 96);
    image.replace(i % 10 * 2 * 28, 28, std::string(28, '\xff'));
    images << image;
    labels << static_cast<char>(i % 10);
  }
}

// The example on one thread a process, with a small data set in a folder of the test's own.
class FashionMnistExample : public ::testing::Test {
 protected:
  void SetUp() override {
    folder_ = ::testing::TempDir() + "fashion_mnist_XXXXXX";
    ASSERT_NE(mkdtemp(folder_.data()), nullptr);
    write_images(folder_, "train", 320);
    write_images(folder_, "t10k", 703);
  }
  void TearDown() override { std::filesystem::remove_all(folder_); }

  std::string path(const std::string& name) const { return folder_ + "/" + name; }

  // `data` "" stands for the small data set.
  CommandResult run(int num_processes, const std::vector<std::string>& arguments, const std::string& data = "") const {
    std::vector<std::string> words = {kProgram, "--threads", "1", "--data", data.empty() ? folder_ : data};
    if (num_processes > 1) {
      words.insert(words.begin(), {HASTEN_COMMAND, "launch", "-n", std::to_string(num_processes)});
    }
    words.insert(words.end(), arguments.begin(), arguments.end());
    return run_command(words);
  }

  // "accuracy 0.8733 of 10000" where it stands in `text`.
  static std::string accuracy(const std::string& text) {
    std::smatch found;
    const std::regex form("accuracy [01]\\.[0-9]{4} of [0-9]+");
    return std::regex_search(text, found, form) ? found.str() : "no accuracy";
  }

 private:
  std::string folder_;
};

class FashionMnistOnProcesses : public FashionMnistExample, public ::testing::WithParamInterface<int> {};

TEST_P(FashionMnistOnProcesses, TheSavedNetworkEvaluatesAsItDidInTraining) {
  const CommandResult trained = run(GetParam(), {"--epochs", "1", "--save", path("net.pt")});
  const CommandResult evaluated = run(1, {"--evaluate", path("net.pt")});

  EXPECT_EQ(trained.exit_code, 0) << trained.err;
  EXPECT_THAT(trained.out, MatchesRegex("epoch 0: loss [0-9.]+, accuracy 0[0-9.]+ of 703, [0-9]+ samples/s\n"));
  EXPECT_EQ(evaluated.out, accuracy(trained.out) + "\n") << evaluated.err;
}

TEST_P(FashionMnistOnProcesses, TheSameSeedGivesTheSameNetwork) {
  const std::vector<std::string> arguments = {"--epochs", "1", "--limit", "128", "--seed", "7"};

  const std::string first = accuracy(run(GetParam(), arguments).out);
  const std::string second = accuracy(run(GetParam(), arguments).out);

  EXPECT_NE(first, "no accuracy");
  EXPECT_EQ(first, second);
}

INSTANTIATE_TEST_SUITE_P(Processes, FashionMnistOnProcesses, ::testing::Values(1, 2));

TEST_F(FashionMnistExample, TheRealTestImagesAreCountedOnceEach) {
  const CommandResult result = run(2, {"--epochs", "1", "--limit", "128"}, "/usr/share/datasets/fashion-mnist");

  EXPECT_THAT(accuracy(result.out), MatchesRegex("accuracy 0.* of 10000")) << result.err;
}

TEST_F(FashionMnistExample, OnlyTheMainProcessShowsProgressInOneLineAnEpoch) {
  const CommandResult result = run(2, {"--epochs", "2", "--limit", "256"});

  EXPECT_THAT(result.err, MatchesRegex("epoch 0: 2/2 \\[[^\n]*, loss [0-9.]+\\]\n"
                                       "epoch 1: 2/2 \\[[^\n]*, loss [0-9.]+\\]\n"));
}

TEST_F(FashionMnistExample, AMissingDataFolderIsNamedWithTheRemedy) {
  for (const int num_processes : {1, 2}) {
    const CommandResult result = run(num_processes, {}, "/no/such/folder");

    EXPECT_EQ(result.exit_code, 2);
    EXPECT_THAT(result.err, HasSubstr("'/no/such/folder'"));
    EXPECT_THAT(result.err, HasSubstr("dataset-fashion-mnist"));
  }
}

TEST_F(FashionMnistExample, ATruncatedFileEndsEveryProcessAndIsNamed) {
  std::filesystem::resize_file(path("t10k-images-idx3-ubyte"), 1000);

  const CommandResult result = run(2, {});

  EXPECT_EQ(result.exit_code, 2);
  EXPECT_THAT(result.err, HasSubstr(path("t10k-images-idx3-ubyte")));
  EXPECT_THAT(result.out, Not(HasSubstr("epoch")));
}

TEST_F(FashionMnistExample, AnUnknownOptionIsAUsageError) {
  EXPECT_EQ(run(1, {"--epoch", "1"}).exit_code, 2);
}

}  // namespace
}  // namespace hasten::test
