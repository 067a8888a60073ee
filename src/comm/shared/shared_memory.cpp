// The shared memory backend: CPU tensors of ranks on one host; see shared/ for its parts.
#include <torch/types.h>

#include "comm/backend/backend.h"
#include "comm/backend/reduction.h"
#include "comm/backend/transfer_of.h"
#include "comm/shared/algorithms/queue.h"
#include "comm/shared/memory/segment_allocator.h"
#include "comm/shared/memory/segment_setup.h"
#include "comm/shared/messages/mailbox.h"
#include "hasten/core/text.h"

namespace hasten::comm {
namespace {

using shared::Mailbox;
using shared::Queue;
using shared::Segment;

class SharedMemory : public Backend {
 public:
  SharedMemory(const std::shared_ptr<Segment>& segment, const BackendSetup& setup)
      : segment_(segment),
        rank_(setup.rank),
        heap_(std::make_shared<shared::SegmentAllocator>(segment->layout().heap_bytes)),
        watch_(segment, setup.options.timeout, setup.names),
        queue_(std::make_unique<Queue>(segment, rank_, watch_)),
        mailbox_(std::make_unique<Mailbox>(segment, rank_, watch_)) {}

  ~SharedMemory() override {
    queue_.reset();
    mailbox_.reset();
    segment_->leave(rank_);
  }

  const char* name() const override { return "shm"; }
  c10::DeviceType device_type() const override { return c10::DeviceType::CPU; }
  bool reduces(at::ScalarType dtype) const override {
    return shared::routines(dtype, ReduceOp::kSum).reduce != nullptr;
  }
  bool averages(at::ScalarType dtype) const override {
    return shared::routines(dtype, ReduceOp::kMean).reduce != nullptr;
  }

  bool keeps_nan() const override { return true; }
  bool reduce_keeps_inputs() const override { return true; }

  Started all_reduce(at::Tensor tensor, ReduceOp op) override {
    const int64_t offset = offset_of(tensor);
    return start(shared::all_reduce(std::move(tensor), op, offset));
  }
  Started reduce(at::Tensor tensor, int root, ReduceOp op) override {
    return start(shared::reduce(std::move(tensor), root, op));
  }
  Started broadcast(at::Tensor bytes, int root) override { return start(shared::broadcast(std::move(bytes), root)); }
  Started all_gather(at::Tensor output, at::Tensor input) override {
    return start(shared::all_gather(std::move(output), std::move(input)));
  }
  Started reduce_scatter(at::Tensor output, at::Tensor input, ReduceOp op) override {
    return start(shared::reduce_scatter(std::move(output), std::move(input), op));
  }
  Started all_to_all(at::Tensor output, std::vector<int64_t> output_counts, std::vector<at::Tensor> inputs) override {
    return start(shared::all_to_all(std::move(output), std::move(output_counts), std::move(inputs)));
  }
  Started barrier() override { return start(shared::barrier()); }

  Started send(at::Tensor bytes, int to, int tag) override {
    return transfer_of(*mailbox_, mailbox_->send(std::move(bytes), to, tag));
  }
  Started receive(at::Tensor bytes, int from, int tag) override {
    return transfer_of(*mailbox_, mailbox_->receive(std::move(bytes), from, tag));
  }

  Started receive_any(at::Tensor bytes, int tag, std::shared_ptr<int> from) override {
    return transfer_of(*mailbox_, mailbox_->receive_any(std::move(bytes), tag, std::move(from)));
  }
  bool receives_from_any() const override { return true; }

  void set_timeout(std::chrono::milliseconds timeout) override { watch_.set_timeout(timeout); }

  at::Tensor allocate(int64_t num_bytes) override {
    const auto offset = heap_->take(static_cast<size_t>(num_bytes));
    if (!offset) return Backend::allocate(num_bytes);
    const auto give = [segment = segment_, heap = heap_, offset, num_bytes](void*) {
      heap->give(*offset, static_cast<size_t>(num_bytes));
    };
    return torch::from_blob(segment_->heap(rank_) + *offset, {num_bytes}, give, at::kByte);
  }

  void close() noexcept override {
    watch_.close();
    segment_->leave(rank_);
    for (int peer = 0; peer < segment_->layout().world_size; ++peer) segment_->block(peer).posted.wake();
  }

 private:
  Started start(std::unique_ptr<shared::Operation> operation) {
    return transfer_of(*queue_, queue_->start(std::move(operation)));
  }

  /// Where the tensor lies in this rank's heap, -1 if it does not.
  int64_t offset_of(const at::Tensor& tensor) const {
    const auto* begin = static_cast<const std::byte*>(tensor.data_ptr());
    const auto* heap = segment_->heap(rank_);
    const bool inside = begin >= heap && begin + tensor.nbytes() <= heap + segment_->layout().heap_bytes;
    return inside ? begin - heap : -1;
  }

  std::shared_ptr<Segment> segment_;
  int rank_;
  std::shared_ptr<shared::SegmentAllocator> heap_;
  shared::PeerMonitor watch_;
  std::unique_ptr<Queue> queue_;
  std::unique_ptr<Mailbox> mailbox_;
};

}  // namespace

std::unique_ptr<Backend> make_shared_memory(const BackendSetup& setup) {
  if (setup.world_size > shared::kMaxRanks) {
    throw std::runtime_error(
        text("a group has room for ", shared::kMaxRanks, " ranks of one host, and there are ", setup.world_size));
  }
  const auto layout = shared::Layout::of(setup.world_size, static_cast<size_t>(setup.options.shared_bytes.value()));
  const auto segment = shared::share_segment(setup.store, setup.rank, layout, setup.options.timeout);
  return std::make_unique<SharedMemory>(segment, setup);
}

}  // namespace hasten::comm
