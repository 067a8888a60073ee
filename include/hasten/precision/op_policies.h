// OpPolicies: changes to libtorch's lists of which operators autocast runs in which dtype.
//
// libtorch has the lists as kernels at dispatch keys. A kernel that is registered at run time replaces the kernel
// there, and goes with its library. The change holds for the whole process while the object exists, inside autocast
// scopes only. Apex's register_half_function and its kin, by operator instead of by Python function.
#pragma once

#include <c10/core/DeviceType.h>

#include <memory>
#include <string>

namespace hasten::precision {

/// kLow: inputs are cast to the scope's dtype. kFloat32: to float32. kWidest: to the widest dtype among them. kRefuse:
/// a half-precision input is an error.
enum class CastPolicy { kLow, kFloat32, kWidest, kRefuse };

class OpPolicies {
 public:
  /// Throws: UsageError for a device other than CPU and CUDA.
  explicit OpPolicies(c10::DeviceType device);
  OpPolicies(OpPolicies&&) noexcept;
  OpPolicies& operator=(OpPolicies&&) noexcept;
  ~OpPolicies();

  /// Sets the policy of an operator, with all its overloads that return new tensors: "aten::gelu", or "gelu". In-place
  /// operators ("exp_") are operators of their own. The last setting of an operator holds.
  /// Throws: UsageError with "did you mean" for an unknown operator.
  void set(const std::string& op, CastPolicy policy);

  /// Applies Apex's lists where they differ from libtorch's. float32 is for gelu, std, var, renorm, interpolation and
  /// ctc_loss. For halves, binary_cross_entropy and in-place float32 operators are refused.
  void set_apex_lists();

 private:
  struct Impl;
  std::unique_ptr<Impl> impl_;
};

}  // namespace hasten::precision
