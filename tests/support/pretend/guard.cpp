// See guard.h.
#include "support/pretend/guard.h"

#include "support/pretend/memory.h"
#include "support/pretend/streams.h"

namespace hasten::testing::pretend {

c10::DeviceType Guard::type() const {
  return kType;
}
c10::Device Guard::exchangeDevice(c10::Device device) const {
  return {kType, exchange_device(device.index())};
}
c10::Device Guard::getDevice() const {
  return {kType, current_device()};
}
void Guard::setDevice(c10::Device device) const {
  exchange_device(device.index());
}
void Guard::uncheckedSetDevice(c10::Device device) const noexcept {
  if (device.index() < num_devices()) exchange_device(device.index());
}
c10::DeviceIndex Guard::deviceCount() const noexcept {
  return num_devices();
}

c10::Stream Guard::getStream(c10::Device device) const {
  return current_stream(indexed(device).index());
}
c10::Stream Guard::getDefaultStream(c10::Device device) const {
  return stream_of(indexed(device).index(), 0);
}
c10::Stream Guard::getStreamFromGlobalPool(c10::Device device, bool) const {
  return new_stream(indexed(device).index());
}
c10::Stream Guard::getNewStream(c10::Device device, int) const {
  return new_stream(indexed(device).index());
}
c10::Stream Guard::exchangeStream(c10::Stream stream) const {
  return exchange_stream(stream);
}
bool Guard::queryStream(const c10::Stream& stream) const {
  return is_done(mark_of(stream));
}
void Guard::synchronizeStream(const c10::Stream& stream) const {
  wait_for(mark_of(stream));
}
void Guard::synchronizeDevice(c10::DeviceIndex device) const {
  add(counted().waits);
  const auto index = device < 0 ? current_device() : device;
  for (c10::StreamId id = 0; id <= kNumPoolStreams; ++id) run_until(mark_of(stream_of(index, id)));
}

void Guard::record(void** event, const c10::Stream& stream, c10::DeviceIndex, c10::EventFlag) const {
  const Mark mark = mark_of(stream);
  if (*event == nullptr) {
    *event = new Mark(mark);
  } else {
    *static_cast<Mark*>(*event) = mark;
  }
}
void Guard::block(void* event, const c10::Stream& stream) const {
  if (event == nullptr) return;
  submit(stream, [mark = *static_cast<Mark*>(event)] { run_until(mark); });
}
bool Guard::queryEvent(void* event) const {
  if (event == nullptr) return true;
  const Mark& mark = *static_cast<Mark*>(event);
  run_one(mark);
  return is_done(mark);
}
void Guard::synchronizeEvent(void* event) const {
  if (event != nullptr) wait_for(*static_cast<Mark*>(event));
}
void Guard::destroyEvent(void* event, c10::DeviceIndex) const noexcept {
  delete static_cast<Mark*>(event);
}
double Guard::elapsedTime(void*, void*, c10::DeviceIndex) const {
  return 0;
}

void Guard::recordDataPtrOnStream(const c10::DataPtr& memory, const c10::Stream& stream) const {
  record_use(memory.get(), stream);
}

C10_REGISTER_GUARD_IMPL(CUDA, Guard)

}  // namespace hasten::testing::pretend
