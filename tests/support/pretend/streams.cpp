// See streams.h.
#include "support/pretend/streams.h"

#include <algorithm>
#include <array>
#include <chrono>
#include <condition_variable>
#include <cstdlib>
#include <deque>
#include <exception>
#include <map>
#include <mutex>
#include <thread>
#include <utility>

namespace hasten::testing::pretend {
namespace {

struct Queue {
  std::deque<std::function<void()>> tasks;
  uint64_t submitted = 0, done = 0;
  bool is_running = false;
};

thread_local c10::DeviceIndex thread_device = 0;
thread_local std::array<c10::StreamId, kMaxDevices> thread_streams = {};

struct Queues {
  std::mutex mutex;
  std::condition_variable changed;
  std::map<std::pair<c10::DeviceIndex, c10::StreamId>, Queue> by_stream;

  Queue& of(const c10::Stream& stream) { return by_stream[{stream.device_index(), stream.id()}]; }
};

// Never destroyed: tensors may outlive static objects.
Queues& queues() {
  static auto* const all = new Queues;
  return *all;
}

// Runs up to `most` tasks that come before the mark, without the lock: they may run other streams.
void run(const Mark& mark, uint64_t most) {
  Queues& all = queues();
  std::unique_lock lock(all.mutex);
  Queue& queue = all.of(mark.stream);
  for (uint64_t number = 0; number < most && queue.done < mark.number; ++number) {
    all.changed.wait(lock, [&] { return !queue.is_running; });
    if (queue.done >= mark.number) return;
    std::exception_ptr error;
    {
      const auto task = std::move(queue.tasks.front());
      queue.tasks.pop_front();
      queue.is_running = true;
      lock.unlock();
      try {
        task();
      } catch (...) {
        error = std::current_exception();
      }
    }
    lock.lock();
    queue.is_running = false;
    ++queue.done;
    all.changed.notify_all();
    if (error) std::rethrow_exception(error);
  }
}

}  // namespace

Counts& counted() {
  static auto* const counts = new Counts;
  return *counts;
}

extern "C" Counts* hasten_pretend_counts() {
  return &counted();
}

c10::DeviceIndex num_devices() {
  static const auto number = [] {
    const char* text = std::getenv("HASTEN_PRETEND_DEVICES");
    return static_cast<c10::DeviceIndex>(text == nullptr ? 4 : std::clamp(std::atoi(text), 0, kMaxDevices));
  }();
  return number;
}

c10::DeviceIndex current_device() {
  return thread_device;
}
c10::DeviceIndex exchange_device(c10::DeviceIndex device) {
  TORCH_CHECK(device < num_devices(), "CUDA error: invalid device ordinal ", static_cast<int>(device));
  return device < 0 ? thread_device : std::exchange(thread_device, device);
}
c10::Device indexed(c10::Device device) {
  return {kType, device.has_index() ? device.index() : thread_device};
}

c10::Stream stream_of(c10::DeviceIndex device, c10::StreamId id) {
  return c10::Stream(c10::Stream::UNSAFE, c10::Device(kType, device), id);
}
c10::Stream current_stream(c10::DeviceIndex device) {
  return stream_of(device, thread_streams.at(static_cast<size_t>(device)));
}
c10::Stream exchange_stream(c10::Stream stream) {
  auto& current = thread_streams.at(static_cast<size_t>(stream.device_index()));
  return stream_of(stream.device_index(), std::exchange(current, stream.id()));
}
c10::Stream new_stream(c10::DeviceIndex device) {
  const std::lock_guard lock(queues().mutex);
  return stream_of(device, 1 + counted().streams.at(static_cast<size_t>(device))++ % kNumPoolStreams);
}

Mark mark_of(const c10::Stream& stream) {
  const std::lock_guard lock(queues().mutex);
  return {stream, queues().of(stream).submitted};
}

bool is_done(const Mark& mark) {
  const std::lock_guard lock(queues().mutex);
  return queues().of(mark.stream).done >= mark.number;
}

void submit(const c10::Stream& stream, std::function<void()> task) {
  const std::lock_guard lock(queues().mutex);
  Queue& queue = queues().of(stream);
  queue.tasks.push_back(std::move(task));
  ++queue.submitted;
}

extern "C" void hasten_pretend_launch(const c10::Stream& stream, std::function<void()> work) {
  add(counted().kernels);
  submit(stream, std::move(work));
}

extern "C" void hasten_pretend_settle(const c10::Stream& stream) {
  run_until(mark_of(stream));
}

void run_until(const Mark& mark) {
  run(mark, mark.number);
}
void run_one(const Mark& mark) {
  run(mark, 1);
}

bool all_idle() {
  const std::lock_guard lock(queues().mutex);
  return std::all_of(queues().by_stream.begin(), queues().by_stream.end(),
                     [](const auto& item) { return item.second.done == item.second.submitted; });
}

void wait_for(const Mark& mark) {
  add(counted().waits);
  if (!is_done(mark)) std::this_thread::sleep_for(std::chrono::milliseconds(counted().slow_ms));
  run_until(mark);
}

void begin_kernel(c10::DeviceIndex device) {
  add(counted().kernels);
  run_until(mark_of(current_stream(device)));
}

}  // namespace hasten::testing::pretend
