#include "comm/cross_check.h"

namespace hasten::comm {
namespace {

TEST(SharedMemorySlow, TenThousandRandomCallsGiveWhatGlooGives) {
  testing::cross_check(10000);
}

}  // namespace
}  // namespace hasten::comm
