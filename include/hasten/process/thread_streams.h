// Streams of threads that do part of another thread's work.
#pragma once

#include <functional>

namespace hasten::process {

/// Returns a function that gives a thread the CUDA device and the current streams of this one, for work that this one
/// waits for. A new thread has device 0 and default streams, which do not wait for what this thread's streams make.
std::function<void()> streams_for_threads();

}  // namespace hasten::process
