#include "hasten/core/env.h"
#include "parallel/fuzz_models.h"

namespace hasten::parallel {
namespace {

TEST(DdpFuzz, RandomModelsTrainAsOnOneRank) {
  fuzzing::fuzz(0, 25 * Environment::current().integer("HASTEN_TEST_SCALE").value_or(1));
}

}  // namespace
}  // namespace hasten::parallel
