// SplitGradient: the .grad() of a parameter whose reduced gradient lies in parts on several ranks.
//
// It is a tensor of the parameter's shape without memory. Operators on it throw words that name the remedy: an
// optimizer that was not prepared must not step nothing in silence. Multiplying, dividing and zeroing work on this
// rank's part, as loops that accumulate do it.
#pragma once

#include <ATen/core/Tensor.h>

#include <functional>
#include <string>

namespace hasten::parallel::shard {

/// `part`: this rank's part of the gradient, flat; undefined if it has none.
at::Tensor make_split_gradient(const at::Tensor& parameter, const std::string& name, std::function<at::Tensor()> part);

}  // namespace hasten::parallel::shard
