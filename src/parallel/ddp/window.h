// Window: the backwards that make one step of a model's optimizer together, as far as they have come.
#pragma once

#include <optional>

namespace hasten::parallel {

/// Where a model stands between two steps of its optimizer.
struct Window {
  /// While more have asked to hold back than to go on, gradients stay on their rank.
  int holds = 0;
  /// The weights of this rank's backwards so far, if they have any: gradients are sums, each times its
  /// weight.
  std::optional<double> weight = {};
  /// Whether the next exchange ends the window, so that weights are divided out.
  bool ends = true;
  /// What was divided out last, as a mean over the ranks.
  double divided_out = 0;
  /// The same, where it may turn out that the window had not ended: its last batch has passed the model by
  /// so far.
  std::optional<double> settled_early = {};
  /// Whether a backward launches its exchange and leaves the waiting to finish().
  bool finishes_later = false;
  /// The rank whose buffers all get.
  int buffers_from = 0;
  /// Whether all ranks' parameters are to be the same.
  bool comparable = true;
  /// Whether the parameters' memory is not what it was, or their values are not what the ranks agreed on.
  bool values_changed = false;
  /// Whether values changed before the window's gradients were exchanged.
  bool changed_inside = false;
};

}  // namespace hasten::parallel
