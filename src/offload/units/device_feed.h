// DeviceFeed: units of weights that rest on the host, and are on a device while operators use them.
//
// A read of a unit sends its bytes through a ring of pinned pieces into one of two buffers. The reader's stream waits
// for the copies. The order of reads is remembered, so the next unit is on its way while one is in use. Each weight has
// a form on the device, a tensor whose storage points into the buffer, and to nothing at rest. What autograd saves is
// such a form, so backward reads units again, and no copy of a weight survives its unit.
#pragma once

#include <ATen/core/Tensor.h>
#include <c10/core/Stream.h>

#include <cstdint>
#include <deque>
#include <memory>
#include <mutex>
#include <optional>
#include <vector>

#include "hasten/offload/units/device_buffer.h"
#include "hasten/offload/units/named_memory.h"
#include "hasten/offload/units/read_order.h"
#include "hasten/offload/units/weight_streamer.h"
#include "offload/units/pinned_ring.h"

namespace hasten::offload::detail {

struct DeviceFeedOptions {
  /// Units in memory at a time, one that is arriving among them.
  size_t num_buffers = 2;
  PageCache page_cache = PageCache::kAuto;
  PinnedRingOptions ring = {};
};

class DeviceFeed {
 public:
  /// Units whose `streamed` is set leave this process's memory behind their reads: they rest in files. The others stay.
  DeviceFeed(std::vector<StreamUnit> units, c10::Device device, const DeviceFeedOptions& options);
  ~DeviceFeed();
  DeviceFeed(const DeviceFeed&) = delete;
  DeviceFeed& operator=(const DeviceFeed&) = delete;

  const std::vector<StreamUnit>& units() const noexcept { return units_; }
  c10::Device device() const noexcept { return device_; }
  /// The form of a weight on the device. Its values are there after a read of the unit.
  const at::Tensor& form(size_t unit, size_t tensor) const { return states_[unit].forms[tensor]; }

  /// Puts the units into memory and lets the calling thread's stream wait for them. They stay until this thread reads
  /// others. Blocks: while the host's bytes are read, if they were not asked for ahead. Throws: as
  /// MappedRegion's reads; c10::OutOfMemoryError.
  void read(const std::vector<size_t>& units);
  /// The program writes to a weight of the unit where it rests: it is read anew, and stays in this process's memory.
  void note_write(size_t unit);
  /// The units of this thread's last read may go.
  void end_use();
  /// Returns how many units were read and given up so far.
  StreamCounts counts() const;

 private:
  struct State {
    std::vector<at::Tensor> forms = {};
    std::vector<int64_t> offsets = {};
    int64_t bytes = 0;
    /// Filled from these: dense tensors where the weights rest.
    std::vector<at::Tensor> sources = {};
    std::optional<DeviceBuffer> buffer = {};
    std::optional<PinnedRing::Sent> sent = {};
    bool arrived = false;
    std::vector<c10::Stream> readers = {};
    int64_t used_at = 0;
    /// Version of the weights when their bytes were requested.
    int64_t version = 0;
  };
  struct Use {
    std::weak_ptr<const char> thread;
    std::vector<size_t> units;
  };

  void lay_out(size_t unit);
  void protect(size_t unit);
  void set_writable(size_t unit) noexcept;
  void fill_ahead(const std::vector<size_t>& keep);
  /// Returns whether there is room for one more unit; those of `keep` and of other threads stay.
  bool make_room(const std::vector<size_t>& keep);
  void start(size_t unit);
  void finish(size_t unit);
  void release(size_t unit);
  void point(State& state, bool at_buffer);
  PinnedRing::Fill fill_of(size_t unit) const;
  int64_t version_of(size_t unit) const;
  Use& use_of_this_thread();
  bool is_used_elsewhere(size_t unit) const;

  const c10::Device device_;
  const DeviceFeedOptions options_;
  std::vector<StreamUnit> units_;
  const bool keeps_cache_;
  std::vector<State> states_;
  std::vector<DeviceBuffer> pool_;
  std::vector<Use> uses_;
  std::deque<NamedMemory> names_;
  int64_t largest_ = 0, clock_ = 0;
  size_t live_ = 0;
  ReadOrder order_;
  StreamCounts counts_;
  mutable std::mutex mutex_;
  PinnedRing ring_;  // last: its threads end first
};

}  // namespace hasten::offload::detail
