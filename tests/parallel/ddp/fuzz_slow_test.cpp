// The same as fuzz_ranks_test.cpp, twenty times as many.
#include "parallel/fuzz_models.h"

namespace hasten::parallel {
namespace {

TEST(DdpFuzz, FiveHundredRandomModelsTrainAsOnOneRank) {
  fuzzing::fuzz(1000, 1500);
}

}  // namespace
}  // namespace hasten::parallel
