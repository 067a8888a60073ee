// Claim: says whose a parameter is, so that what would move it elsewhere refuses by name.
#pragma once

#include <ATen/core/Tensor.h>

#include <string>

namespace hasten::interception {

/// An interceptor of the parameter, or a hook of its gradient (torch::autograd::FunctionPostHook).
class Claim {
 public:
  virtual ~Claim() = default;
  /// Returns the holder of the parameter, as the words behind "it is": "streamed by a device map". "" if it has none
  /// any more.
  virtual std::string words() const = 0;
};

/// Returns the words of the tensor's first claim; "" if it has none.
std::string claim_of(const at::Tensor& tensor);

}  // namespace hasten::interception
