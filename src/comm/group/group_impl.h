// The inside of a Group: its backends, its agreement, and the conversion of a peer's failure to an error with names.
//
// group.cpp makes and connects groups, collectives.cpp and point_to_point.cpp carry out the operations.
#pragma once

#include <array>
#include <atomic>
#include <concepts>
#include <functional>
#include <list>
#include <map>
#include <memory>
#include <mutex>
#include <source_location>
#include <string>
#include <utility>
#include <vector>

#include "comm/backend/backend.h"
#include "comm/group/call_name.h"
#include "comm/group/failure_watch.h"
#include "comm/group/fork_depth.h"
#include "comm/group/recorded_call.h"
#include "comm/types/call_label.h"
#include "comm/types/collective_fingerprint.h"
#include "hasten/comm/group/group.h"
#include "hasten/core/error.h"
#include "hasten/core/log.h"

namespace hasten::comm {

class Meetings;
class Receipt;

namespace detail {
class Transfers;
}

struct Group::Impl : std::enable_shared_from_this<Group::Impl> {
  Impl(int rank, int world_size, GroupOptions options);
  ~Impl();

  int rank;
  int world_size;
  /// Group::options() leads from a handle back to the group, for functions that are no members (rejoin.h).
  struct OwnedOptions : GroupOptions {
    Impl* owner;
  };
  OwnedOptions options;
  /// The run's store, where failing ranks leave their messages; the same for a group and its subgroups. None in a world
  /// of one.
  std::optional<Store> run_store;

  /// Returns the backend for CPU tensors. Connects a lazy group: collective, and blocks, then.
  Backend& cpu();
  /// Waits for the other ranks and connects the backends. Does nothing if that is done. Throws: as Group::connect.
  void connect();
  bool is_connected() const noexcept { return connected_; }
  /// Each other rank counts as a copy of this one, until rejoin (rejoin.cpp).
  void stand_in(std::shared_ptr<Meetings> own);
  /// Null but in a run whose dead ranks are replaced.
  std::shared_ptr<Meetings> meetings;
  bool stands_in() const noexcept { return stands_in_; }
  /// Returns true if this group, or a subgroup, is broken.
  bool is_broken() const noexcept;
  void rejoin(const Store& store, std::chrono::milliseconds timeout);
  /// Throws: UsageError if a lazy group has not been connected; two ranks alone cannot do it.
  void require_connected(CallName kind) const;
  /// "gloo" and so on; "none" in a world of one.
  std::string backend_name() const;

  Origin origin() const { return {"comm", rank, world_size}; }
  bool alone() const { return world_size == 1; }

  /// Returns the backend that carries tensors of this device. Makes that of GPUs at their first tensor.
  Backend& backend_for(const at::Tensor& tensor);

  /// Exchanges records and throws CommError on every rank if they disagree; gives all ranks' records.
  std::vector<Fingerprint> agree(Fingerprint record);

  /// Returns a Work over started transfers; `finish` runs in wait(), after the last has ended.
  template <class T>
  Work<T> work(CallName kind, std::vector<Backend::Started> transfers, std::function<T()> finish);
  /// As above, over the transfer that `start` starts.
  template <class T, std::invocable Start>
  Work<T> work(CallName kind, const Start& start, std::function<T()> finish) {
    std::vector<Backend::Started> transfers;
    transfers.push_back(started(kind, start));
    return work<T>(kind, std::move(transfers), std::move(finish));
  }
  /// Starts a transfer; turns the backend's exceptions into CommErrors as wait does.
  template <std::invocable Start>
  Backend::Started started(CallName kind, const Start& start) const {
    try {
      return start();
    } catch (...) {
      rethrow_named(kind, call_label());
    }
  }

  /// Throws: UsageError in a child that fork() made of the rank.
  void require_own_process(CallName kind) const {
    if (fork_depth() != fork_depth_ && !alone()) throw_forked(origin(), kind);
  }

  /// Writes a call into the rank's page. Connects a lazy group. The result is the scope of the call.
  RecordedCall record(OpType type, const std::source_location& site, const RecordedFacts& facts) {
    require_own_process(type);
    connect();
    return RecordedCall(recorder_.get(), recorder_group_, type, site, facts);
  }
  /// As above, for the messages of a batch.
  RecordedCall record(const std::vector<PointToPoint>& messages, const std::source_location& site);

  /// The sender of a message: a rank, or kAnyRank and the place for the number of the one that it was.
  static constexpr int kAnyRank = -1;
  struct Sender {
    int rank;
    std::shared_ptr<int> found = {};
  };
  /// Starts a receive that takes the data only where they are what `tensor` is to take.
  Backend::Started checked_receive(Backend& backend, const at::Tensor& tensor, const at::Tensor& staged,
                                   const Sender& sender, int tag, const std::source_location& site);
  /// Messages of the device, all in one call of a backend that exchanges().
  Work<> exchange(const std::vector<PointToPoint>& messages, bool check, const std::source_location& site);
  /// The checked receives from one peer with one tag, which take place one after the other, and why none can
  /// take its message any more.
  using ChannelKey = std::pair<int, int>;
  std::exception_ptr broken_channel(const ChannelKey& key);
  void break_channel(const ChannelKey& key, std::exception_ptr why);

  /// Waits for a transfer. Turns the backend's exceptions into a CommError that names the failed rank and the reason.
  void wait(Backend::Transfer& transfer, CallName kind) const { wait(transfer, kind, call_label()); }
  void wait(Backend::Transfer& transfer, CallName kind, const CallLabel& label) const;

  void check_rank(int peer, const char* role, CallName kind) const;
  void check_open(CallName kind) const;
  /// Begins a call: check_open, and the call's words for the others' errors.
  void enter(CallName kind, const std::source_location& site) const {
    check_open(kind);
    set_call_label(site);
  }

