// Whether a worker that failed is started again alone (hasten launch --survive). A pure function.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

namespace hasten::launcher {

/// An end of a worker: waitpid's status, and the steps of the run that it had made (0 without its page).
struct WorkerDeath {
  int status = 0;
  int64_t step = 0;
};

/// The facts of the decision besides the end itself.
struct ReplacementFacts {
  /// Earlier ends of this worker.
  std::vector<WorkerDeath> earlier = {};
  /// Replacements of all workers so far, and the most that are allowed.
  int num_replaced = 0;
  int limit = 0;
  /// Some worker has come to its end: its part of the run cannot be had again.
  bool any_has_ended = false;
};

struct Replacement {
  bool is_due = false;
  /// Why not; empty where none was asked for.
  std::string reason = {};
};

/// Refuses after wrong usage (exit code 2), behind the limit, and once a worker has ended well. Refuses the third end
/// of a worker at one step. SIGKILL does not count in that, since it comes from outside.
Replacement decide_replacement(const WorkerDeath& death, const ReplacementFacts& facts);

}  // namespace hasten::launcher
