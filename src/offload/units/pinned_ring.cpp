// See pinned_ring.h.
#include "offload/units/pinned_ring.h"

#include <ATen/DeviceAccelerator.h>
#include <ATen/Functions.h>
#include <ATen/Parallel.h>
#include <c10/core/DeviceGuard.h>
#include <c10/core/StreamGuard.h>
#include <c10/core/impl/VirtualGuardImpl.h>

#include <algorithm>
#include <array>
#include <condition_variable>
#include <cstring>
#include <deque>
#include <exception>
#include <mutex>
#include <optional>
#include <thread>
#include <utility>

#include "hasten/core/error.h"
#include "hasten/interception/interceptor.h"

namespace hasten::offload {
namespace {

// Less than this in all is not worth a thread.
constexpr int64_t kFewBytes = int64_t{1} << 20;

}  // namespace

struct PinnedRing::Sent::State {
  explicit State(c10::DeviceType type) : event(type) {}
  std::mutex mutex;
  std::condition_variable done;
  std::vector<Part> parts;
  int64_t left = 0;
  std::exception_ptr error;
  /// Recorded behind the last copy.
  c10::Event event;
};

void PinnedRing::Sent::wait() {
  std::unique_lock lock(state_->mutex);
  state_->done.wait(lock, [&] { return state_->left == 0; });
  if (state_->error) std::rethrow_exception(state_->error);
}

void PinnedRing::Sent::block(const c10::Stream& stream) {
  wait();
  state_->event.block(stream);
}

struct PinnedRing::Impl {
  struct Piece {
    std::shared_ptr<Sent::State> of;
    size_t part = 0;
    int64_t begin = 0, count = 0;
  };
  struct Slot {
    at::Tensor memory = {};
    std::optional<c10::Event> copied = {};
  };

  Impl(c10::Device on, const PinnedRingOptions& with)
      : device(on), options(with), stream(c10::impl::VirtualGuardImpl(on.type()).getStreamFromGlobalPool(on)) {}

  void start_threads() {
    if (!threads.empty()) return;
    for (int i = 0; i < options.num_threads; ++i) threads.emplace_back([this] { run(); });
  }

  void run() {
    const c10::DeviceGuard on_device(device);
    const c10::StreamGuard on_stream(stream);
    const at::NoGradGuard no_grad;
    std::array<Slot, 2> slots;
    for (size_t turn = 0;; ++turn) {
      std::unique_lock lock(mutex);
      given.wait(lock, [&] { return stopped || !pieces.empty(); });
      if (pieces.empty()) return;
      const Piece piece = std::move(pieces.front());
      pieces.pop_front();
      lock.unlock();
      std::exception_ptr error;
      try {
        send(piece, slots[turn % 2]);
      } catch (...) {
        error = std::current_exception();
      }
      finish(*piece.of, error);
    }
  }

  void send(const Piece& piece, Slot& slot) const {
    {
      const std::lock_guard lock(piece.of->mutex);
      if (piece.of->error) return;
    }
    if (!slot.memory.defined()) {
      slot.memory = at::empty({options.piece_bytes}, at::TensorOptions().dtype(at::kByte).pinned_memory(true));
      slot.copied.emplace(device.type());
    } else if (!slot.copied->query()) {
      slot.copied->synchronize();
    }
    const Part& part = piece.of->parts[piece.part];
    part.fill(static_cast<char*>(slot.memory.mutable_data_ptr()), piece.begin, piece.count);
    part.to.narrow(0, piece.begin, piece.count).copy_(slot.memory.narrow(0, 0, piece.count), /*non_blocking=*/true);
    slot.copied->record(stream);
  }

  void finish(Sent::State& state, const std::exception_ptr& error) const {
    const std::lock_guard lock(state.mutex);
    if (error && !state.error) state.error = error;
    if (--state.left > 0) return;
    state.event.record(stream);
    state.parts.clear();
    state.done.notify_all();
  }

