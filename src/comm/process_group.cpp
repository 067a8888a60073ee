// See process_group.h.
#include "hasten/comm/process_group.h"

#include <torch/types.h>
#include <torch/csrc/distributed/c10d/Backend.hpp>

#include <mutex>

#include "comm/line.h"
#include "hasten/core/error.h"

namespace hasten::comm {
namespace {

using Tensors = std::vector<at::Tensor>;
using NativeWork = c10::intrusive_ptr<c10d::Work>;

ReduceOp from_c10d(const c10d::ReduceOp& op) {
  switch (static_cast<c10d::ReduceOp::RedOpType>(op)) {
    case c10d::ReduceOp::SUM:
      return ReduceOp::kSum;
    case c10d::ReduceOp::AVG:
      return ReduceOp::kMean;
    case c10d::ReduceOp::MIN:
      return ReduceOp::kMin;
    case c10d::ReduceOp::MAX:
      return ReduceOp::kMax;
    case c10d::ReduceOp::PRODUCT:
      return ReduceOp::kProduct;
    default:
      throw UsageError(Origin{"comm"}, "process_group: reductions are sum, mean, min, max and product.");
  }
}

/// An operation of the group's. c10d may wait for it in several threads, and may ask for a future.
class GroupWork : public c10d::Work {
 public:
  GroupWork(hasten::comm::Work<> work, Tensors results, std::shared_ptr<Line> line)
      : work_(std::move(work)), results_(std::move(results)), line_(std::move(line)) {}

  bool isCompleted() override {
    const std::lock_guard lock(mutex_);
    return ended_ || work_.done();
  }
  bool isSuccess() const override { return ended_ && !error_; }
  std::exception_ptr exception() const override { return error_; }
  Tensors result() override { return results_; }
  void synchronize() override { wait(kNoTimeout); }

  bool wait(std::chrono::milliseconds) override {
    const std::lock_guard lock(mutex_);
    if (!ended_) {
      try {
        work_.wait();
      } catch (...) {
        error_ = std::current_exception();
      }
      ended_ = true;
    }
    if (error_) std::rethrow_exception(error_);
    return true;
  }

  c10::intrusive_ptr<c10::ivalue::Future> getFuture() override {
    auto future = c10::make_intrusive<c10::ivalue::Future>(c10::ListType::ofTensors());
    auto self = c10::intrusive_ptr<GroupWork>::unsafe_reclaim_from_nonowning(this);
    line_->submit([self, future] {
      try {
        self->wait(kNoTimeout);
        future->markCompleted(c10::IValue(self->results_));
      } catch (...) {
        future->setError(std::current_exception());
      }
    });
    return future;
  }

 private:
  std::mutex mutex_;
  hasten::comm::Work<> work_;
  Tensors results_;
  std::shared_ptr<Line> line_;
  bool ended_ = false;
  std::exception_ptr error_;
};

void copy_all(const Tensors& from, const Tensors& to) {
  for (size_t i = 0; i < to.size(); ++i) to[i].copy_(from[i].view_as(to[i]));
}

class GroupBackend : public c10d::Backend {
 public:
  explicit GroupBackend(const Group& group)
      : c10d::Backend(group.rank(), group.world_size()), group_(group) {}

  const std::string getBackendName() const override { return "hasten"; }

