// Parameters whose values are away while nothing reads them, for code that reads and writes memory past interceptors.
#pragma once

#include <ATen/core/Tensor.h>

namespace hasten::parallel {

/// Holds the values of parameters. An interceptor of each of them, which brings them to operators by itself.
class ValuesAway {
 public:
  virtual ~ValuesAway() = default;
  /// Puts the tensor's values into its memory, where they stay until others are read. `writes`: what is then written
  /// there counts. Collective: yes, where ranks have parts of them. Blocks: then. Throws: CommError.
  virtual void bring(const at::Tensor& tensor, bool writes) = 0;
};

/// Brings the values of a parameter, or of a view of one, if they are away. Collective, Blocks, Throws: as bring.
void bring_values(const at::Tensor& tensor, bool writes = false);

}  // namespace hasten::parallel
