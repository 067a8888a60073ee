// GroupWork: an operation of a Group as libtorch's torch.distributed hands it to programs.
//
// wait() carries the operation out in the caller's thread. A future cannot, and data parallel training waits for
// futures. So in a backward a callback is queued before libtorch's own, and the thread of backward completes the future
// by itself. The completer takes over later, or at once outside of a backward, for callers that wait elsewhere.
//
// Results on a device are written in the streams of the thread that started the operation, whichever thread carries it
// out. The future has their devices, so that waits for it and callbacks on it come behind them.
#pragma once

#include <chrono>
#include <memory>
#include <mutex>
#include <optional>
#include <vector>

#include <c10/core/Device.h>
#include <c10/core/Stream.h>
#include <torch/csrc/distributed/c10d/Work.hpp>

#include "comm/c10d/future_completer.h"
#include "hasten/comm/types/work.h"

namespace hasten::comm {

class GroupWork : public c10d::Work {
 public:
  struct Setup {
    int rank;
    c10d::OpType type;
    const char* title;
    /// Shown in profiles.
    std::vector<at::Tensor> inputs;
    std::vector<at::Tensor> outputs;
    /// How long wait() takes if it is not told; nothing: the group's timeout.
    std::optional<std::chrono::milliseconds> limit = {};
    /// The sender of a receive from any rank, once that is known.
    std::shared_ptr<int> from = {};
  };
  GroupWork(const Setup& setup, comm::Work<> work, std::shared_ptr<FutureCompleter> completer);
  /// An operation that was started is carried out, even if the handle is dropped.
  ~GroupWork() override;

  bool isCompleted() override;
  bool wait(std::chrono::milliseconds timeout) override;
  void synchronize() override { wait(kNoTimeout); }
  std::vector<at::Tensor> result() override;
  int sourceRank() const override;
  c10::intrusive_ptr<c10::ivalue::Future> getFuture() override;

 private:
  void carry_out();
  void carry_out_locked();
  /// Throws where the operation is not over in time. It goes on.
  void wait_until_done(std::chrono::milliseconds limit);
  void complete_future();

  /// Devices of results that are not on the CPU, each once, and the streams that were current there at the start.
  struct Place {
    std::vector<c10::Device> devices;
    std::vector<c10::Stream> streams;

    explicit Place(const std::vector<at::Tensor>& outputs);
    /// Runs `fn` in these streams, with the first device as the current one.
    template <class Fn>
    void run(const Fn& fn) const;
  };

  std::mutex turn_;
  std::optional<comm::Work<>> work_;
  std::vector<at::Tensor> outputs_;
  const Place place_;
  const std::optional<std::chrono::milliseconds> limit_;
  const std::shared_ptr<int> from_;
  std::shared_ptr<FutureCompleter> completer_;
  std::once_flag future_completed_;
  c10::intrusive_ptr<c10::ivalue::Future> future_;
};

}  // namespace hasten::comm
