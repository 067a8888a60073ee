// 300 random faults, each of ten kinds 30 times, on one machine.
#include "cli/faults.h"

namespace hasten {
namespace {

using Faults = test::Faults;

TEST_F(Faults, ThreeHundredRunsEndAsSpecifiedAndLeaveNobody) {
  run_faults(300);
}

}  // namespace
}  // namespace hasten
