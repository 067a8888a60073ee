// The rate for more processes; see scale_lr.h.
#include "hasten/optim/schedulers/scale_lr.h"

#include <cmath>

#include "optim/parameter_groups.h"

namespace hasten::optim {

double scale_lr(double base, int world_size, LrScaling rule) {
  detail::require(std::isfinite(base) && base > 0, "scale_lr", "base", base, "above 0");
  detail::require(world_size >= 1, "scale_lr", "world_size", world_size, "at least 1");
  const auto factor = static_cast<double>(world_size);
  return base * (rule == LrScaling::kLinear ? factor : std::sqrt(factor));
}

}  // namespace hasten::optim
