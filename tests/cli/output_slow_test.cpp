// The full measure of tests/cli/output_cli_test.cpp's load.
#include "cli/output_load.h"

namespace hasten {
namespace {

TEST(OutputLoad, HundredMegabytesOfEachOfEightWorkersArriveWholeInATerminalAndInAPipe) {
  constexpr int kLast = 12345679;  // counted up to it, with a newline each: 100 MB

  test::check_output_of_eight_workers(kLast);
}

}  // namespace
}  // namespace hasten
