// AcceleratorBase: what an Accelerator is before it trains anything: the process it stands for, and what the
// ranks do together with the tensors and objects of a loop.
//
// Read-only properties, and forwards to state and comm, under the names Accelerate gives them. Training
// (models, optimizers, loaders, backward) is accelerator.h's.
#pragma once

#include <functional>
#include <iterator>
#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "hasten/comm/nested/nested_operations.h"
#include "hasten/comm/nested/objects.h"
#include "hasten/data/metrics/metrics.h"
#include "hasten/memory/batch_size.h"
#include "hasten/parallel/join/join.h"
#include "hasten/process/ordered.h"
#include "hasten/process/print.h"
#include "hasten/process/process.h"
#include "hasten/process/split.h"
#include "hasten/process/stop.h"
#include "hasten/training/gradient_state.h"

namespace hasten {

namespace parallel {
class Sharding;
}

/// Accelerate's names of what takes part.
enum class DistributedType { kNo, kMultiCpu, kMultiGpu, kFsdp, kDeepSpeed };

class AcceleratorBase {
 public:
  const process::Process& process() const noexcept { return shared_->process; }
  /// Whose collectives agree before data moves (GroupOptions::check).
  const comm::Group& group() const noexcept { return shared_->group; }
  const training::GradientState& gradient_state() const noexcept { return *shared_->gradient_state; }

  /// What splits state over the ranks (slices of optimizer state, whole ones for saving); null where nothing is
  /// split.
  const std::shared_ptr<parallel::Sharding>& sharding() const noexcept { return shared_->sharding; }

  c10::Device device() const noexcept { return process().device(); }
  /// Accelerate's names of rank, local_rank and world_size.
  int process_index() const noexcept { return rank(); }
  int local_process_index() const noexcept { return local_rank(); }
  int num_processes() const noexcept { return world_size(); }
  bool use_distributed() const noexcept { return world_size() > 1; }
  DistributedType distributed_type() const noexcept {
    if (shared_->sharded_by) return *shared_->sharded_by;
    if (!use_distributed()) return DistributedType::kNo;
    return device().is_cuda() ? DistributedType::kMultiGpu : DistributedType::kMultiCpu;
  }
  int rank() const noexcept { return process().rank(); }
  int local_rank() const noexcept { return process().local_rank(); }
  int world_size() const noexcept { return process().world_size(); }
  bool is_main_process() const noexcept { return process().is_main_process(); }
  bool is_local_main_process() const noexcept { return process().is_local_main_process(); }
  bool is_last_process() const noexcept { return process().is_last_process(); }
  bool sync_gradients() const noexcept { return gradient_state().sync_gradients(); }
  bool optimizer_step_was_skipped() const noexcept { return gradient_state().optimizer_step_was_skipped(); }

  /// Raises a flag that check_trigger tells all ranks of, for a decision that one of them takes (stopping
  /// early, a loss that is no number).
  /// Collective: no. Blocks: no. Throws: nothing.
  void set_trigger() const noexcept;
  /// Whether any rank has called set_trigger since the last time this gave true; lowers the flags.
  /// Collective: yes. Blocks: yes. Throws: CommError.
  bool check_trigger() const;

  /// Whether SIGTERM or SIGUSR1 has come to any rank, with which a cluster announces the end of a job: the
  /// same answer on all, for the end of a step. Note is taken from the first call on, and these signals no
  /// longer end the process by themselves (process::StopSignals). Collective: yes. Blocks: yes. Throws:
  /// CommError.
  bool should_stop() const;

  /// memory::find_executable_batch_size: halves `start` until `fn(batch_size)` fits into memory on all ranks
  /// (in join_uneven_inputs on those with data).
  template <class Fn>
  auto find_executable_batch_size(int64_t start, Fn&& fn) const {
    return memory::find_executable_batch_size(
        group(), start, std::forward<Fn>(fn),
        [this](const memory::BatchSizeAttempt& attempt) { announce_attempt(attempt); });
  }

  /// process::split_between_processes: this rank's share of a vector, a tensor, or a map of them.
  template <class T>
  T split_between_processes(const T& values, bool apply_padding = false) const {
    return process::split_between_processes(process(), values, apply_padding);
  }

  /// Everybody's tensors, concatenated along dim 0, in any nested structure (comm/nested.h).
  /// Collective: yes (as all of the following). Blocks: yes. Throws: CommError, also when the ranks'
  /// structures differ.
  template <class T>
  T gather(const T& value, comm::Group::Site site = comm::Group::Site::current()) const {
    if (is_joining()) {
      return comm::detail::with_tensors(value, join_call({}, comm::tensors_of(value)));
    }
    return comm::gather(group(), value, site);
  }

  /// As gather, without the samples that were repeated to make the last batch even: over a loop each sample
  /// of the dataset exactly once, for any world size.
  template <class T>
  T gather_for_metrics(const T& value, comm::Group::Site site = comm::Group::Site::current()) const {
    return data::truncate_to_remainder(gather(value, site), gradient_state().position());
  }

  /// data::without_padding of this rank's part of the batch in hand, for metrics that each rank counts
  /// (data/counted_metrics.h).
  /// Collective: no. Blocks: no. Throws: as data::without_padding.
  template <class T>
  T without_padding(const T& value) const {
    return data::without_padding(value, gradient_state().position(), rank());
  }

