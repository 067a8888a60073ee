// A twentieth of tests/cli/faults_slow_test.cpp.
#include "cli/faults.h"

namespace hasten {
namespace {

using Faults = test::Faults;

TEST_F(Faults, ARunOfEachKindEndsAsSpecifiedAndLeavesNobody) {
  run_all_faults(1);
}

}  // namespace
}  // namespace hasten