  const c10::Device device;
  const PinnedRingOptions options;
  const c10::Stream stream;
  std::mutex mutex;
  std::condition_variable given;
  std::deque<Piece> pieces;
  bool stopped = false;
  std::vector<std::thread> threads;
};

PinnedRing::PinnedRing(c10::Device device, PinnedRingOptions options) {
  if (options.num_threads == 0) options.num_threads = std::clamp(at::get_num_threads(), 2, 8);
  if (options.piece_bytes < 1 || options.num_threads < 1) {
    throw UsageError(Origin{"offload"}, "a ring of ", options.num_threads, " threads with pieces of ",
                     options.piece_bytes, " bytes. Expected at least one of each.");
  }
  impl_ = std::make_unique<Impl>(device, options);
}

PinnedRing::~PinnedRing() {
  {
    const std::lock_guard lock(impl_->mutex);
    impl_->stopped = true;
  }
  impl_->given.notify_all();
  for (auto& thread : impl_->threads) thread.join();
}

const c10::Stream& PinnedRing::stream() const noexcept {
  return impl_->stream;
}

PinnedRing::Sent PinnedRing::send(std::vector<Part> parts, std::vector<c10::Event> after) {
  Sent sent;
  sent.state_ = std::make_shared<Sent::State>(impl_->device.type());
  for (auto& event : after) event.block(impl_->stream);
  std::vector<Impl::Piece> pieces;
  for (size_t i = 0; i < parts.size(); ++i) {
    const int64_t bytes = parts[i].to.numel();
    for (int64_t begin = 0; begin < bytes; begin += impl_->options.piece_bytes)
      pieces.push_back({sent.state_, i, begin, std::min(impl_->options.piece_bytes, bytes - begin)});
  }
  sent.state_->parts = std::move(parts);
  sent.state_->left = static_cast<int64_t>(pieces.size());
  if (pieces.empty()) sent.state_->event.record(impl_->stream);
  {
    const std::lock_guard lock(impl_->mutex);
    impl_->start_threads();
    for (auto& piece : pieces) impl_->pieces.push_back(std::move(piece));
  }
  impl_->given.notify_all();
  return sent;
}

PinnedRing::Fill fill_from(const at::Tensor& tensor) {
  return [tensor, from = static_cast<const char*>(tensor.const_data_ptr())](char* to, int64_t begin, int64_t count) {
    std::memcpy(to, from + begin, static_cast<size_t>(count));
  };
}

std::vector<at::Tensor> to_device(const std::vector<at::Tensor>& tensors, c10::Device device) {
  const at::NoGradGuard no_grad;
  const interception::PassScope pass;
  // MPS shares its memory with the host.
  const bool has_ring = at::accelerator::isAcceleratorExcluded(device.type(), at::kMPS);
  const auto goes_through = [&](const at::Tensor& tensor) {
    return has_ring && tensor.is_cpu() && tensor.numel() > 0 && tensor.is_non_overlapping_and_dense() &&
           !tensor.is_pinned();
  };
  int64_t bytes = 0;
  for (const at::Tensor& tensor : tensors) bytes += goes_through(tensor) ? static_cast<int64_t>(tensor.nbytes()) : 0;
  std::vector<at::Tensor> made;
  std::vector<PinnedRing::Part> parts;
  for (const at::Tensor& tensor : tensors) {
    const at::Tensor plain = tensor.detach();
    if (bytes < kFewBytes || !goes_through(plain)) {
      made.push_back(plain.to(device, plain.scalar_type(), /*non_blocking=*/plain.is_pinned(), /*copy=*/true));
      continue;
    }
    const at::Tensor there = at::empty_strided(plain.sizes(), plain.strides(), plain.options().device(device));
    const at::Tensor flat = there.as_strided({there.numel()}, {1}).view(at::kByte);
    parts.push_back({fill_from(plain), flat});
    made.push_back(there);
  }
  if (parts.empty()) return made;
  const c10::Stream stream = c10::impl::VirtualGuardImpl(device.type()).getStream(device);
  std::vector<c10::Event> made_there;
  made_there.emplace_back(device.type()).record(stream);
  PinnedRing ring(device);
  ring.send(std::move(parts), std::move(made_there)).block(stream);
  return made;
}

}  // namespace hasten::offload
