// Layout: the ranks of a run as a grid of axes, and the groups along them. The arithmetic is plan/layout.h's.
#pragma once

#include <string>

#include "hasten/comm/group/group.h"
#include "hasten/parallel/layout/parallel_options.h"
#include "hasten/plan/layout.h"
#include "hasten/process/process.h"

namespace hasten::parallel {

/// A value handle; copies share the groups.
class Layout {
 public:
  /// Ranks of a model begin with equal random states, those of the first of them: they draw the same batches and masks.
  /// Collective: yes, if more than data is divided. Blocks: then. Throws: as plan::fit_to_world; UsageError for pp with
  /// cp or sp; CommError.
  Layout(const process::Process& process, const ParallelOptions& options);

  const ParallelOptions& options() const noexcept { return options_; }
  const plan::LayoutSizes& sizes() const noexcept { return sizes_; }
  /// Returns true if ranks hold parts of one model, or of one sequence.
  bool divides_model() const noexcept { return model_.world_size() > 1; }

  /// Ranks that hold the same part of the model and have other batches: gradients are their mean.
  const comm::Group& data() const noexcept { return data_; }
  /// Ranks that hold the parts of one model or sequence, and have the same batch.
  const comm::Group& model() const noexcept { return model_; }
  const comm::Group& tensor() const noexcept { return tensor_; }
  /// Ranks that hold the stages of one model.
  const comm::Group& pipeline() const noexcept { return pipeline_; }
  /// Ranks that hold parts of one sequence: cp or sp.
  const comm::Group& context() const noexcept { return context_; }

  /// Returns this process as loaders see it: its rank and world are those of data().
  process::Process data_process(const process::Process& process) const;

 private:
  ParallelOptions options_;
  plan::LayoutSizes sizes_;
  comm::Group data_, model_, tensor_, pipeline_, context_;
};

}  // namespace hasten::parallel
