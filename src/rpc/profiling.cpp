// See profiling.h.
#include "rpc/profiling.h"

#include <c10/util/ThreadLocalDebugInfo.h>

#include "hasten/core/text.h"
#include "hasten/rpc/detail/core.h"
#include "rpc/thread_state.h"

namespace hasten::rpc {

std::unique_ptr<at::RecordFunction> open_scope(const ProfiledCall& call) {
  auto scope = std::make_unique<at::RecordFunction>(at::RecordScope::USER_SCOPE);
  if (!scope->isActive()) return nullptr;
  scope->before(text(call.kind, '#', call.function, '(', call.from, " -> ", call.to, ')'), call.number);
  return scope;
}

ProfilerOfThread ProfilerOfThread::current() {
  return {at::get_record_function_tls_(), c10::ThreadLocalDebugInfo::current()};
}

ProfilerLoan::ProfilerLoan(const ProfilerOfThread& profiler) : before_(ProfilerOfThread::current()) {
  at::set_record_function_tls_(profiler.callbacks);
  c10::ThreadLocalDebugInfo::_forceCurrentDebugInfo(profiler.state);
}

ProfilerLoan::~ProfilerLoan() {
  at::set_record_function_tls_(before_.callbacks);
  c10::ThreadLocalDebugInfo::_forceCurrentDebugInfo(before_.state);
}

namespace detail {

WaitedFor::WaitedFor() {
  ++current_thread().waited_for;
}

WaitedFor::~WaitedFor() {
  auto& current = current_thread();
  if (--current.waited_for == 0) current.waited_scope.reset();
}

}  // namespace detail

}  // namespace hasten::rpc
