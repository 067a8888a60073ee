// The NCCL backend: CUDA tensors, through the ProcessGroupNCCL inside a CUDA build of libtorch.
//
// nccl_stub.cpp takes this file's place in other builds. At the start libtorch orders NCCL's stream after the caller's
// current stream. wait() puts the current stream after NCCL's, so callers need no synchronisation of theirs.
#include <c10/cuda/CUDAFunctions.h>
#include <torch/csrc/distributed/c10d/ProcessGroupNCCL.hpp>

#include <atomic>
#include <functional>
#include <memory>
#include <optional>

#include "comm/backend/c10d_backend.h"
#include "hasten/flight/recorder.h"

namespace hasten::comm {
namespace {

using WorkNccl = c10d::ProcessGroupNCCL::WorkNCCL;

// Between its events in NCCL's stream, so its waits for other ranks are in it.
int64_t nanoseconds_of(const WorkNccl& work) {
  try {
    return static_cast<int64_t>(1e6 * static_cast<double>(work.getDuration()));
  } catch (const std::exception&) {
    return 0;  // it failed, or has no times
  }
}

// A copy of libtorch's work has its events and not its tensors.
Backend::Transfer::EndOnDevice end_of_work(const c10d::Work& work) {
  const auto* const own = dynamic_cast<const WorkNccl*>(&work);
  if (own == nullptr) return {};
  return [copy = std::make_shared<WorkNccl>(*own)]() -> std::optional<int64_t> {
    return copy->isCompleted() ? std::optional(nanoseconds_of(*copy)) : std::nullopt;
  };
}

class NcclBackend : public C10dBackend {
 public:
  explicit NcclBackend(c10::intrusive_ptr<c10d::ProcessGroupNCCL> nccl)
      : C10dBackend(&end_of_work), nccl_(std::move(nccl)) {}
  // Lets kernels under way end, and ends libtorch's threads, which warn of a group that was not shut down.
  ~NcclBackend() override {
    if (is_closed_) return;
    try {
      nccl_->shutdown();
    } catch (const std::exception&) {
      // The device is lost or a peer has gone: there is nothing left to end.
    }
  }
  NcclBackend(const NcclBackend&) = delete;
  NcclBackend& operator=(const NcclBackend&) = delete;

  const char* name() const override { return "nccl"; }
  c10::DeviceType device_type() const override { return c10::DeviceType::CUDA; }

  bool reduces(at::ScalarType dtype) const override {
    switch (dtype) {
      case at::kFloat:
      case at::kDouble:
      case at::kHalf:
      case at::kBFloat16:
      case at::kChar:
      case at::kByte:
      case at::kInt:
      case at::kLong:
        return true;
      default:
        return false;
    }
  }
  bool averages(at::ScalarType dtype) const override { return at::isFloatingType(dtype); }
  bool has_tags() const override { return false; }

  bool exchanges() const override { return true; }
  // One call of NCCL's for all, or each would wait for the one before it on NCCL's stream.
  Started exchange(const std::vector<Message>& messages) override {
    nccl_->startCoalescing();
    std::vector<at::Tensor> kept;
    for (const Message& message : messages) {
      std::vector<at::Tensor> bytes{message.bytes};
      kept.push_back(message.bytes);
      (void)(message.is_send ? nccl_->send(bytes, message.peer, 0) : nccl_->recv(bytes, message.peer, 0));
    }
    return started(nccl_->endCoalescing(), std::move(kept));
  }

  void close() noexcept override {
    is_closed_ = true;
    try {
      nccl_->abort();
    } catch (const std::exception&) {
      // Aborting twice, or after the device was lost: there is nothing left to close.
    }
  }

 protected:
  Native native() override { return {.backend = nccl_.get(), .turn = {}}; }

 private:
  c10::intrusive_ptr<c10d::ProcessGroupNCCL> nccl_;
  std::atomic<bool> is_closed_ = false;
};

}  // namespace

bool nccl_is_built() {
  return c10::cuda::device_count() > 0;
}

std::unique_ptr<Backend> make_nccl(const BackendSetup& setup) {
  auto options = c10d::ProcessGroupNCCL::Options::create();
  options->timeout = setup.options.timeout;
  auto store = c10::intrusive_ptr<c10d::Store>::reclaim_copy(setup.store.native());
  auto nccl = c10::make_intrusive<c10d::ProcessGroupNCCL>(store, setup.rank, setup.world_size, options);
  if (flight::process_recorder()) nccl->enableCollectivesTiming();  // for the search of stragglers
  return std::make_unique<NcclBackend>(std::move(nccl));
}

}  // namespace hasten::comm
