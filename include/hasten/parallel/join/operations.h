// Operations: the collectives of a training loop on tensors, objects and calls, in loops of even and uneven length.
//
// Each one is the operation of comm, process, data or memory of the same name. Inside join_uneven_inputs (join.h) it
// notifies the ranks that have run out of data first, so that they take part with nothing. An Accelerator has one
// Operations object, which its copies share.
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
#include "hasten/parallel/join/tensor_call.h"
#include "hasten/process/ordered.h"
#include "hasten/process/process.h"
#include "hasten/process/stop.h"
#include "hasten/training/gradient_state.h"
#include "hasten/training/joinable.h"

namespace hasten::parallel {

class Operations : public training::Joinable, public std::enable_shared_from_this<Operations> {
 public:
  using Site = comm::Group::Site;

  /// Collectives of operations() are checked (GroupOptions::check) before data moves. Make it by a shared_ptr.
  /// `data`: the ranks over which tensors and objects are gathered and reduced, those with other batches; unset: all.
  Operations(process::Process process, std::shared_ptr<training::GradientState> gradients,
             const std::optional<comm::Group>& data = {});

  /// For components, which notify joined loops by themselves.
  const process::Process& process() const noexcept { return process_; }
  /// Returns the process's group, with the check on.
  const comm::Group& group() const noexcept { return group_; }
  /// Returns the ranks with other batches, with the check on.
  const comm::Group& data() const noexcept { return data_; }
  /// Returns the same two for a program's own collectives. Inside a joined loop each first compares all ranks. It
  /// throws UsageError on all of them if some have run out of data, since those would not take part.
  const process::Process& own_process() const noexcept { return own_process_; }
  const comm::Group& own_group() const noexcept { return own_group_; }
  const std::shared_ptr<training::GradientState>& gradient_state() const noexcept { return gradients_; }

  /// Concatenates the ranks' tensors along dim 0 and their lists of objects, in any nested structure
  /// (comm/nested/nested.h). Collective: yes (as all of the following). Blocks: yes. Throws: CommError, also when the
  /// ranks' structures differ.
  template <class T>
  T gather(const T& value, Site site) {
    if (!is_joining()) return comm::gather(data_, value, site);
    T result = comm::detail::with_tensors(value, join_call({}, comm::tensors_of(value)));
    comm::detail::join_lists(result, [&](const auto& list) { return gather_list(list, site); });
    return result;
  }

  /// gather without the samples that were repeated to make the last batch even.
  template <class T>
  T gather_for_metrics(const T& value, Site site) {
    return data::truncate_to_remainder(gather(value, site), gradients_->position());
  }

  /// gather_for_metrics for objects, one a sample (strings, numbers, core::Value; JSON with
  /// comm/nested/json_objects.h).
  template <comm::Serialisable T>
  std::vector<T> gather_for_metrics(const std::vector<T>& objects, Site site) {
    return data::truncate_objects(gather_list(objects, site), gradients_->position());
  }

  /// Returns the sum or mean over the ranks, elementwise, of the tensors and numbers of any nested structure.
  template <class T>
  T reduce(const T& value, const comm::ReduceOptions& options, Site site) {
    if (!is_joining()) return comm::reduce(data_, value, options, site);
    return comm::detail::from_numbers(
        value, join_call({TensorCall::Kind::kReduce, options}, comm::detail::with_numbers(value)));
  }

  /// Pads every tensor along a dim to the largest size any rank has.
  template <class T>
  T pad_across_processes(const T& value, const comm::PadOptions& options, Site site) {
    if (!is_joining()) return comm::pad_across_processes(data_, value, options, site);
    return comm::detail::with_tensors(value, join_call({TensorCall::Kind::kPad, {}, options}, comm::tensors_of(value)));
  }

