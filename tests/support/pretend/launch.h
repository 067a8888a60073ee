// Work of a test's own in a stream of the pretend device: it runs when the stream is waited for, as late as a GPU may.
#pragma once

#include <c10/core/Stream.h>
#include <dlfcn.h>

#include <functional>
#include <utility>

namespace hasten::testing::pretend {

extern "C" using LaunchFunction = void(const c10::Stream& stream, std::function<void()> work);

/// Adds `work` to the stream, as cudaLaunchHostFunc does. The process must have the pretend device.
inline void launch(const c10::Stream& stream, std::function<void()> work) {
  static auto* const function = reinterpret_cast<LaunchFunction*>(dlsym(RTLD_DEFAULT, "hasten_pretend_launch"));
  function(stream, std::move(work));
}

extern "C" using SettleFunction = void(const c10::Stream& stream);

/// Runs what the stream was given so far, as a GPU may have done by now. Counts as no wait of the host.
inline void settle(const c10::Stream& stream) {
  static auto* const function = reinterpret_cast<SettleFunction*>(dlsym(RTLD_DEFAULT, "hasten_pretend_settle"));
  function(stream);
}

}  // namespace hasten::testing::pretend
