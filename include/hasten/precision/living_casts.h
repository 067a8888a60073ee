// Living casts: half-precision copies of float32 parameters that stay from scope to scope.
//
// at::autocast caches casts of leaves until its outermost scope ends. libtorch's C++ F::linear multiplies by a view of
// the weight, which is never cached: every Linear is cast anew at every use. Here a parameter carries an interceptor
// (interception/) with a copy. In the operators that autocast runs in half precision, the copy takes its place, behind
// a node whose backward casts the gradient. A watch at the storage (compat/storage_watch) reports writes, and the next
// use after a write copies again. Results and gradients equal at::autocast's.
#pragma once

#include <ATen/core/Tensor.h>

#include <memory>
#include <vector>

#include "hasten/precision/fp8.h"

namespace torch::nn {
class Module;
}

namespace hasten::precision {

/// The copies of one module's parameters. Its end takes the interceptors off.
class LivingCasts {
 public:
  /// Marks every float32 parameter of the module. Copies are made at the first use inside a scope, in its dtype.
  explicit LivingCasts(const torch::nn::Module& module);
  ~LivingCasts();
  LivingCasts(LivingCasts&&) noexcept;
  LivingCasts& operator=(LivingCasts&&) noexcept;

  /// Casts made so far: one a parameter that is used, and one more after each write to it. For tests and benchmarks.
  int64_t num_casts() const noexcept;

 private:
  struct Impl;
  std::unique_ptr<Impl> impl_;
};

/// Linear layers of one module in 8 bits, inside autocast scopes: their weights carry an interceptor that replaces the
/// product. Its end takes the interceptors off.
class Fp8Layers {
 public:
  /// Marks the layers that fp8_layers chooses.
  /// Throws: the exceptions of the filter.
  Fp8Layers(const torch::nn::Module& module, const Fp8Options& options);
  ~Fp8Layers();
  Fp8Layers(Fp8Layers&&) noexcept;
  Fp8Layers& operator=(Fp8Layers&&) noexcept;

  const std::vector<std::string>& names() const noexcept;
  /// Returns the scales of delayed scaling, one a layer, in the order of names().
  std::vector<DelayedScales*> scales() const;

 private:
  struct Impl;
  std::unique_ptr<Impl> impl_;
};

}  // namespace hasten::precision
