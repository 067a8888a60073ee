#include "comm/cross_check.h"

namespace hasten::comm {
namespace {

TEST(SharedMemoryCrossCheck, FiveHundredRandomCallsGiveWhatGlooGives) {
  cross_checks::cross_check(500);
}

}  // namespace
}  // namespace hasten::comm