  NativeWork allreduce(Tensors& tensors, const c10d::AllreduceOptions& options) override {
    return started(group_.all_reduce_async_(one(tensors), from_c10d(options.reduceOp)), tensors);
  }
  NativeWork allreduce_coalesced(Tensors& tensors, const c10d::AllreduceCoalescedOptions& options) override {
    auto works = std::make_shared<std::vector<Work<>>>();
    for (const auto& tensor : tensors)
      works->push_back(group_.all_reduce_async_(tensor, from_c10d(options.reduceOp)));
    return started(Work<>([works] {
                     for (auto& work : *works) work.wait();
                   }),
                   tensors);
  }
  NativeWork broadcast(Tensors& tensors, const c10d::BroadcastOptions& options) override {
    return started(group_.broadcast_async_(one(tensors), static_cast<int>(options.rootRank)), tensors);
  }
  NativeWork reduce(Tensors& tensors, const c10d::ReduceOptions& options) override {
    return started(
        group_.reduce_async_(one(tensors), static_cast<int>(options.rootRank), from_c10d(options.reduceOp)),
        tensors);
  }
  NativeWork allgather(std::vector<Tensors>& outputs, Tensors& inputs,
                       const c10d::AllgatherOptions&) override {
    const Tensors output = one(outputs);
    return started(
        group_.all_gather_async(one(inputs)).then([output](const Tensors& all) { copy_all(all, output); }),
        output);
  }
  NativeWork _allgather_base(at::Tensor& output, at::Tensor& input, const c10d::AllgatherOptions&) override {
    return started(group_.all_gather_into_async_(output, input), {output});
  }
  NativeWork gather(std::vector<Tensors>& outputs, Tensors& inputs,
                    const c10d::GatherOptions& options) override {
    const Tensors output = outputs.empty() ? Tensors{} : outputs[0];
    auto work = group_.gather_async(one(inputs), static_cast<int>(options.rootRank));
    return started(std::move(work).then([output](const Tensors& all) { copy_all(all, output); }), output);
  }
  NativeWork scatter(Tensors& outputs, std::vector<Tensors>& inputs,
                     const c10d::ScatterOptions& options) override {
    const at::Tensor output = one(outputs);
    auto work =
        group_.scatter_async(inputs.empty() ? Tensors{} : inputs[0], static_cast<int>(options.rootRank));
    return started(std::move(work).then([output](const at::Tensor& part) { copy_all({part}, {output}); }),
                   outputs);
  }
  NativeWork reduce_scatter(Tensors& outputs, std::vector<Tensors>& inputs,
                            const c10d::ReduceScatterOptions& options) override {
    at::Tensor output = one(outputs), input = at::stack(one(inputs));
    return _reduce_scatter_base(output, input, options);
  }
  NativeWork _reduce_scatter_base(at::Tensor& output, at::Tensor& input,
                                  const c10d::ReduceScatterOptions& options) override {
    return started(group_.reduce_scatter_into_async_(output, input, from_c10d(options.reduceOp)), {output});
  }
  NativeWork alltoall_base(at::Tensor& output, at::Tensor& input, std::vector<int64_t>& output_sizes,
                           std::vector<int64_t>& input_sizes, const c10d::AllToAllOptions&) override {
    return started(
        group_.all_to_all_into_async_(output, input, {.input = input_sizes, .output = output_sizes}),
        {output});
  }
  NativeWork alltoall(Tensors& outputs, Tensors& inputs, const c10d::AllToAllOptions&) override {
    auto work = group_.all_to_all_async(inputs);
    return started(std::move(work).then([outputs](const Tensors& parts) { copy_all(parts, outputs); }),
                   outputs);
  }
  NativeWork send(Tensors& tensors, int to, int tag) override {
    return started(group_.send_async(one(tensors), to, tag), tensors);
  }
  NativeWork recv(Tensors& tensors, int from, int tag) override {
    return started(group_.receive_async_(one(tensors), from, tag), tensors);
  }
  NativeWork barrier(const c10d::BarrierOptions&) override { return started(group_.barrier_async(), {}); }

 private:
  template <class T>
  static const T& one(const std::vector<T>& list) {
    if (list.size() == 1) return list[0];
    throw UsageError(Origin{"comm"}, "process_group: ", list.size(), " tensors in one call; give one.");
  }

  NativeWork started(Work<> work, const Tensors& results) {
    return c10::make_intrusive<GroupWork>(std::move(work), results, line_);
  }

  Group group_;
  std::shared_ptr<Line> line_ = std::make_shared<Line>();
};

}  // namespace

c10::intrusive_ptr<c10d::ProcessGroup> process_group(const Group& group) {
  auto result = c10::make_intrusive<c10d::ProcessGroup>(group.rank(), group.world_size());
  const auto custom = c10d::ProcessGroup::BackendType::CUSTOM;
  result->setBackend(c10::DeviceType::CPU, custom, c10::make_intrusive<GroupBackend>(group));
  result->setDefaultBackend(custom);
  return result;
}

}  // namespace hasten::comm
