// The process of a rank in a run whose dead ranks are replaced (`hasten launch --survive`).
//
// Its group stands in (comm/group/rejoin.h), so that main() comes as far as the training loop without anybody. There
// the ranks meet: parallel/survive/.
#pragma once

#include <memory>
#include <optional>

#include "hasten/core/env.h"
#include "hasten/process/process.h"

namespace hasten::process {

struct RejoiningProcess {
  Process process;
  /// Keeps what watches over it: the handler of uncaught exceptions and the page of its rank.
  std::shared_ptr<const void> watch;
};

/// Returns the process that the environment describes, if HASTEN_SURVIVE asks for replacements and there are several
/// ranks. HASTEN_REPLACES=1: it has the place of a rank that ended behind the first step.
/// Throws: UsageError as Process's constructor, and for a second one in a program.
std::optional<RejoiningProcess> make_rejoining(const ProcessOptions& options, const Environment& environment);

}  // namespace hasten::process
