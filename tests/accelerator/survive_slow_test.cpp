// Survive under many kills at random times, in every kind of training. HASTEN_TEST_SCALE multiplies their number.
#include "accelerator/survived_program.h"

namespace hasten::survived {
namespace {

HASTEN_PROCESS_CASE(survived_program) {
  return run_program();
}

TEST(SurviveSlow, RandomKillsEndAsTheUndisturbedRun) {
  const auto scale = Environment::current().integer("HASTEN_TEST_SCALE", 1, 1000).value_or(1);
  for (const std::string program : {"", "gloo", "accumulates workers", "gan", "gan gloo", "fp16", "swallows"}) {
    const std::string expected = undisturbed(program);
    for (int64_t seed = 1; seed <= scale; ++seed) {
      const Ended ended = run_survived(program, "", text("20:", seed));

      expect_same_end(ended, expected, text(program, ", seed ", seed));
    }
  }
}

}  // namespace
}  // namespace hasten::survived
