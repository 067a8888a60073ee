// ParallelReport: how an Accelerator divides models and sequences over the ranks, and what that takes.
//
// Accelerator::explain_parallel() gives it. Sizes and cuts are those of the parameters as they are, exchanges are
// counted.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "hasten/parallel/tensor/parallel_counts.h"
#include "hasten/plan/layout.h"

namespace hasten {

struct ParallelReport {
  struct Parameter {
    /// Within its module.
    std::string name = {};
    /// Sizes of the whole parameter, and of this rank's part; [0] for one of another stage.
    std::vector<int64_t> sizes = {}, own_sizes = {};
    /// "dim 0", "dim 0 in 3 blocks"; empty: whole on the ranks of its stage.
    std::string cut = {};
    /// False: another stage has it.
    bool is_here = true;
    /// Bytes of this rank's part.
    int64_t bytes = 0;
  };
  /// A module with parameters of its own.
  struct Module {
    std::string name = {}, type = {};
    /// The stage of its parameters, the first of a tied one; nothing without stages.
    std::optional<int> stage = {};
    std::vector<Parameter> parameters = {};
  };
  /// The exchanges of an axis, of one model or sequence.
  struct Exchanges {
    /// "tp", "pp", "cp" or "sp", and the ranks along it.
    std::string axis = {};
    int ranks = 1;
    parallel::ParallelCounts all = {}, last_step = {};
  };

  plan::LayoutSizes sizes = {};
  /// "rank 13 (pp 1, dp 0, tp 5)".
  std::string coordinate = {};
  /// Those of all prepared models.
  std::vector<Module> modules = {};
  std::vector<Exchanges> exchanges = {};
  /// Steps of optimizers so far.
  int64_t num_steps = 0;

  /// Returns lines for people: the modules as a table, the exchanges of the last step by kind, and the operators that
  /// ran on whole values.
  std::string text() const;
};

}  // namespace hasten
