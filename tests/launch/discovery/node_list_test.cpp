#include "hasten/launch/discovery/node_list.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "hasten/core/error.h"

namespace hasten::launcher {
namespace {

using ::testing::ElementsAre;

TEST(NodeList, ExpandsSlurmsBrackets) {
  EXPECT_THAT(expand_node_list("node7"), ElementsAre("node7"));
  EXPECT_THAT(expand_node_list("gpu[01-03,7],login2"), ElementsAre("gpu01", "gpu02", "gpu03", "gpu7", "login2"));
  EXPECT_THAT(expand_node_list("r[1-2]n[09-10]-ib"), ElementsAre("r1n09-ib", "r1n10-ib", "r2n09-ib", "r2n10-ib"));
  EXPECT_THAT(expand_node_list("c[098-101]"), ElementsAre("c098", "c099", "c100", "c101"));
}

TEST(NodeList, RefusesWhatIsNone) {
  for (const char* wrong : {"", "gpu[1-", "gpu[]", "gpu[a-b]", "gpu[3-1]", "a,,b", "gpu[1-99999999]",
                            "a[1-100000]b[1-100000]c[1-100000]"}) {
    EXPECT_THROW(expand_node_list(wrong), UsageError) << wrong;
  }
}

TEST(NodeList, ExpandsSlurmsCounts) {
  EXPECT_THAT(expand_counts("2(x3),1"), ElementsAre(2, 2, 2, 1));
  EXPECT_THAT(expand_counts("16"), ElementsAre(16));
  EXPECT_THROW(expand_counts("2(x"), UsageError);
  EXPECT_THROW(expand_counts("two"), UsageError);
}

TEST(NodeList, CountsHowOftenAMachineIsNamed) {
  EXPECT_THAT(count_names("n1.cluster\nn1.cluster\nn2.cluster\n"),
              ElementsAre(Host{"n1.cluster", 2}, Host{"n2.cluster", 1}));
  EXPECT_THAT(count_names("hostA hostB hostA"), ElementsAre(Host{"hostA", 2}, Host{"hostB", 1}));
}

TEST(NodeList, ReadsLsfsNamesWithCounts) {
  EXPECT_THAT(names_with_counts("hostA 4 hostB 8"), ElementsAre(Host{"hostA", 4}, Host{"hostB", 8}));
  EXPECT_THROW(names_with_counts("hostA 4 hostB"), UsageError);
}

}  // namespace
}  // namespace hasten::launcher
