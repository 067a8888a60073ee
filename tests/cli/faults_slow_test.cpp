// 540 random faults, each of 27 kinds twenty times: on one machine, on several through ssh, in elastic runs.
#include "cli/faults.h"

namespace hasten {
namespace {

using Faults = test::Faults;

TEST_F(Faults, TwentyRunsOfEachKindEndAsSpecifiedAndLeaveNobody) {
  run_all_faults(20);
}

}  // namespace
}  // namespace hasten
