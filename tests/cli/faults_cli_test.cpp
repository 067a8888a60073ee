// A twentieth of tests/cli/faults_slow_test.cpp.
#include "cli/faults.h"

namespace hasten {
namespace {

using Faults = test::Faults;

TEST_F(Faults, FifteenRunsEndAsSpecifiedAndLeaveNobody) {
  run_faults(15);
}

}  // namespace
}  // namespace hasten