  void set_timeout(std::chrono::milliseconds timeout);

  void fail(const std::string& message) noexcept;
  /// Closes this rank's end because another rank has failed.
  void close_after_peer() noexcept;
  std::optional<std::string> failure() const noexcept;

  /// Takes over transfers without a waiter. Those that have ended with an error are logged at the next operation.
  void track_abandoned(CallName kind, std::vector<Backend::Started> transfers) noexcept;
  void reap() noexcept;

  /// Ends the record of a call whose waits have returned, or that has no waiter. If a device carries its transfers, the
  /// record ends once that has done them.
  void end_when_done(CallEnd end, const std::vector<Backend::Started>& transfers) noexcept;
  /// Ends those that have been done: all, or the oldest ones up to the first that is under way.
  void end_done_calls(bool all) noexcept;

  /// A subgroup made here, which fails with this group.
  void add_child(const std::shared_ptr<Impl>& child);
  std::atomic<int> subgroups_made = 0;

 private:
  /// In a handler: throws what it has caught, with the failed rank and the reason.
  [[noreturn]] void rethrow_named(CallName kind, const CallLabel& label) const;
  std::string explain(const std::string& what, const std::string& backend_words) const;
  /// Null where CUDA tensors take the CPU's backend.
  Backend* device_backend(c10::Device device);
  /// Forgets the meeting, its backends and what is under way on them.
  void leave_meeting() noexcept;
  /// The timeout of operations that start now (Group::set_timeout).
  std::chrono::milliseconds timeout() const noexcept { return timeout_; }
  std::vector<std::shared_ptr<Impl>> children() const;

  struct AbandonedTransfer {
    CallName kind;
    std::array<std::shared_ptr<Backend>, 2> backends;
    Backend::Started transfer;
  };

  void close_backends() noexcept;
  using Backends = std::array<std::shared_ptr<Backend>, 2>;
  /// Those that transfers may be under way on. That of a device is there once made_device_ is set.
  Backends backends_in_use() const { return {cpu_, made_device_ != nullptr ? device_ : nullptr}; }

  friend class detail::Transfers;

  const int fork_depth_ = fork_depth();
  /// The recorder of this process, if it has one; and this group's place there, from its meeting on.
  const std::shared_ptr<flight::Recorder> recorder_ = flight::process_recorder();
  int recorder_group_ = -1;
  std::mutex connect_mutex_;
  /// For the backends' pointers: another thread may fail while this one connects.
  mutable std::mutex backends_mutex_;
  /// The keys of this group's ranks, once they have met.
  std::optional<Store> keys_;
  /// Transfers keep them: a rank that rejoins may still hold some of the meeting before.
  std::shared_ptr<Backend> cpu_;
  std::shared_ptr<Backend> device_;
  std::atomic<Backend*> made_device_ = nullptr;
  /// Closes the backends when another rank leaves its words: what a GPU waits for has no host thread that would see it.
  std::unique_ptr<FailureWatch> watch_;
  std::atomic<bool> connected_ = false;
  std::atomic<uint64_t> sequence_ = 0;
  std::atomic<std::chrono::milliseconds> timeout_;
  std::atomic<bool> failed_ = false;
  /// A transfer has ended with an error.
  mutable std::atomic<bool> broken_ = false;
  std::atomic<bool> stands_in_ = false;
  /// It was connected anew: a rank that is killed leaves no words.
  bool rejoined_ = false;
  /// Timeout of the meeting; the options' but for a rejoin.
  std::optional<std::chrono::milliseconds> meeting_timeout_ = {};
  mutable std::mutex children_mutex_;
  std::vector<std::weak_ptr<Impl>> children_;
  struct ReceiveChannel {
    std::weak_ptr<Receipt> last;
    std::exception_ptr broken;
  };
  std::mutex lanes_mutex_;
  std::map<ChannelKey, ReceiveChannel> channels_;
  struct OpenCall {
    CallEnd end;
    std::vector<Backend::Transfer::EndOnDevice> transfers;
    /// The longest of the transfers that have been done.
    int64_t took_ns = 0;
    bool is_done() noexcept;
  };
  std::mutex open_mutex_;
  /// Calls that a device still carries out, oldest first.
  std::list<OpenCall> open_;
  std::mutex orphans_mutex_;
  std::vector<AbandonedTransfer> abandoned_;
  Logger logger_;
};

namespace detail {

/// Transfers started by one call.
class Transfers : public Operation {
 public:
  Transfers(std::shared_ptr<Group::Impl> group, CallName kind, std::vector<Backend::Started> transfers)
      : group_(std::move(group)),
        backends_(group_->backends_in_use()),
        kind_(kind),
        label_(call_label()),
        transfers_(std::move(transfers)),
        end_(RecordedCall::take()) {}

  bool done() override;
  void wait() override;

 protected:
  void on_abandon(std::shared_ptr<Operation> self) noexcept override;

 private:
  std::shared_ptr<Group::Impl> group_;
  bool is_of_an_earlier_meeting() const noexcept { return backends_[0] != group_->cpu_; }

  std::array<std::shared_ptr<Backend>, 2> backends_;
  CallName kind_;
  CallLabel label_;
  std::vector<Backend::Started> transfers_;
  CallEnd end_;
};

}  // namespace detail

template <class T>
Work<T> Group::Impl::work(CallName kind, std::vector<Backend::Started> transfers, std::function<T()> finish) {
  return Work<T>(std::make_shared<detail::Transfers>(shared_from_this(), kind, std::move(transfers)),
                 std::move(finish));
}

}  // namespace hasten::comm
