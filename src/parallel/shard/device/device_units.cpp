// See device_units.h.
#include "parallel/shard/device/device_units.h"

#include <ATen/Functions.h>
#include <c10/core/StreamGuard.h>
#include <c10/core/impl/VirtualGuardImpl.h>
#include <torch/types.h>

#include <algorithm>
#include <limits>

#include "hasten/core/error.h"
#include "parallel/shard/device/device_memory.h"

namespace hasten::parallel::shard {

using offload::DeviceBuffer;
using offload::PlainMode;

namespace {

// So many units make a pool of equal buffers.
constexpr int64_t kFew = 8;

}  // namespace

DeviceUnits::DeviceUnits(comm::Group group, DeviceUnitsOptions options)
    : group_(std::move(group)),
      options_(options),
      stream_(c10::impl::VirtualGuardImpl(options.device.type()).getStreamFromGlobalPool(options.device, true)) {}

DeviceUnits::~DeviceUnits() {
  for (auto& [form, state] : states_) {
    if (state.arrived) point(state, false);
  }
  // Work of these streams may still read the memory, which other streams get next.
  const c10::impl::VirtualGuardImpl device(options_.device.type());
  for (const auto& unit : units_) {
    for (const at::Tensor& tensor : {unit.stripe, unit.low, unit.whole}) {
      if (tensor.defined() && tensor.device() == options_.device)
        device.recordDataPtrOnStream(tensor.storage().data_ptr(), stream_);
    }
  }
}

c10::Stream DeviceUnits::current_stream() const {
  return c10::impl::VirtualGuardImpl(options_.device.type()).getStream(options_.device);
}

size_t DeviceUnits::add(Unit unit) {
  if (!unit.resident) {
    const auto bytes = static_cast<int64_t>(c10::elementSize(unit.dtype));
    largest_ = std::max(largest_, unit.share * group_.world_size() * bytes);
  }
  units_.push_back(std::move(unit));
  return units_.size() - 1;
}

void DeviceUnits::show(Form form, c10::ScalarType dtype, const c10::Storage& storage, int64_t offset) {
  auto& state = states_[form];
  state.dtype = dtype;
  state.parts.push_back({storage, offset});
}

int64_t DeviceUnits::bytes_of(Form form) const {
  const auto& of = units_[form / 2];
  return of.share * group_.world_size() * static_cast<int64_t>(c10::elementSize(states_.at(form).dtype));
}

void DeviceUnits::read(const std::vector<Form>& forms, bool ahead) {
  const std::lock_guard lock(mutex_);
  const PlainMode plain;
  for (const Form form : forms) {
    if (options_.max_reuse_bytes > 0 && order_.last() != form) reads_.push_back(form);
    order_.note(form);
    if (!states_.at(form).started) {
      make_room(bytes_of(form), forms);
      start(form);
    }
  }
  const auto stream = current_stream();
  for (const Form form : forms) {
    auto& state = states_.at(form);
    if (!state.arrived) finish(form);
    state.used_at = ++clock_;
    if (std::find(state.readers.begin(), state.readers.end(), stream) != state.readers.end()) continue;
    state.event->block(stream);
    state.readers.push_back(stream);
  }
  if (ahead) fill_ahead(forms);
}

void DeviceUnits::read_ahead() {
  const std::lock_guard lock(mutex_);
  const PlainMode plain;
  fill_ahead({});
}

void DeviceUnits::fill_ahead(const std::vector<Form>& keep) {
  auto place = order_.place();
  int64_t bytes = 0;
  // Forms that come before the one to be gathered do not give way to it.
  std::vector<Form> before = keep;
  if (keep.empty() && order_.last()) before.push_back(*order_.last());
  for (;;) {
    const auto next = order_.after(place);
    if (!next) return;
    const Form form = *next;
    place = offload::ReadOrder::behind(place, form);
    bytes += bytes_of(form);
    if (bytes > options_.prefetch_bytes && bytes > bytes_of(form)) return;
    if (states_.at(form).started) {
      if (bytes >= options_.prefetch_bytes) return;
      before.push_back(form);
      continue;
    }
    // All that is there is needed earlier.
    const bool all_before = options_.max_reuse_bytes == 0 && live_units_ <= static_cast<int64_t>(before.size());
    if (all_before && is_full(bytes_of(form), {})) return;
    auto kept = before;
    for (const auto& [other, state] : states_) {
      if (state.started && !state.arrived) kept.push_back(other);
    }
    make_room(bytes_of(form), kept);
    if (is_full(bytes_of(form), soon_reused())) return;
    start(form);
    before.push_back(form);
  }
}

std::vector<DeviceUnits::Form> DeviceUnits::soon_reused() const {
  std::vector<Form> soon;
  const size_t done = reads_.size();
  if (options_.max_reuse_bytes == 0 || done > earlier_reads_.size() ||
      !std::equal(reads_.begin(), reads_.end(), earlier_reads_.begin()))
    return soon;
  int64_t distance = 0;
  for (size_t i = done; i < earlier_reads_.size() && distance <= options_.max_reuse_bytes; ++i) {
    soon.push_back(earlier_reads_[i]);
    distance += bytes_of(earlier_reads_[i]);
  }
  return soon;
}

bool DeviceUnits::is_full(int64_t bytes, const std::vector<Form>& reused) const {
  if (hold_) return false;
  int64_t units = live_units_, live = live_bytes_;
  if (reused.empty()) return units >= options_.max_units && live + bytes > options_.max_bytes;
  for (const auto& [form, state] : states_) {
    if (!state.started || std::find(reused.begin(), reused.end(), form) == reused.end()) continue;
    --units;
    live -= bytes_of(form);
  }
  return units >= options_.max_units && live + bytes > options_.max_bytes;
}

// The ones that were read longest ago go first.
void DeviceUnits::make_room(int64_t bytes, const std::vector<Form>& keep) {
  const auto reused = soon_reused();
  const auto stays = [&](Form form) {
    return std::find(keep.begin(), keep.end(), form) != keep.end() ||
           std::find(reused.begin(), reused.end(), form) != reused.end();
  };
  while (is_full(bytes, reused)) {
    std::optional<Form> oldest;
    for (const auto& [form, state] : states_) {
      if (!state.started || stays(form)) continue;
      if (!oldest || state.used_at < states_.at(*oldest).used_at) oldest = form;
    }
    if (!oldest) return;
    release(*oldest);
  }
}

DeviceBuffer DeviceUnits::take_buffer(int64_t bytes) {
  const auto fits = [&](const DeviceBuffer& buffer) { return buffer.bytes.numel() >= bytes; };
  auto best = pool_.end();
  for (auto buffer = pool_.begin(); buffer != pool_.end(); ++buffer) {
    if (fits(*buffer) && (best == pool_.end() || buffer->bytes.numel() < best->bytes.numel())) best = buffer;
  }
  if (best != pool_.end()) {
    DeviceBuffer found = std::move(*best);
    pool_.erase(best);
    return found;
  }
  // Where only a few units are held, each buffer serves any of them.
  const int64_t size = options_.max_bytes > 0 || hold_ || options_.max_units > kFew ? bytes : std::max(bytes, largest_);
  const c10::StreamGuard guard(stream_);
  return {at::empty({size}, at::TensorOptions().dtype(at::kByte).device(options_.device))};
}

void DeviceUnits::start(Form form) {
  auto& state = states_.at(form);
  auto& of = units_[form / 2];
  if (form % 2 == 1) {
    if (const auto whole = states_.find(form - 1); whole != states_.end() && whole->second.written) release(form - 1);
  }
  const int64_t bytes = bytes_of(form);
  state.buffer = with_words_for_memory(group_, options_.device, text("the unit of '", of.name, "'"), bytes,
                                       [&] { return take_buffer(bytes); });
  state.whole = state.buffer.bytes.narrow(0, 0, bytes).view(state.dtype);
  state.started = true;
  ++live_units_;
  live_bytes_ += bytes;
  ++counts_.fills;
  counts_.pulled_bytes += bytes / group_.world_size() * (group_.world_size() - 1);
  counts_.max_held_bytes = std::max(counts_.max_held_bytes, live_bytes_);
  const c10::StreamGuard guard(stream_);
  state.buffer.block(stream_);
  if (stepped_) stepped_->block(stream_);
  const at::Tensor& stripe = form % 2 == 1 && of.low.defined() ? of.low : of.stripe;
  const bool is_here = stripe.device() == options_.device, is_as_sent = stripe.scalar_type() == state.dtype;
  at::Tensor own = stripe;
  if (!is_here || !is_as_sent || group_.world_size() == 1) {
    own = state.whole.narrow(0, group_.rank() * of.share, of.share);
    // A cast on the CPU would make the host wait.
    const bool crosses = !is_here && !is_as_sent;
    own.copy_(crosses ? stripe.to(options_.device, /*non_blocking=*/true) : stripe, /*non_blocking=*/true);
  }
  if (group_.world_size() > 1) state.work = group_.all_gather_into_async_(state.whole, own);
}

void DeviceUnits::finish(Form form) {
  auto& state = states_.at(form);
  const c10::StreamGuard guard(stream_);
  if (state.work) {
    try {
      std::exchange(state.work, std::nullopt)->wait();
    } catch (const CommError& error) {
      throw CommError(
          Origin{"shard", group_.rank(), group_.world_size()}, "all_gather", "the unit of '", units_[form / 2].name,
          "' could not be gathered: ", error.what(),
          " A read of split parameters is a collective on devices: let all ranks read them in one order, or "
          "read inside the scope of sharding()->summon().");
    }
  }
  state.event.emplace(options_.device.type());
  state.event->record(stream_);
  state.arrived = true;
  point(state, true);
}

void DeviceUnits::point(State& state, bool at_buffer) {
  auto* const begin = at_buffer ? static_cast<char*>(state.whole.mutable_data_ptr()) : nullptr;
  const auto size = static_cast<int64_t>(c10::elementSize(state.dtype));
  for (const auto& part : state.parts) {
    offload::point_storage(part.storage, at_buffer ? begin + part.offset * size : nullptr, options_.device);
  }
}

void DeviceUnits::write_back(Form form) {
  auto& state = states_.at(form);
  if (!std::exchange(state.written, false)) return;
  auto& of = units_[form / 2];
  const at::Tensor own = state.whole.narrow(0, group_.rank() * of.share, of.share);
  of.stripe.copy_(own);
  if (of.master.defined()) of.master.copy_(own);
  refresh_low(of);
  stepped_.emplace(options_.device.type());
  stepped_->record(current_stream());
}

void DeviceUnits::release(Form form) {
  auto& state = states_.at(form);
  if (!state.started) return;
  if (!state.arrived) finish(form);
  write_back(form);
  point(state, false);
  state.buffer.note_readers(state.readers);
  state.whole = at::Tensor();
  state.started = state.arrived = false;
  pool_.push_back(std::exchange(state.buffer, {}));
  --live_units_;
  live_bytes_ -= bytes_of(form);
}

void DeviceUnits::note_write(Form form) {
  const std::lock_guard lock(mutex_);
  const PlainMode plain;
  states_.at(form).written = true;
  if (const auto low_form = states_.find(form + 1); low_form != states_.end()) release(form + 1);
}

void DeviceUnits::flush() {
  const std::lock_guard lock(mutex_);
  const PlainMode plain;
  for (auto& [form, state] : states_) write_back(form);
}

void DeviceUnits::drop() {
  const std::lock_guard lock(mutex_);
  const PlainMode plain;
  for (auto& [form, state] : states_) {
    // The step's values count.
    state.written = false;
    release(form);
  }
  order_.restart();
  if (!reads_.empty()) earlier_reads_ = std::exchange(reads_, {});
  stepped_.emplace(options_.device.type());
  stepped_->record(current_stream());
  if (options_.max_units <= kFew) return;
  // The whole model was there, whose memory others get.
  const c10::impl::VirtualGuardImpl device(options_.device.type());
  for (auto& buffer : pool_) device.recordDataPtrOnStream(buffer.bytes.storage().data_ptr(), current_stream());
  pool_.clear();
}

void DeviceUnits::forget(Form exact) {
  const std::lock_guard lock(mutex_);
  const PlainMode plain;
  for (const Form each : {exact, exact + 1}) {
    const auto found = states_.find(each);
    if (found != states_.end()) release(each);
  }
  settle();  // what was gathered has read the stripe
  refresh_low(units_[exact / 2]);
  stepped_.emplace(options_.device.type());
  stepped_->record(current_stream());
}

void DeviceUnits::gather(size_t index) {
  const std::lock_guard lock(mutex_);
  const PlainMode plain;
  auto& of = units_[index];
  if (group_.world_size() == 1) return;
  c10::Event ready(options_.device.type());
  ready.record(current_stream());
  const c10::StreamGuard guard(stream_);
  ready.block(stream_);
  group_.all_gather_into_async_(of.whole, of.stripe).wait();
}

void DeviceUnits::settle() {
  c10::Event done(options_.device.type());
  done.record(stream_);
  done.block(current_stream());
}

void DeviceUnits::end_reads() {
  const std::lock_guard lock(mutex_);
  const PlainMode plain;
  for (const auto& [form, state] : states_) {
    if (state.started && !state.arrived) finish(form);
  }
  settle();
}

void DeviceUnits::set_hold(bool hold) {
  const std::lock_guard lock(mutex_);
  const PlainMode plain;
  hold_ = hold;
  if (!hold) make_room(0, {});
}

void DeviceUnits::refresh_low(Unit& of) {
  if (!of.low.defined()) return;
  settle();  // a gather may read it
  of.low.copy_(of.stripe.to(of.low.scalar_type()));
}

void DeviceUnits::begin_sends() {
  const std::lock_guard lock(mutex_);
  for (auto& of : units_) of.is_sent = false;
}

void DeviceUnits::send(size_t index) {
  const std::lock_guard lock(mutex_);
  const PlainMode plain;
  auto& of = units_[index];
  if (std::exchange(of.is_sent, true) || (!of.master.defined() && !of.low.defined())) return;
  if (!of.master.defined() && of.low.is_cpu()) {
    of.low.copy_(of.stripe);
    return;
  }
  // Readers of the stripe, which may be the unit itself, come first.
  c10::Event read(options_.device.type());
  read.record(current_stream());
  read.block(stream_);
  const c10::StreamGuard guard(stream_);
  if (of.master.defined()) {
    of.stripe.copy_(of.master, /*non_blocking=*/true);
  } else {
    of.staging.copy_(of.stripe);
    of.low.copy_(of.staging, /*non_blocking=*/true);
  }
}

void DeviceUnits::wait_for_masters() {
  const std::lock_guard lock(mutex_);
  c10::Event done(options_.device.type());
  done.record(stream_);
  done.synchronize();
}

}  // namespace hasten::parallel::shard
