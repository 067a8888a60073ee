#include "hasten/process/rejoining.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "hasten/comm/group/rejoin.h"
#include "hasten/core/error.h"
#include "support/folder.h"

namespace hasten::process {
namespace {

using ::testing::HasSubstr;
using testing::words_of;

Environment of_rank(const std::string& survive) {
  return Environment::of({{"RANK", "1"},
                          {"WORLD_SIZE", "2"},
                          {"MASTER_ADDR", "127.0.0.1"},
                          {"MASTER_PORT", "29500"},
                          {"HASTEN_REPLACES", "1"},
                          {"HASTEN_SURVIVE", survive}});
}

TEST(Rejoining, IsForRunsWhoseRanksAreReplaced) {
  const ProcessOptions options{.cpu = true, .change_process = false};

  EXPECT_FALSE(make_rejoining(options, Environment::of({})));
  EXPECT_FALSE(make_rejoining(options, Environment::of({{"HASTEN_SURVIVE", "3"}}))) << "a world of one";
  EXPECT_FALSE(make_rejoining(options, of_rank("0")));
}

TEST(Rejoining, TheGroupStandsInAndASecondOneIsRefused) {
  const ProcessOptions options{.cpu = true, .change_process = false};

  const auto made = make_rejoining(options, of_rank("3"));

  ASSERT_TRUE(made);
  EXPECT_EQ(made->process.rank(), 1);
  EXPECT_TRUE(comm::stands_in(made->process.group()));
  EXPECT_TRUE(comm::meetings_of(made->process.group())->replaces());
  EXPECT_EQ(comm::meetings_of(made->process.group())->number(), -1);
  EXPECT_THAT(words_of<UsageError>([&] { make_rejoining(options, of_rank("3")); }), HasSubstr("a second Accelerator"));
}

TEST(Rejoining, AProcessOfTheProgramsOwnIsRefused) {
  EXPECT_THAT(words_of<UsageError>([] { Process({.cpu = true, .change_process = false}, of_rank("3")); }),
              HasSubstr("a Process of the program's own under hasten launch --survive"));
}

}  // namespace
}  // namespace hasten::process
