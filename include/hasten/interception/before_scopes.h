// BeforeScopes: interceptors that are asked before the scopes, and lists of one interceptor that many tensors share.
//
// Such an interceptor stands for tensors that are no tensors of libtorch's: it replaces them by those that are. So a
// scope (a recorder) sees operators on these alone. Operators that it calls are intercepted again.
#pragma once

#include <ATen/core/Tensor.h>
#include <c10/util/intrusive_ptr.h>

namespace hasten::interception {

class Interceptor;

/// An Interceptor of Level::kEveryOperator that is asked before every EveryOperatorScope.
class BeforeScopes {
 public:
  virtual ~BeforeScopes() = default;
  /// Those of lower numbers are asked first, wherever their tensors stand among the arguments.
  virtual int order() const noexcept = 0;
};

/// A list of one interceptor that many tensors share. It does not own the interceptor, which must outlive the tensors.
class SharedInterceptor {
 public:
  explicit SharedInterceptor(Interceptor& interceptor);
  ~SharedInterceptor();
  SharedInterceptor(const SharedInterceptor&) = delete;
  SharedInterceptor& operator=(const SharedInterceptor&) = delete;

  /// Makes it the tensor's only interceptor, for tensors without a storage.
  void mark(const at::Tensor& tensor) const;

 private:
  c10::intrusive_ptr<c10::BackendMeta> list_;
};

}  // namespace hasten::interception