  /// gather_for_metrics for objects, one a sample (strings, numbers, JSON: comm/objects.h).
  template <comm::Serialisable T>
  std::vector<T> gather_for_metrics(const std::vector<T>& objects,
                                    comm::Group::Site site = comm::Group::Site::current()) const {
    std::vector<T> all;
    if (is_joining()) announce("objects");
    for (auto& part : comm::gather_object(group(), objects, site)) {
      std::move(part.begin(), part.end(), std::back_inserter(all));
    }
    return data::truncate_objects(std::move(all), gradient_state().position());
  }

  /// Sum or mean over the ranks, elementwise, of any nested structure.
  template <class T>
  T reduce(const T& value, const comm::ReduceOptions& options = {},
           comm::Group::Site site = comm::Group::Site::current()) const {
    if (is_joining()) {
      return comm::detail::with_tensors(
          value, join_call({parallel::JointCall::Kind::kReduce, options}, comm::tensors_of(value)));
    }
    return comm::reduce(group(), value, options, site);
  }

  /// Pads every tensor along a dim to the largest size any rank has.
  template <class T>
  T pad_across_processes(const T& value, const comm::PadOptions& options = {},
                         comm::Group::Site site = comm::Group::Site::current()) const {
    if (is_joining()) {
      return comm::detail::with_tensors(
          value, join_call({parallel::JointCall::Kind::kPad, {}, options}, comm::tensors_of(value)));
    }
    return comm::pad_across_processes(group(), value, options, site);
  }

  /// The end of a training: all ranks have come when it returns. To be called once, last.
  void end_training() const { wait_for_everyone(); }
  void wait_for_everyone() const {
    if (is_joining()) announce("barrier");
    process().wait_for_everyone();
  }

  /// Prints a line once per machine.
  /// Collective: no. Blocks: no. Throws: nothing.
  template <class... Parts>
  void print(const Parts&... parts) const {
    process::print(process(), parts...);
  }

  /// process::Process::on_main_process and on_local_main_process: `fn` on one process only.
  void on_main_process(const std::function<void()>& fn) const { process().on_main_process(fn); }
  void on_local_main_process(const std::function<void()>& fn) const { process().on_local_main_process(fn); }

  /// A logger whose lines carry the rank; see core/log.h for main_process_only and in_order.
  Logger logger(const std::string& name) const;

  /// process::main_process_first and local_main_process_first: `fn` on the main process, then on the others. In
  /// join_uneven_inputs the first rank with data (of each machine) stands for a main process that has none.
  template <class Fn>
  auto main_process_first(Fn&& fn) const {
    return process::detail::value_in_order(process(), goes_first(), kMainFirst, std::forward<Fn>(fn));
  }
  template <class Fn>
  auto local_main_process_first(Fn&& fn) const {
    return process::detail::value_in_order(process(), goes_first_locally(), kLocalMainFirst,
                                         std::forward<Fn>(fn));
  }

 protected:
  explicit AcceleratorBase(process::Process process);
  ~AcceleratorBase() = default;
  AcceleratorBase(const AcceleratorBase&) = default;
  AcceleratorBase(AcceleratorBase&&) noexcept = default;
  AcceleratorBase& operator=(const AcceleratorBase&) = default;
  AcceleratorBase& operator=(AcceleratorBase&&) noexcept = default;

  const std::shared_ptr<training::GradientState>& shared_gradient_state() const noexcept {
    return shared_->gradient_state;
  }

  /// Inside join_uneven_inputs: collectives announce themselves, and ranks without data answer.
  bool is_joining() const noexcept { return shared_->join != nullptr; }
  void set_join(std::shared_ptr<parallel::Join> join) const { shared_->join = std::move(join); }
  void set_sharding(std::shared_ptr<parallel::Sharding> sharding) const { shared_->sharding = std::move(sharding); }
  void set_sharded_by(DistributedType type) const { shared_->sharded_by = type; }
  parallel::ActiveRanks announce(const nlohmann::json& call) const { return shared_->join->announce(call); }
  /// Inside join_uneven_inputs: a UsageError on all ranks, since those without data could not take part.
  void refuse_in_join(const std::string& call) const {
    if (is_joining()) shared_->join->refuse(call);
  }
  /// What a rank without data does when another announces `call`, unless that is a backward.
  void answer(const nlohmann::json& call, const parallel::ActiveRanks& active) const;

 private:
  static constexpr const char *kMainFirst = "main_process_first",
                              *kLocalMainFirst = "local_main_process_first";
  bool goes_first() const;
  bool goes_first_locally() const;
  bool is_first_of_machine(const parallel::ActiveRanks& active) const;
  void announce_attempt(const memory::BatchSizeAttempt& attempt) const;
  std::vector<at::Tensor> join_call(const parallel::JointCall& call,
                                    const std::vector<at::Tensor>& tensors) const;
  bool ask_for_trigger() const;
  bool ask_to_stop() const;

  /// What copies of the handle share.
  struct Shared {
    process::Process process;
    comm::Group group;
    std::shared_ptr<training::GradientState> gradient_state = std::make_shared<training::GradientState>();
    bool triggered = false;
    std::unique_ptr<const process::StopSignals> stop_signals = {};
    std::shared_ptr<parallel::Join> join = {};
    std::shared_ptr<parallel::Sharding> sharding = {};
    /// kFsdp or kDeepSpeed, where their settings were given.
    std::optional<DistributedType> sharded_by = {};
  };
  std::shared_ptr<Shared> shared_;
};

}  // namespace hasten
