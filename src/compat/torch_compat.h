// Differences between the releases of libtorch that hasten supports (2.11 and later), in one place.
#pragma once

#include <torch/csrc/autograd/variable.h>

#include <utility>

namespace hasten::compat {

/// An owning pointer to a node of autograd's graph: std::shared_ptr up to 2.12, c10::intrusive_ptr since.
using AutogradNode = decltype(torch::autograd::impl::grad_accumulator(std::declval<const at::Tensor&>()));

}  // namespace hasten::compat
