// The autograd engine that drops saved tensors of regions: libtorch's own, with default hooks for saved tensors.
#pragma once

namespace hasten::parallel {

/// Throws: UsageError if another engine is in use in this process (that of Python, if it was loaded later).
void require_recompute_engine();

}  // namespace hasten::parallel
