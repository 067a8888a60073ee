// Values that an Accelerator looks at while it trains (docs/watch.md).
#pragma once

#include <cstdint>

namespace hasten {

/// A rank of several always writes its place and its losses down; these are about values.
struct WatchOptions {
  /// Gradients of each n-th step are looked at before their exchange, for values that are not finite: the parameter and
  /// the ranks are named. 0: of none. Worlds of one and runs with a loss scale are left out.
  int64_t check_gradients_every = 10;
  /// A loss, a gradient or a norm of gradients that is not finite ends the run with an error instead of a line.
  bool stop_on_nonfinite = false;
};

}  // namespace hasten
