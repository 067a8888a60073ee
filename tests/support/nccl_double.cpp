// See nccl_double.h.
#include "support/nccl_double.h"

#include <c10/core/Event.h>
#include <c10/core/impl/VirtualGuardImpl.h>
#include <gtest/gtest.h>
#include <torch/types.h>
#include <unistd.h>

#include <array>
#include <atomic>
#include <chrono>
#include <cstring>
#include <functional>
#include <map>
#include <memory>
#include <mutex>
#include <optional>
#include <set>
#include <stdexcept>
#include <utility>

#include "comm/backend/device_backend.h"
#include "support/pretend/launch.h"

namespace hasten::testing {
namespace {

using comm::Backend;
using comm::ReduceOp;
using Tensors = std::vector<at::Tensor>;

constexpr int kTag = 77;  // of the double's messages among the host's

std::array<std::atomic<int64_t>, 16> sent_bytes;
std::atomic<int64_t> num_elsewhere = 0;
std::atomic<int64_t> call_time_ns = -1;

int64_t clock_ns() {
  return std::chrono::nanoseconds(std::chrono::steady_clock::now().time_since_epoch()).count();
}

c10::impl::VirtualGuardImpl cuda() {
  return c10::impl::VirtualGuardImpl(c10::kCUDA);
}

at::Tensor copy_on_host(const at::Tensor& tensor) {
  const at::Tensor host = at::empty(tensor.sizes(), tensor.options().device(at::kCPU));
  if (tensor.numel() > 0) std::memcpy(host.data_ptr(), tensor.const_data_ptr(), tensor.nbytes());
  return host;
}
void write_to(const at::Tensor& tensor, const at::Tensor& host) {
  if (tensor.numel() > 0) std::memcpy(const_cast<void*>(tensor.const_data_ptr()), host.const_data_ptr(), host.nbytes());
}
bool has_bytes(const at::Tensor& tensor, const at::Tensor& host) {
  return tensor.numel() == 0 || std::memcmp(tensor.const_data_ptr(), host.const_data_ptr(), host.nbytes()) == 0;
}

// An operation in the double's stream; waiting orders the caller's stream behind it.
class InStream final : public Backend::Transfer {
 public:
  struct State {
    std::exception_ptr error = {};
    int64_t took_ns = 0;
    std::atomic<bool> has_ended = false;  // set last
  };

  InStream(const c10::Stream& stream, std::shared_ptr<State> state)
      : device_(stream.device()), done_(c10::kCUDA), state_(std::move(state)) {
    done_.record(stream);
  }
  bool done() override { return done_.query(); }
  void wait() override {
    done_.block(cuda().getStream(device_));
    if (state_->has_ended && state_->error) std::rethrow_exception(state_->error);
  }
  EndOnDevice end_on_device() override {
    return [state = state_]() -> std::optional<int64_t> {
      return state->has_ended ? std::optional(state->took_ns) : std::nullopt;
    };
  }

 private:
  c10::Device device_;
  c10::Event done_;
  std::shared_ptr<State> state_;
};

class NcclDouble final : public Backend {
 public:
  NcclDouble(int rank, int world_size, Backend& host) : rank_(rank), world_size_(world_size), host_(host) {}

  // What its streams still hold needs this object.
  ~NcclDouble() override {
    for (const auto& [device, stream] : streams_) pretend::settle(stream);
  }
  NcclDouble(const NcclDouble&) = delete;
  NcclDouble& operator=(const NcclDouble&) = delete;

  const char* name() const override { return "nccl double"; }
  c10::DeviceType device_type() const override { return c10::kCUDA; }
  bool reduces(at::ScalarType dtype) const override { return host_.reduces(dtype); }
  bool averages(at::ScalarType dtype) const override { return at::isFloatingType(dtype); }
  bool keeps_nan() const override { return host_.keeps_nan(); }
  bool has_tags() const override { return false; }
  bool exchanges() const override { return true; }

