// CastParameters: the low-precision copies of a model's parameters that autocast would make, once a host.
//
// Autocast casts each float32 weight in every forward, on every rank. Here the owner of a slice casts it once a step
// into a second region of the host. Operators that autocast runs in the lower precision get a view of that copy in the
// parameter's place. Its gradient is cast back and arrives at the parameter as autocast's would. Norms are left alone,
// as autocast leaves them.
#pragma once

#include <unordered_map>
#include <vector>

#include "hasten/comm/shared_region.h"
#include "hasten/interception/interceptor.h"
#include "hasten/offload/units/home.h"

namespace hasten::parallel::shard {

class CastParameters : public interception::Interceptor {
 public:
  explicit CastParameters(c10::ScalarType dtype) : dtype_(dtype) {}
  ~CastParameters() override;

  std::vector<std::string_view> operators() const override;
  bool intercept(const c10::OperatorHandle& op, interception::Stack& stack) override;

  /// The copy of `parameter` lies at this element of the region. `home` outlives this object or the next clear().
  void add(const at::Tensor& parameter, const comm::SharedRegion& region, int64_t offset, const offload::Home& home);
  void clear();
  c10::ScalarType dtype() const noexcept { return dtype_; }

 private:
  struct Copy {
    at::Tensor tensor;
    const offload::Home* home;
  };
  const c10::ScalarType dtype_;
  std::unordered_map<const c10::TensorImpl*, Copy> copies_;
};

}  // namespace hasten::parallel::shard
