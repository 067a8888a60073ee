// GroupBackend: a Group as a backend of libtorch's torch.distributed, so that programs written for that run over it.
//
// Each collective starts one of Group's and returns a c10d::Work. Its wait() carries the operation out in the caller's
// thread. Tensors are handed to Group without their version counter, which stands still as under Gloo. Lists of tensors
// pass through one flat tensor. Python's binding is the room python; C++ programs with a c10d::ProcessGroup can use it
// as well.
#pragma once

#include <sys/types.h>

#include <array>
#include <atomic>
#include <memory>
#include <string>
#include <vector>

#include <torch/csrc/distributed/c10d/Backend.hpp>

#include "hasten/comm/group/group.h"

namespace hasten::comm {

class FutureCompleter;

class GroupBackend : public c10d::Backend {
 public:
  using Started = c10::intrusive_ptr<c10d::Work>;
  using Tensors = std::vector<at::Tensor>;

  /// `name` is what the backend answers to, and what titles in a profile begin with: "hasten", or "gloo" in its place.
  explicit GroupBackend(Group group, std::string name = "hasten");
  ~GroupBackend() override;

  const Group& group() const noexcept { return group_; }

  const std::string getBackendName() const override { return options_->backend; }
  c10::intrusive_ptr<Options> getBackendOptions() override { return options_; }

  Started broadcast(Tensors& tensors, const c10d::BroadcastOptions& options) override;
  /// Dense tensors, or one sparse COO tensor, which becomes the sum.
  Started allreduce(Tensors& tensors, const c10d::AllreduceOptions& options) override;
  Started allreduce_coalesced(Tensors& tensors, const c10d::AllreduceCoalescedOptions& options) override;
  Started reduce(Tensors& tensors, const c10d::ReduceOptions& options) override;
  Started allgather(std::vector<Tensors>& outputs, Tensors& inputs, const c10d::AllgatherOptions& options) override;
  Started _allgather_base(at::Tensor& output, at::Tensor& input, const c10d::AllgatherOptions& options) override;
  /// `outputs[rank][i]` becomes the i-th input of that rank.
  Started allgather_coalesced(std::vector<Tensors>& outputs, Tensors& inputs,
                              const c10d::AllgatherOptions& options) override;
  Started allgather_into_tensor_coalesced(Tensors& outputs, Tensors& inputs,
                                          const c10d::AllgatherOptions& options) override;
  Started gather(std::vector<Tensors>& outputs, Tensors& inputs, const c10d::GatherOptions& options) override;
  Started scatter(Tensors& outputs, std::vector<Tensors>& inputs, const c10d::ScatterOptions& options) override;
  Started reduce_scatter(Tensors& outputs, std::vector<Tensors>& inputs,
                         const c10d::ReduceScatterOptions& options) override;
  Started _reduce_scatter_base(at::Tensor& output, at::Tensor& input,
                               const c10d::ReduceScatterOptions& options) override;
  Started reduce_scatter_tensor_coalesced(Tensors& outputs, Tensors& inputs,
                                          const c10d::ReduceScatterOptions& options) override;
  Started alltoall_base(at::Tensor& output, at::Tensor& input, std::vector<int64_t>& output_rows,
                        std::vector<int64_t>& input_rows, const c10d::AllToAllOptions& options) override;
  Started alltoall(Tensors& outputs, Tensors& inputs, const c10d::AllToAllOptions& options) override;
  Started send(Tensors& tensors, int to, int tag) override;
  Started recv(Tensors& tensors, int from, int tag) override;
  Started recvAnysource(Tensors& tensors, int tag) override;
  Started barrier(const c10d::BarrierOptions& options) override;
  /// Over the group's store, so that it works where the ranks' collectives are out of step. Throws on rank 0 the ranks
  /// that have not come, on the others that rank 0 gave up.
  void monitoredBarrier(const c10d::BarrierOptions& options, bool wait_all_ranks) override;

  void setTimeout(std::chrono::milliseconds timeout) override;
  void setSequenceNumberForGroup() override {}
  uint64_t getSequenceNumberForGroup() override { return sequence_; }
  /// Ends operations under way here and on the other ranks with an error.
  void abort() override;
  bool supportsTensorAlloc(c10::DeviceIndex) override { return true; }
  at::Tensor allocateTensor(long size, at::TensorOptions options) override;

 private:
  struct Call;
  Started start(const Call& call, Work<> work, Tensors outputs);
  void check_process() const;

  /// The first of all members. DDP's logger takes a backend called gloo for libtorch's own class, and reads options in
  /// this place, which differs between releases.
  const std::array<c10::intrusive_ptr<Options>, 3> seen_as_gloos_;
  const c10::intrusive_ptr<Options> options_;
  const Group group_;
  std::shared_ptr<FutureCompleter> completer_;
  const pid_t owner_;
  std::atomic<uint64_t> sequence_ = 0;
  uint64_t monitored_barriers_ = 0;
};

}  // namespace hasten::comm
