// Maps the calls of Backend onto those of c10d; see c10d_backend.h.
#include "comm/backend/c10d_backend.h"

#include <torch/types.h>
#include <torch/csrc/distributed/c10d/Work.hpp>

#include "hasten/comm/types/wait_check.h"
#include "hasten/core/error.h"

namespace hasten::comm {
namespace {

// How often a wait runs the checks of its thread.
constexpr std::chrono::milliseconds kLooksUp{100};

class C10dTransfer : public Backend::Transfer {
 public:
  C10dTransfer(c10::intrusive_ptr<c10d::Work> work, std::vector<at::Tensor> tensors, C10dBackend::EndOfWork end_of_work)
      : work_(std::move(work)), tensors_(std::move(tensors)), end_of_work_(end_of_work) {}

  bool done() override { return work_->isCompleted(); }
  void wait() override {
    // Waits for messages end them where they time out; waits for collectives can be taken up again.
    const bool can_look_up = is_collective_ && WaitCheck::is_active();
    while (can_look_up && !wait_a_while()) WaitCheck::run();
    if (!can_look_up) work_->wait();
    if (from_) *from_ = work_->sourceRank();
  }
  EndOnDevice end_on_device() override { return end_of_work_ == nullptr ? EndOnDevice() : end_of_work_(*work_); }
  void note_source(std::shared_ptr<int> from) { from_ = std::move(from); }
  void is_message() { is_collective_ = false; }

 private:
  /// Returns true if the work has ended well.
  bool wait_a_while() {
    try {
      work_->wait(kLooksUp);
      return true;
    } catch (const std::exception&) {
      if (work_->isCompleted()) throw;
      return false;
    }
  }

  c10::intrusive_ptr<c10d::Work> work_;
  std::vector<at::Tensor> tensors_;
  const C10dBackend::EndOfWork end_of_work_;
  std::shared_ptr<int> from_;
  bool is_collective_ = true;
};

std::unique_ptr<C10dTransfer> message(c10::intrusive_ptr<c10d::Work> work, at::Tensor bytes,
                                      C10dBackend::EndOfWork end_of_work) {
  auto transfer =
      std::make_unique<C10dTransfer>(std::move(work), std::vector<at::Tensor>{std::move(bytes)}, end_of_work);
  transfer->is_message();
  return transfer;
}

c10d::ReduceOp to_c10d(ReduceOp op) {
  switch (op) {
    case ReduceOp::kSum:
      return c10d::ReduceOp::SUM;
    case ReduceOp::kMin:
      return c10d::ReduceOp::MIN;
    case ReduceOp::kMax:
      return c10d::ReduceOp::MAX;
    case ReduceOp::kProduct:
      return c10d::ReduceOp::PRODUCT;
    case ReduceOp::kBitAnd:
      return c10d::ReduceOp::BAND;
    case ReduceOp::kBitOr:
      return c10d::ReduceOp::BOR;
    case ReduceOp::kBitXor:
      return c10d::ReduceOp::BXOR;
    case ReduceOp::kMean:
      return c10d::ReduceOp::AVG;  // of backends that average
  }
  throw InternalError(Origin{"comm"}, "a reduction without a name reached the backend.");
}

// Returns true if each begins where the one before it ends, as parts of one tensor do.
bool are_joined(const std::vector<at::Tensor>& bytes) {
  for (size_t i = 1; i < bytes.size(); ++i) {
    const auto* end = static_cast<const char*>(bytes[i - 1].const_data_ptr()) + bytes[i - 1].nbytes();
    if (bytes[i].const_data_ptr() != end) return false;
  }
  return true;
}

// Puts them one behind the other. Copies if they do not lie like that.
at::Tensor joined(std::vector<at::Tensor> bytes) {
  const at::Tensor any = bytes[0];
  std::erase_if(bytes, [](const at::Tensor& tensor) { return tensor.numel() == 0; });
  if (bytes.empty()) return any;
  if (!are_joined(bytes)) return at::cat(bytes);
  int64_t count = 0;
  for (const at::Tensor& tensor : bytes) count += tensor.numel();
  const auto keep = [bytes](void*) {};
  return torch::from_blob(bytes[0].data_ptr(), {count}, keep, bytes[0].options());
}

}  // namespace

Backend::Started C10dBackend::started(c10::intrusive_ptr<c10d::Work> work, std::vector<at::Tensor> tensors) const {
  return std::make_unique<C10dTransfer>(std::move(work), std::move(tensors), end_of_work_);
}

Backend::Started C10dBackend::all_reduce(at::Tensor tensor, ReduceOp op) {
  std::vector<at::Tensor> tensors{tensor};
  c10d::AllreduceOptions options;
  options.reduceOp = to_c10d(op);
  return started(native()->allreduce(tensors, options), {tensor});
}

Backend::Started C10dBackend::reduce(at::Tensor tensor, int root, ReduceOp op) {
  std::vector<at::Tensor> tensors{tensor};
  c10d::ReduceOptions options;
  options.reduceOp = to_c10d(op);
  options.rootRank = root;
  return started(native()->reduce(tensors, options), {tensor});
}

Backend::Started C10dBackend::broadcast(at::Tensor bytes, int root) {
  std::vector<at::Tensor> tensors{bytes};
  c10d::BroadcastOptions options;
  options.rootRank = root;
  return started(native()->broadcast(tensors, options), {bytes});
}

Backend::Started C10dBackend::all_gather(at::Tensor output, at::Tensor input) {
  return started(native()->_allgather_base(output, input), {output, input});
}

Backend::Started C10dBackend::reduce_scatter(at::Tensor output, at::Tensor input, ReduceOp op) {
  c10d::ReduceScatterOptions options;
  options.reduceOp = to_c10d(op);
  return started(native()->_reduce_scatter_base(output, input, options), {output, input});
}

Backend::Started C10dBackend::all_to_all(at::Tensor output, std::vector<int64_t> output_counts,
                                         std::vector<at::Tensor> inputs) {
  std::vector<int64_t> input_counts;
  for (const at::Tensor& input : inputs) input_counts.push_back(input.numel());
  at::Tensor input = joined(std::move(inputs));
  return started(native()->alltoall_base(output, input, output_counts, input_counts), {output, input});
}

Backend::Started C10dBackend::barrier() {
  return started(native()->barrier(), {});
}

Backend::Started C10dBackend::send(at::Tensor bytes, int to, int tag) {
  std::vector<at::Tensor> tensors{bytes};
  return message(native()->send(tensors, to, tag), bytes, end_of_work_);
}

Backend::Started C10dBackend::receive(at::Tensor bytes, int from, int tag) {
  std::vector<at::Tensor> tensors{bytes};
  return message(native()->recv(tensors, from, tag), bytes, end_of_work_);
}

Backend::Started C10dBackend::receive_any(at::Tensor bytes, int tag, std::shared_ptr<int> from) {
  std::vector<at::Tensor> tensors{bytes};
  auto transfer = message(native()->recvAnysource(tensors, tag), bytes, end_of_work_);
  transfer->note_source(std::move(from));
  return transfer;
}

void C10dBackend::set_timeout(std::chrono::milliseconds timeout) {
  native()->setTimeout(timeout);
}

}  // namespace hasten::comm
