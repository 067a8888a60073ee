// Calls in a profile: one scope at the caller and one at the callee, with one name and one number.
//
// The name is torch's, "rpc_sync#f(w0 -> w1)". The number, which libtorch's profiler shows as sequence number, is the
// same on both sides. Without a profiler a call costs one check whether there is any.
#pragma once

#include <ATen/record_function.h>

#include <cstdint>
#include <memory>
#include <string>
#include <string_view>

namespace c10 {
class ThreadLocalDebugInfo;
}

namespace hasten::rpc {

struct ProfiledCall {
  const char* kind = "rpc_async";
  std::string_view function;
  const std::string& from;
  const std::string& to;
  int64_t number = 0;
};

/// Opens the call's scope in this thread; null if nothing records here.
std::unique_ptr<at::RecordFunction> open_scope(const ProfiledCall& call);

/// The recorders of a thread: callbacks of a profiler and its state.
struct ProfilerOfThread {
  at::RecordFunctionTLS callbacks;
  std::shared_ptr<c10::ThreadLocalDebugInfo> state;
  static ProfilerOfThread current();
};

/// Lets this thread record for another thread's profiler while it exists.
class ProfilerLoan {
 public:
  explicit ProfilerLoan(const ProfilerOfThread& profiler);
  ~ProfilerLoan();
  ProfilerLoan(const ProfilerLoan&) = delete;
  ProfilerLoan& operator=(const ProfilerLoan&) = delete;

 private:
  ProfilerOfThread before_;
};

}  // namespace hasten::rpc
