// Layout: the ranks of a run as a grid of axes, and the groups along them. The arithmetic is plan/layout.h's.
#pragma once

#include <memory>
#include <optional>
#include <string>

#include "hasten/comm/group/group.h"
#include "hasten/comm/mesh/device_mesh.h"
#include "hasten/parallel/layout/parallel_options.h"
#include "hasten/parallel/layout/rank_place.h"
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

  /// Returns this rank's position along an axis: 0 where the axis has one rank. The position along cp and sp, of which
  /// one is in use.
  /// Throws (these): UsageError if the program lays out nothing (all sizes of ParallelOptions are 1).
  int rank_along(plan::Axis axis) const;
  int rank_along_sequence() const;
  /// Returns all axes with their groups, also those of one rank. Where data alone is divided the groups are made at the
  /// first call. Collective: then. Blocks: then. Throws: as rank_along; CommError.
  const comm::DeviceMesh& mesh() const;
  /// Returns words for this rank's place, "rank 13 (pp 1, dp 0, tp 5)"; none where no model is divided.
  RankPlace place() const;

  /// Returns this process as loaders see it: its rank and world are those of data().
  process::Process data_process(const process::Process& process) const;

 private:
  void require_given() const;

  ParallelOptions options_;
  plan::LayoutSizes sizes_;
  bool is_given_;
  comm::Group world_;
  /// Empty until it is made.
  std::shared_ptr<std::optional<comm::DeviceMesh>> mesh_ = std::make_shared<std::optional<comm::DeviceMesh>>();
  comm::Group data_, model_, tensor_, pipeline_, context_;
};

}  // namespace hasten::parallel
