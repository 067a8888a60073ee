// A Backend over any c10d::Backend: what Gloo and NCCL have in common.
//
// The two differ in how they are made, which device they serve and which dtypes they reduce. Those are the pure virtual
// functions left open here. gloo.cpp and nccl.cpp fill them in.
#pragma once

#include <functional>
#include <mutex>
#include <torch/csrc/distributed/c10d/Backend.hpp>
#include <torch/csrc/distributed/c10d/Work.hpp>

#include "comm/backend/backend.h"

namespace hasten::comm {

class C10dBackend : public Backend {
 public:
  /// Gives Transfer::end_on_device of a work. Null if waits return at the end.
  using EndOfWork = Transfer::EndOnDevice (*)(const c10d::Work& work);
  explicit C10dBackend(EndOfWork end_of_work = nullptr) : end_of_work_(end_of_work) {}

  Started all_reduce(at::Tensor tensor, ReduceOp op) override;
  Started reduce(at::Tensor tensor, int root, ReduceOp op) override;
  Started broadcast(at::Tensor bytes, int root) override;
  Started all_gather(at::Tensor output, at::Tensor input) override;
  Started reduce_scatter(at::Tensor output, at::Tensor input, ReduceOp op) override;
  Started all_to_all(at::Tensor output, std::vector<int64_t> output_counts, std::vector<at::Tensor> inputs) override;
  Started barrier() override;
  Started send(at::Tensor bytes, int to, int tag) override;
  Started receive(at::Tensor bytes, int from, int tag) override;
  Started receive_any(at::Tensor bytes, int tag, std::shared_ptr<int> from) override;
  bool receives_from_any() const override { return true; }
  void set_timeout(std::chrono::milliseconds timeout) override;

 protected:
  /// c10d's backend, for one call.
  struct Native {
    c10d::Backend* backend;
    /// Held meanwhile, where that is needed.
    std::unique_lock<std::mutex> turn;

    c10d::Backend* operator->() const { return backend; }
  };
  virtual Native native() = 0;
  /// A transfer over c10d's work, which keeps the tensors alive.
  Started started(c10::intrusive_ptr<c10d::Work> work, std::vector<at::Tensor> tensors) const;

 private:
  const EndOfWork end_of_work_;
};

}  // namespace hasten::comm
