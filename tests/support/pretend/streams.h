// Streams of the pretend device: queues of work that waits until an event, a synchronisation or a kernel asks for it.
//
// A thread that asks runs the work itself. Threads that ask for one stream take turns, those of two streams do not
// meet.
#pragma once

#include <c10/core/Stream.h>

#include <atomic>
#include <cstdint>
#include <functional>

#include "support/pretend/counts.h"

namespace hasten::testing::pretend {

inline constexpr auto kType = c10::DeviceType::CUDA;
inline constexpr c10::StreamId kNumPoolStreams = 32;

Counts& counted();
inline void add(int64_t& count, int64_t more = 1) {
  std::atomic_ref<int64_t>(count).fetch_add(more);
}

/// HASTEN_PRETEND_DEVICES of the environment, 4 by default.
c10::DeviceIndex num_devices();
c10::DeviceIndex current_device();
/// Makes `device` the thread's; returns the one before.
c10::DeviceIndex exchange_device(c10::DeviceIndex device);
/// The device itself, with the thread's index where it has none.
c10::Device indexed(c10::Device device);

c10::Stream stream_of(c10::DeviceIndex device, c10::StreamId id);
c10::Stream current_stream(c10::DeviceIndex device);
/// Makes `stream` the thread's on its device; returns the one before.
c10::Stream exchange_stream(c10::Stream stream);
c10::Stream new_stream(c10::DeviceIndex device);

/// A place in a stream: an event holds one.
struct Mark {
  c10::Stream stream;
  uint64_t number;
};

Mark mark_of(const c10::Stream& stream);
bool is_done(const Mark& mark);
void submit(const c10::Stream& stream, std::function<void()> task);
/// Runs what the stream was given up to the mark; work that waits for other streams runs theirs.
void run_until(const Mark& mark);
/// Runs one task that the mark waits for, so that a loop of queries ends.
void run_one(const Mark& mark);
/// Whether no stream has work that waits or runs.
bool all_idle();

/// The host waits for the mark. Its other threads may do wrong things meanwhile.
void wait_for(const Mark& mark);
/// A kernel starts: the work of the thread's stream that comes before it is done first.
void begin_kernel(c10::DeviceIndex device);

}  // namespace hasten::testing::pretend
