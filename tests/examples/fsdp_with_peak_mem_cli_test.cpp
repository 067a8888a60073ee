#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <regex>
#include <string>

#include "cli/command.h"

namespace hasten::test {
namespace {

using ::testing::HasSubstr;

// The losses that the example prints, one an epoch, as text.
std::string losses_of(const std::string& output) {
  static const std::regex kLoss("loss ([0-9.]+)");
  std::string losses;
  for (std::sregex_iterator i(output.begin(), output.end(), kLoss), end; i != end; ++i) losses += (*i)[1].str() + ' ';
  return losses;
}

TEST(FsdpWithPeakMem, GivesTheLossesOfPlainDataParallelism) {
  std::string plain;
  for (const std::string stage : {"0", "1", "3"}) {
    const CommandResult result =
        run_command({HASTEN_COMMAND, "launch", "-n", "2", HASTEN_BINARY_DIR "/examples/fsdp_with_peak_mem", "--stage",
                     stage, "--epochs", "2", "--samples", "256"});

    ASSERT_EQ(result.exit_code, 0) << result.err;
    EXPECT_THAT(result.out, HasSubstr("the whole state on one rank: 109248 numbers"));
    const std::string losses = losses_of(result.out);
    if (stage == "0") plain = losses;
    EXPECT_FALSE(losses.empty());
    EXPECT_EQ(losses, plain) << "stage " << stage;
  }
}

}  // namespace
}  // namespace hasten::test
