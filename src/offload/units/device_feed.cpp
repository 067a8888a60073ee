// See device_feed.h.
#include "offload/units/device_feed.h"

#include <ATen/Functions.h>
#include <c10/core/StreamGuard.h>
#include <c10/core/impl/VirtualGuardImpl.h>

#include <algorithm>
#include <cstring>

#include "hasten/plan/memory_limits.h"

namespace hasten::offload::detail {
namespace {

// Kernels of all kinds read weights that begin here.
constexpr int64_t kAlignment = 64;

bool leaves_cache(const std::vector<StreamUnit>& units, PageCache page_cache) {
  if (page_cache != PageCache::kAuto) return page_cache == PageCache::kDrop;
  int64_t bytes = 0;
  for (const StreamUnit& unit : units) bytes += unit.streamed ? unit.bytes() : 0;
  return bytes > 0 && bytes > plan::available_memory_bytes();
}

// Represents a thread while it runs.
std::shared_ptr<const char> thread_token() {
  thread_local const std::shared_ptr<const char> token = std::make_shared<const char>('t');
  return token;
}

// A tensor of the weight's form on the device, without memory.
at::Tensor empty_form(const at::Tensor& weight, c10::Device device) {
  const at::Tensor form = at::empty({0}, weight.options().device(device).requires_grad(false));
  auto& impl = *form.unsafeGetTensorImpl();
  impl.set_storage_keep_dtype(c10::Storage(c10::Storage::use_byte_size_t(), weight.nbytes(),
                                           at::DataPtr(nullptr, device), nullptr, /*resizable=*/false));
  impl.set_sizes_and_strides(weight.sizes(), weight.strides(), 0);
  return form;
}

}  // namespace

DeviceFeed::DeviceFeed(std::vector<StreamUnit> units, c10::Device device, const DeviceFeedOptions& options)
    : device_(device),
      options_(options),
      units_(std::move(units)),
      keeps_cache_(!leaves_cache(units_, options.page_cache)),
      states_(units_.size()),
      ring_(device, options.ring) {
  const PlainMode plain;
  for (size_t unit = 0; unit < units_.size(); ++unit) {
    lay_out(unit);
    if (units_[unit].streamed) protect(unit);
  }
}

DeviceFeed::~DeviceFeed() {
  const PlainMode plain;
  for (size_t unit = 0; unit < units_.size(); ++unit) {
    set_writable(unit);
    try {
      release(unit);
    } catch (const std::exception&) {
      // A read ahead that has failed: nothing waits for it.
    }
  }
  // The memory is the ring's stream's, which comes after all that reads it.
  for (DeviceBuffer& buffer : pool_) buffer.block(ring_.stream());
}

void DeviceFeed::lay_out(size_t unit) {
  State& state = states_[unit];
  for (size_t i = 0; i < units_[unit].tensors.size(); ++i) {
    const at::Tensor plain = units_[unit].tensors[i].detach();
    const bool is_dense = plain.is_non_overlapping_and_dense();
    if (!is_dense) units_[unit].pieces[i].region.reset();
    state.sources.push_back(is_dense ? plain : plain.contiguous());
    state.forms.push_back(empty_form(state.sources.back(), device_));
    state.offsets.push_back(state.bytes);
    state.bytes += (static_cast<int64_t>(plain.nbytes()) + kAlignment - 1) / kAlignment * kAlignment;
  }
  largest_ = std::max(largest_, state.bytes);
}

// A kernel that writes past the operator's schema ends by a fault that names the parameter, and never loses a value.
void DeviceFeed::protect(size_t unit) {
  const StreamUnit& of = units_[unit];
  for (size_t i = 0; i < of.pieces.size(); ++i) {
    if (!of.pieces[i].region) continue;
    names_.emplace_back(of.tensors[i].const_data_ptr(), of.pieces[i].bytes, of.tensor_names[i]);
    of.pieces[i].region->set_writable(of.pieces[i].offset, of.pieces[i].bytes, false);
  }
}

void DeviceFeed::set_writable(size_t unit) noexcept {
  if (!units_[unit].streamed) return;
  for (const StreamPiece& piece : units_[unit].pieces) {
    if (piece.region) piece.region->set_writable(piece.offset, piece.bytes, true);
  }
}

StreamCounts DeviceFeed::counts() const {
  const std::lock_guard lock(mutex_);
  return counts_;
}

DeviceFeed::Use& DeviceFeed::use_of_this_thread() {
  std::erase_if(uses_, [](const Use& use) { return use.thread.expired(); });
  const auto thread = thread_token();
  for (Use& use : uses_) {
    if (use.thread.lock() == thread) return use;
  }
  return uses_.emplace_back(Use{thread, {}});
}

bool DeviceFeed::is_used_elsewhere(size_t unit) const {
  const auto thread = thread_token();
  return std::any_of(uses_.begin(), uses_.end(), [&](const Use& use) {
    return use.thread.lock() != thread && !use.thread.expired() &&
           std::find(use.units.begin(), use.units.end(), unit) != use.units.end();
  });
}

void DeviceFeed::read(const std::vector<size_t>& units) {
  const std::lock_guard lock(mutex_);
  const PlainMode plain;
  use_of_this_thread().units = units;
  for (const size_t unit : units) {
    order_.note(unit);
    if (states_[unit].buffer && states_[unit].version != version_of(unit)) release(unit);
    if (states_[unit].buffer) continue;
    make_room(units);
    start(unit);
  }
  const c10::Stream stream = c10::impl::VirtualGuardImpl(device_.type()).getStream(device_);
  for (const size_t unit : units) {
    State& state = states_[unit];
    if (!state.arrived) finish(unit);
    state.used_at = ++clock_;
    if (std::find(state.readers.begin(), state.readers.end(), stream) != state.readers.end()) continue;
    state.sent->block(stream);
    state.readers.push_back(stream);
  }
  fill_ahead(units);
}

void DeviceFeed::end_use() {
  const std::lock_guard lock(mutex_);
  use_of_this_thread().units.clear();
}

// Before an order is known it is that of the units.
void DeviceFeed::fill_ahead(const std::vector<size_t>& keep) {
  if (!order_.last()) return;
  const size_t next = order_.after(order_.place()).value_or((*order_.last() + 1) % units_.size());
  if (states_[next].buffer || !make_room(keep)) return;
  start(next);
}

bool DeviceFeed::make_room(const std::vector<size_t>& keep) {
  while (live_ >= options_.num_buffers) {
    std::optional<size_t> oldest;
    for (size_t unit = 0; unit < states_.size(); ++unit) {
      const bool is_kept = std::find(keep.begin(), keep.end(), unit) != keep.end() || is_used_elsewhere(unit);
      if (!states_[unit].buffer || is_kept) continue;
      if (!oldest || states_[unit].used_at < states_[*oldest].used_at) oldest = unit;
    }
    if (!oldest) return false;
    release(*oldest);
  }
  return true;
}

void DeviceFeed::start(size_t unit) {
  State& state = states_[unit];
  DeviceBuffer buffer;
  if (!pool_.empty()) {
    buffer = std::move(pool_.back());
    pool_.pop_back();
  } else {
    const c10::StreamGuard guard(ring_.stream());
    buffer.bytes = at::empty({largest_}, at::TensorOptions().dtype(at::kByte).device(device_));
  }
  std::vector<PinnedRing::Part> parts;
  parts.push_back({fill_of(unit), buffer.bytes.narrow(0, 0, state.bytes)});
  state.sent = ring_.send(std::move(parts), std::exchange(buffer.after, {}));
  state.buffer = std::move(buffer);
  state.arrived = false;
  state.version = version_of(unit);
  ++live_;
  ++counts_.reads;
}

// Writes past the operators, of a prepared optimizer's loops, count here.
int64_t DeviceFeed::version_of(size_t unit) const {
  int64_t sum = 0;
  for (const at::Tensor& weight : units_[unit].tensors) {
    const auto& counter = weight.unsafeGetTensorImpl()->version_counter();
    if (counter.enabled()) sum += counter.current_version();
  }
  return sum;
}

PinnedRing::Fill DeviceFeed::fill_of(size_t unit) const {
  return [this, unit](char* to, int64_t begin, int64_t count) {
    const State& state = states_[unit];
    const StreamUnit& of = units_[unit];
    for (size_t i = 0; i < state.sources.size(); ++i) {
      const int64_t from = std::max(begin - state.offsets[i], int64_t{0});
      const int64_t until = std::min(begin + count - state.offsets[i], static_cast<int64_t>(state.sources[i].nbytes()));
      if (from >= until) continue;
      const auto bytes = static_cast<size_t>(until - from);
      const StreamPiece& piece = of.pieces[i];
      if (piece.region) {
        const uint64_t place = piece.offset + static_cast<uint64_t>(from);
        piece.region->require_unchanged();
        if (!keeps_cache_ || !piece.region->map_if_cached(place, bytes)) piece.region->read_into_cache(place, bytes);
      }
      std::memcpy(to + (state.offsets[i] + from - begin),
                  static_cast<const char*>(state.sources[i].const_data_ptr()) + from, bytes);
    }
  };
}

void DeviceFeed::finish(size_t unit) {
  State& state = states_[unit];
  try {
    state.sent->wait();
  } catch (...) {
    pool_.push_back(std::move(*std::exchange(state.buffer, std::nullopt)));
    state.sent.reset();
    --live_;
    throw;
  }
  state.arrived = true;
  point(state, true);
  if (!units_[unit].streamed) return;
  for (const StreamPiece& piece : units_[unit].pieces) {
    if (piece.region) piece.region->drop(piece.offset, piece.bytes, keeps_cache_);
  }
}

void DeviceFeed::point(State& state, bool at_buffer) {
  auto* const begin = at_buffer ? static_cast<char*>(state.buffer->bytes.mutable_data_ptr()) : nullptr;
  for (size_t i = 0; i < state.forms.size(); ++i) {
    point_storage(state.forms[i].storage(), at_buffer ? begin + state.offsets[i] : nullptr, device_);
  }
}

void DeviceFeed::release(size_t unit) {
  State& state = states_[unit];
  if (!state.buffer) return;
  if (!state.arrived) finish(unit);
  point(state, false);
  state.buffer->note_readers(state.readers);
  state.sent.reset();
  state.arrived = false;
  DeviceBuffer buffer = std::move(*std::exchange(state.buffer, std::nullopt));
  // An operator with weights of many units may have made more buffers than stay.
  if (pool_.size() + live_ <= options_.num_buffers) {
    pool_.push_back(std::move(buffer));
  } else {
    buffer.block(ring_.stream());
  }
  --live_;
  ++counts_.drops;
}

void DeviceFeed::note_write(size_t unit) {
  const std::lock_guard lock(mutex_);
  const PlainMode plain;
  release(unit);
  StreamUnit& of = units_[unit];
  if (!of.streamed) return;
  set_writable(unit);
  of.streamed = false;
  counts_.resident_bytes += of.bytes();
}

}  // namespace hasten::offload::detail
