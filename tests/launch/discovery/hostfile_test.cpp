#include "hasten/launch/discovery/hostfile.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "hasten/core/error.h"

namespace hasten::launcher {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;

const std::vector<Host> kHosts = {{"node1", 4}, {"node2", 2}};

std::string refused(const std::function<void()>& action) {
  try {
    action();
  } catch (const UsageError& error) {
    return error.what();
  }
  return "";
}

TEST(Hostfile, HasAMachineALineWithItsSlots) {
  EXPECT_EQ(read_hostfile("# ours\nnode1 slots=4\n\n  node2   slots=2  # the small one\n", "h"), kHosts);
}

TEST(Hostfile, NamesTheLineThatIsWrong) {
  const auto problem = [](const char* content) { return refused([=] { read_hostfile(content, "hosts"); }); };

  EXPECT_EQ(problem("a slots=1\nb\n"), "[launch] hosts:2: 'b' is not 'HOST slots=NUMBER'.");
  EXPECT_THAT(problem("a slots=x"), HasSubstr("hosts:1: 'a slots=x'"));
  EXPECT_THAT(problem("a slots=0"), HasSubstr("hosts:1"));
  EXPECT_THAT(problem("a slots=1 max=2"), HasSubstr("hosts:1"));
  EXPECT_THAT(problem("a slots=1\na slots=2"), HasSubstr("hosts:2: 'a' is there twice"));
  EXPECT_THAT(problem("# nothing\n"), HasSubstr("names no machine"));
}

TEST(Hostfile, WithoutAFilterAllIsChosen) {
  EXPECT_THAT(choose_hosts(kHosts, "", ""),
              ElementsAre(ChosenHost{"node1", {0, 1, 2, 3}}, ChosenHost{"node2", {0, 1}}));
}

TEST(Hostfile, IncludeLeavesWhatItNames) {
  EXPECT_THAT(choose_hosts(kHosts, "node2@node1:0,2", ""),
              ElementsAre(ChosenHost{"node1", {0, 2}, true}, ChosenHost{"node2", {0, 1}}));
  EXPECT_THAT(choose_hosts(kHosts, "node2:1", ""), ElementsAre(ChosenHost{"node2", {1}, true}));
}

TEST(Hostfile, ExcludeTakesAwayWhatItNames) {
  EXPECT_THAT(choose_hosts(kHosts, "", "node1"), ElementsAre(ChosenHost{"node2", {0, 1}}));
  EXPECT_THAT(choose_hosts(kHosts, "", "node1:0,1@node2:0,1"), ElementsAre(ChosenHost{"node1", {2, 3}, true}));
}

TEST(Hostfile, FiltersNameMachinesAndSlotsThatThereAre) {
  const auto problem = [](const char* include, const char* exclude) {
    return refused([=] { choose_hosts(kHosts, include, exclude); });
  };

  EXPECT_EQ(problem("nod1", ""),
            "[launch] --include 'nod1' names 'nod1', which is none of node1, node2, did you mean 'node1'? Expected "
            "HOST or HOST:SLOT,… with @ between them.");
  EXPECT_THAT(problem("", "node2:2"), HasSubstr("names slot '2' of node2, which has 2"));
  EXPECT_THAT(problem("node1", "node2"), HasSubstr("exclude each other"));
  EXPECT_THAT(problem("", "node1@node2"), HasSubstr("leave no machine"));
}

}  // namespace
}  // namespace hasten::launcher
