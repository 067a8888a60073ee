// 300 random faults, each of thirteen kinds at least 23 times, three of them on several machines.
#include "cli/faults.h"

namespace hasten {
namespace {

using Faults = test::Faults;

TEST_F(Faults, ThreeHundredRunsEndAsSpecifiedAndLeaveNobody) {
  run_faults(300);
}

}  // namespace
}  // namespace hasten