  Started all_reduce(at::Tensor tensor, ReduceOp op) override {
    count(2 * part_of(tensor));
    return started(
        tensor.device(), {tensor}, [&](const Tensors& in) { return host_.all_reduce(in[0], host_op(op)); },
        [=, this](const Tensors& in) { write_to(tensor, result(in[0], op)); });
  }
  Started reduce(at::Tensor tensor, int root, ReduceOp op) override {
    count(static_cast<int64_t>(tensor.nbytes()));
    return started(
        tensor.device(), {tensor}, [&](const Tensors& in) { return host_.reduce(in[0], root, host_op(op)); },
        [=, this](const Tensors& in) {
          if (rank_ == root) write_to(tensor, result(in[0], op));
        });
  }
  Started broadcast(at::Tensor bytes, int root) override {
    count(static_cast<int64_t>(bytes.nbytes()));
    return started(
        bytes.device(), {bytes}, [&](const Tensors& in) { return host_.broadcast(in[0], root); },
        [=, this](const Tensors& in) {
          if (rank_ != root) write_to(bytes, in[0]);
        });
  }
  Started all_gather(at::Tensor output, at::Tensor input) override {
    count(part_of(output));
    const at::Tensor all = at::empty(output.sizes(), output.options().device(at::kCPU));
    return started(
        output.device(), {input}, [&](const Tensors& in) { return host_.all_gather(all, in[0]); },
        [=](const Tensors&) { write_to(output, all); });
  }
  Started reduce_scatter(at::Tensor output, at::Tensor input, ReduceOp op) override {
    count(part_of(input));
    const at::Tensor mine = at::empty(output.sizes(), output.options().device(at::kCPU));
    return started(
        output.device(), {input}, [&](const Tensors& in) { return host_.reduce_scatter(mine, in[0], host_op(op)); },
        [=, this](const Tensors&) { write_to(output, result(mine, op)); });
  }
  Started all_to_all(at::Tensor output, std::vector<int64_t> counts, Tensors inputs) override {
    const at::Tensor all = at::empty(output.sizes(), output.options().device(at::kCPU));
    return started(
        output.device(), inputs, [&](const Tensors& in) { return host_.all_to_all(all, counts, in); },
        [=](const Tensors&) { write_to(output, all); });
  }
  Started barrier() override { return host_.barrier(); }

  Started send(at::Tensor bytes, int to, int) override { return exchange({{bytes, to, true}}); }
  Started receive(at::Tensor bytes, int from, int) override { return exchange({{bytes, from, false}}); }
  // Starts when the stream comes to it, and holds the stream until the other side has come to its own.
  Started exchange(const std::vector<Message>& messages) override {
    const std::lock_guard lock(mutex_);
    return in_stream(stream_after(messages.at(0).bytes.device()), [this, messages] {
      Tensors held;
      std::vector<Started> transfers;
      for (const Message& message : messages) {
        held.push_back(copy_on_host(message.bytes));
        transfers.push_back(message.is_send ? host_.send(held.back(), message.peer, kTag)
                                            : host_.receive(held.back(), message.peer, kTag));
      }
      for (const auto& transfer : transfers) transfer->wait();
      for (size_t i = 0; i < messages.size(); ++i) {
        if (!messages[i].is_send) write_to(messages[i].bytes, held[i]);
      }
    });
  }

  void close() noexcept override {}

 private:
  void count(int64_t bytes) const { sent_bytes.at(static_cast<size_t>(rank_)) += bytes; }
  int64_t part_of(const at::Tensor& whole) const {
    return static_cast<int64_t>(whole.nbytes()) / world_size_ * (world_size_ - 1);
  }

