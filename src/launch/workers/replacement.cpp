// See replacement.h.
#include "launch/workers/replacement.h"

#include <sys/wait.h>

#include <algorithm>
#include <csignal>

#include "hasten/core/count_text.h"
#include "hasten/core/text.h"

namespace hasten::launcher {
namespace {

// A worker that ends so often at one step would do it again.
constexpr int64_t kMostAtOneStep = 3;

constexpr int kWrongUsage = 2;

bool comes_from_outside(int status) {
  return WIFSIGNALED(status) && WTERMSIG(status) == SIGKILL;
}

}  // namespace

Replacement decide_replacement(const WorkerDeath& death, const ReplacementFacts& facts) {
  if (facts.limit == 0) return {};
  if (WIFEXITED(death.status) && WEXITSTATUS(death.status) == kWrongUsage) {
    return {false, "exit code 2 is wrong usage, which another start would meet again"};
  }
  if (facts.any_has_ended) return {false, "another rank has ended already"};
  if (facts.num_replaced >= facts.limit) {
    return {false, text("the ", facts.limit, " of --survive were used up")};
  }
  const auto at_this_step = [&](const WorkerDeath& one) {
    return one.step == death.step && !comes_from_outside(one.status);
  };
  const int64_t same = std::count_if(facts.earlier.begin(), facts.earlier.end(), at_this_step);
  if (at_this_step(death) && same + 1 >= kMostAtOneStep) {
    return {false, text("it has ended ", count_text(same + 1, "time"), " at step ", death.step)};
  }
  return {true, ""};
}

}  // namespace hasten::launcher
