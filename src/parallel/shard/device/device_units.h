// DeviceUnits: the memory of a model's units on a device, whose ranks have memory of their own.
//
// At rest a rank has the stripe of each unit that it owns. A read needs the whole unit. The own stripe is cast into a
// buffer of the pool, and an all-gather on a stream of its own brings the others. The reader's stream waits for it,
// and the host does not. The gathered bytes are the unit: parameters' storages point into the buffer, and to nothing at
// rest. The order of reads is remembered, so the next unit is gathered while one is in use. A unit has two forms:
// exact, and in the low precision that autocast would cast to.
#pragma once

#include <ATen/core/Tensor.h>
#include <c10/core/Stream.h>

#include <cstdint>
#include <mutex>
#include <optional>
#include <string>
#include <unordered_map>
#include <vector>

#include "hasten/comm/group/group.h"
#include "hasten/offload/units/device_buffer.h"
#include "hasten/offload/units/read_order.h"
#include "hasten/parallel/shard/options.h"

namespace hasten::parallel::shard {

struct DeviceUnitsOptions {
  c10::Device device = c10::Device(at::kCUDA, 0);
  /// Whole units that stay in memory, one that is arriving among them, and the bytes that may stay beyond that.
  int64_t max_units = 2;
  int64_t max_bytes = 0;
  /// Units are gathered ahead of their reads as long as they have at most this many bytes.
  int64_t prefetch_bytes = int64_t{64} << 20;
  /// Units that the order of the last step reads again within this many bytes stay, beyond the limits above.
  int64_t max_reuse_bytes = 0;
};

class DeviceUnits {
 public:
  /// A unit in one form: the number of a unit times two, plus one if it is low.
  using Form = size_t;
  static Form exact(size_t unit) { return 2 * unit; }
  static Form low(size_t unit) { return 2 * unit + 1; }

  struct Unit {
    std::string name = {};
    int64_t share = 0;
    c10::ScalarType dtype = c10::ScalarType::Float;
    /// Stays whole on every rank.
    bool resident = false;
    /// This rank's elements, where reads take them from.
    at::Tensor stripe = {};
    /// The same on the CPU, where they are stepped; undefined if the stripe itself is.
    at::Tensor master = {};
    /// The same in the low precision, where reads of the low form take them from; undefined: they are cast from the
    /// stripe. If that rests on the CPU and this does not, `staging` is pinned memory on the way.
    at::Tensor low = {}, staging = {};
    /// The values that the CPU has stepped are on their way.
    bool is_sent = false;
    /// The whole, for a resident unit.
    at::Tensor whole = {};
  };

  DeviceUnits(comm::Group group, DeviceUnitsOptions options);
  /// Storages keep no memory of the pool.
  ~DeviceUnits();
  DeviceUnits(const DeviceUnits&) = delete;
  DeviceUnits& operator=(const DeviceUnits&) = delete;

  size_t add(Unit unit);
  Unit& unit(size_t index) { return units_[index]; }
  size_t num_units() const noexcept { return units_.size(); }
  /// The storage shows the unit's elements from `offset` on while the form is in memory.
  void show(Form form, c10::ScalarType dtype, const c10::Storage& storage, int64_t offset);

  /// Puts the forms into memory and lets the calling thread's stream wait for them. Others give their memory up.
  /// `ahead`: the form that came next the last time is gathered too. Collective: yes, for those that are not there.
  /// Blocks: until all ranks have come, where the CPU carries the bytes. Throws: CommError with a remedy.
  void read(const std::vector<Form>& forms, bool ahead);
  /// Gathers the form that came next the last time. Collective, Blocks, Throws: as read.
  void read_ahead();
  /// The program writes to the exact form, which is there: the stripe takes the values over before the form goes.
  void note_write(Form form);
  /// Stripes take over what the program has written.
  void flush();
  /// Values of before are old: no form stays in memory. Stripes were written to on the calling thread's stream.
  void drop();
  /// The stripe has other values, which the calling thread's stream wrote: no form of its unit stays.
  void forget(Form exact);
  /// A resident unit's other stripes come from their owners. Collective: yes. Throws: CommError.
  void gather(size_t unit);
  /// The calling thread's stream waits for what has been gathered.
  void settle();
  /// The same, after the gathers that are under way: they read the stripes. Collective, Blocks, Throws: as read.
  void end_reads();
  /// While it is set, forms stay whatever their number.
  void set_hold(bool hold);
  /// A step on the CPU begins: what it steps has not been sent.
  void begin_sends();
  /// The unit's stripe was stepped on the CPU and goes to the device: in the low precision where reads take that.
  /// Does nothing if it was sent since begin_sends.
  void send(size_t unit);
  /// Returns when this object's stream has done what it was given, so no copy reads the CPU's stripes any more.
  void wait_for_masters();

  const UnitCounts& counts() const noexcept { return counts_; }
  const c10::Stream& stream() const noexcept { return stream_; }
  c10::Stream current_stream() const;
  const comm::Group& group() const noexcept { return group_; }
  c10::Device device() const noexcept { return options_.device; }

 private:
  struct Part {
    c10::Storage storage;
    int64_t offset = 0;
  };
  struct State {
    c10::ScalarType dtype = c10::ScalarType::Float;
    std::vector<Part> parts = {};
    bool started = false, arrived = false, written = false;
    offload::DeviceBuffer buffer = {};
    at::Tensor whole = {};
    std::optional<comm::Work<>> work = {};
    std::optional<c10::Event> event = {};
    /// Streams that have waited for it.
    std::vector<c10::Stream> readers = {};
    int64_t used_at = 0;
  };

  int64_t bytes_of(Form form) const;
  /// Returns the forms that come within max_reuse_bytes, if reads go on as in the last step.
  std::vector<Form> soon_reused() const;
  /// Returns true if another form of so many bytes is beyond the limits, beside those that stay for their reuse.
  bool is_full(int64_t bytes, const std::vector<Form>& reused) const;
  /// The low stripe takes the stripe's values over. The host waits for them.
  void refresh_low(Unit& of);
  void make_room(int64_t bytes, const std::vector<Form>& keep);
  offload::DeviceBuffer take_buffer(int64_t bytes);
  void start(Form form);
  void finish(Form form);
  void release(Form form);
  void write_back(Form form);
  void fill_ahead(const std::vector<Form>& keep);
  void point(State& state, bool at_buffer);

  comm::Group group_;
  DeviceUnitsOptions options_;
  c10::Stream stream_;
  std::vector<Unit> units_;
  std::unordered_map<Form, State> states_;
  std::vector<offload::DeviceBuffer> pool_;
  /// The stripes are complete on the device.
  std::optional<c10::Event> stepped_;
  offload::ReadOrder order_;
  /// The forms in the order of their reads: since the last step, and in the one before. For max_reuse_bytes.
  std::vector<Form> reads_, earlier_reads_;
  int64_t clock_ = 0, live_units_ = 0, live_bytes_ = 0, largest_ = 0;
  bool hold_ = false;
  UnitCounts counts_;
  std::recursive_mutex mutex_;
};

}  // namespace hasten::parallel::shard