  // The host's backend starts with copies of the inputs at once; `finish` runs in the stream, with what came of them.
  template <class Start, class Finish>
  Started started(c10::Device device, const Tensors& inputs, const Start& start, const Finish& finish) {
    const std::lock_guard lock(mutex_);
    if (cuda().getDevice() != device) ++num_elsewhere;
    refuse_duplicates(device);
    const c10::Stream stream = stream_after(device);
    Tensors before, on_host;
    for (const auto& input : inputs) {
      before.push_back(copy_on_host(input));
      on_host.push_back(before.back().clone());
    }
    const std::shared_ptr<Transfer> transfer = start(on_host);
    return in_stream(stream, [=] {
      transfer->wait();
      for (size_t i = 0; i < inputs.size(); ++i) {
        EXPECT_TRUE(has_bytes(inputs[i], before[i])) << "an input was written to while its collective was under way";
      }
      finish(on_host);
    });
  }

  static Started in_stream(const c10::Stream& stream, std::function<void()> work) {
    auto state = std::make_shared<InStream::State>();
    pretend::launch(stream, [state, work = std::move(work)] {
      const int64_t began_ns = clock_ns();
      try {
        work();
      } catch (...) {
        state->error = std::current_exception();
      }
      const int64_t given_ns = call_time_ns;
      state->took_ns = given_ns < 0 ? clock_ns() - began_ns : given_ns;
      state->has_ended = true;
    });
    return std::make_unique<InStream>(stream, std::move(state));
  }

  // The double's stream of the device, behind the caller's.
  c10::Stream stream_after(c10::Device device) {
    auto found = streams_.find(device.index());
    if (found == streams_.end()) {
      found = streams_.emplace(device.index(), cuda().getStreamFromGlobalPool(device)).first;
    }
    pretend::settle(cuda().getStream(device));
    return found->second;
  }

  void refuse_duplicates(c10::Device device) {
    if (std::exchange(has_met_, true)) return;
    const at::Tensor mine = at::empty({2}, at::kLong), all = at::empty({world_size_, 2}, at::kLong);
    mine.data_ptr<int64_t>()[0] = device.index();
    mine.data_ptr<int64_t>()[1] = gethostid();
    host_.all_gather(all.view({-1}).view(at::kByte), mine.view(at::kByte))->wait();
    std::set<std::pair<int64_t, int64_t>> seen;
    for (int rank = 0; rank < world_size_; ++rank) {
      const auto* row = all.const_data_ptr<int64_t>() + 2 * rank;
      if (seen.emplace(row[0], row[1]).second) continue;
      throw std::runtime_error("NCCL error: invalid usage. Duplicate GPU detected : rank " + std::to_string(rank) +
                               " is on CUDA device " + std::to_string(row[0]) + " with another");
    }
  }

  static ReduceOp host_op(ReduceOp op) { return op == ReduceOp::kMean ? ReduceOp::kSum : op; }
  at::Tensor result(const at::Tensor& sum, ReduceOp op) const {
    return op == ReduceOp::kMean ? sum / world_size_ : sum;
  }

  int rank_, world_size_;
  Backend& host_;
  std::mutex mutex_;
  bool has_met_ = false;
  std::map<c10::DeviceIndex, c10::Stream> streams_;
};

std::unique_ptr<Backend> make_double(const comm::BackendSetup& setup, Backend& host) {
  return std::make_unique<NcclDouble>(setup.rank, setup.world_size, host);
}

}  // namespace

UsesNcclDouble::UsesNcclDouble() {
  for (auto& bytes : sent_bytes) bytes = 0;
  num_elsewhere = 0;
  call_time_ns = -1;
  comm::replace_device_backend(&make_double);
}
UsesNcclDouble::~UsesNcclDouble() {
  comm::replace_device_backend(nullptr);
}

void UsesNcclDouble::set_call_time(std::chrono::nanoseconds time) {
  call_time_ns = time.count();
}

int64_t UsesNcclDouble::calls_on_other_devices() {
  return num_elsewhere;
}

int64_t UsesNcclDouble::wire_bytes(int rank) {
  return sent_bytes.at(static_cast<size_t>(rank));
}

}  // namespace hasten::testing
