// Memory of the pretend device, and pinned memory of the host: what is fresh or freed holds NaN.
#pragma once

#include <c10/core/Allocator.h>
#include <c10/core/CachingDeviceAllocator.h>
#include <c10/core/Stream.h>

#include <optional>

namespace hasten::testing::pretend {

/// Gives memory of the thread's device, whose stream may use it; record_use tells of others.
c10::DeviceAllocator& device_allocator();
c10::Allocator& pinned_allocator();

/// Memory that is freed before the stream has done what it was given so far lives until then.
void record_use(const void* memory, const c10::Stream& stream);
bool is_pinned(const void* pointer);
/// The device whose memory holds the address.
std::optional<c10::DeviceIndex> device_of(const void* pointer);

}  // namespace hasten::testing::pretend
