// A hundred random faults of a pipeline on real processes; see pipeline_faults_ranks_test.cpp.
#include <iostream>

#include "accelerator/pipeline_faults.h"

namespace hasten {
namespace {

using namespace hasten::testing;

HASTEN_PROCESS_CASE(pipeline_with_a_random_fault) {
  return run_pipeline_fault();
}

TEST(RandomPipelineFaults, AHundredAreNamedByTheOtherRanks) {
  const int64_t scale = Environment::current().integer("HASTEN_TEST_SCALE").value_or(1);
  for (int64_t seed = 100; seed < 100 + 100 * scale; ++seed) {
    const auto fault = PipelineFault::draw(static_cast<uint64_t>(seed));
    expect_fault_named("pipeline_with_a_random_fault", fault);
    if (!HasFailure()) continue;
    std::cout << "seed " << seed << ": " << fault.words() << std::endl;
    break;
  }
}

}  // namespace
}  // namespace hasten