  /// memory::find_executable_batch_size; inside a joined loop over the ranks with data.
  template <class Fn>
  auto find_executable_batch_size(int64_t start, Fn&& fn) {
    return memory::find_executable_batch_size(
        group(), start, std::forward<Fn>(fn),
        [this](const memory::BatchSizeAttempt& attempt) { notify_attempt(attempt); });
  }

  /// process::main_process_first and local_main_process_first. Inside a joined loop the first rank with data (of each
  /// machine) replaces a main process that has none.
  template <class Fn>
  auto main_process_first(Fn&& fn) {
    return process::detail::value_in_order(process_, goes_first(), kMainFirst, std::forward<Fn>(fn));
  }
  template <class Fn>
  auto local_main_process_first(Fn&& fn) {
    return process::detail::value_in_order(process_, goes_first_locally(), kLocalMainFirst, std::forward<Fn>(fn));
  }

  /// Returns when every rank has called. Collective: yes. Blocks: yes. Throws: CommError.
  void wait_for_everyone();

  /// Raises this rank's flag for check_trigger.
  void set_trigger() noexcept { triggered_ = true; }
  /// Returns true if any rank has called set_trigger since it last did; lowers the flags.
  /// Collective: yes. Blocks: yes. Throws: CommError.
  bool check_trigger();

  /// Returns true on all ranks once SIGTERM or SIGUSR1 has come to any. The first call installs the handlers
  /// (process::StopSignals). Collective: yes. Blocks: yes. Throws: CommError.
  bool should_stop();

  /// Returns a logger whose lines carry the rank; its in_order lines notify a joined loop.
  Logger logger(const std::string& name);

  // ---- What joined loops need.

  /// Returns true inside join_uneven_inputs, where collectives notify and ranks without data shadow them.
  bool is_joining() const noexcept { return open_->join != nullptr; }
  /// Null: the loop has ended.
  void set_join(std::shared_ptr<training::JoinScope> join) noexcept { open_->join = std::move(join); }
  /// Notifies a call of another component. Nothing outside a joined loop.
  /// Collective, Blocks, Throws: there, as JoinScope::notify.
  training::ActiveRanks notify(const training::JoinCall& call) {
    return is_joining() ? open_->join->notify(call) : training::ActiveRanks{};
  }
  /// Throws: UsageError on all ranks inside a joined loop, since those without data could not take part.
  void reject_in_join(const std::string& call) const {
    if (is_joining()) open_->join->reject(call);
  }
  std::string name() const override { return kComponent; }
  void shadow(const training::JoinCall& call, const training::ActiveRanks& active) override;

 private:
  template <comm::Serialisable T>
  std::vector<T> gather_list(const std::vector<T>& list, const Site& site) {
    notify("gather_object");
    return comm::detail::gather_list(data_, list, site);
  }
  /// The joined loop, if one is open. The observer of own_group, whose copies may outlive this object, shares it.
  struct OpenLoop {
    std::shared_ptr<training::JoinScope> join;
  };
  static constexpr const char* kComponent = "operations";
  static constexpr const char *kMainFirst = "main_process_first", *kLocalMainFirst = "local_main_process_first";
  bool goes_first();
  bool goes_first_locally();
  void refuse_parts_of_models(const char* call) const;
  bool is_first_of_machine(const training::ActiveRanks& active) const;
  /// Notifies a call without tensors.
  training::ActiveRanks notify(const char* operation) { return notify(training::JoinCall{kComponent, operation}); }
  void notify_attempt(const memory::BatchSizeAttempt& attempt);
  std::vector<at::Tensor> join_call(const TensorCall& call, const std::vector<at::Tensor>& tensors);
  bool reduce_trigger();
  bool reduce_stop();

  std::shared_ptr<OpenLoop> open_ = std::make_shared<OpenLoop>();
  process::Process process_;
  comm::Group group_, data_;
  process::Process own_process_;
  comm::Group own_group_;
  std::shared_ptr<training::GradientState> gradients_;
  std::unique_ptr<const process::StopSignals> stop_signals_;
  bool triggered_ = false;
};

}  // namespace hasten::parallel
