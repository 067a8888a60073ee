// PassOfHandle: what holds during a call of a dispatched model's handle.
#pragma once

namespace hasten::offload::detail {

/// Begins when it is made, and ends with it.
class PassOfHandle {
 public:
  PassOfHandle() = default;
  virtual ~PassOfHandle() = default;
  PassOfHandle(const PassOfHandle&) = delete;
  PassOfHandle& operator=(const PassOfHandle&) = delete;
};

}  // namespace hasten::offload::detail
