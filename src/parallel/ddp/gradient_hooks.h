// Hooks that run when a parameter's gradient has been accumulated.
//
// They sit on the parameter's AccumulateGrad node, as those of torch's own reducer. They run in the thread of backward,
// and come off when this object goes.
#pragma once

#include <ATen/core/Tensor.h>

#include <functional>
#include <utility>
#include <vector>

#include "compat/torch_compat.h"

namespace hasten::parallel {

/// Gets a parameter's number, and what came into its .grad() in this backward.
using OnGradient = std::function<void(size_t, const at::Tensor&)>;

class GradientHooks {
 public:
  /// `on_gradient` is called once a backward for each of the leaf tensors `parameters` that took part in it.
  GradientHooks(std::vector<at::Tensor> parameters, const OnGradient& on_gradient);
  ~GradientHooks();
  GradientHooks(const GradientHooks&) = delete;
  GradientHooks& operator=(const GradientHooks&) = delete;

  /// Returns true if autograd still uses the hooked nodes: Module::to() with another dtype or device takes new ones.
  bool intact() const;

 private:
  std::vector<at::Tensor> parameters_;
  // A tensor holds its accumulator weakly; the hook lasts as long as the node has an owner.
  std::vector<std::pair<compat::AutogradNode, uintptr_t>> hooks_;
};

}  // namespace hasten::parallel
