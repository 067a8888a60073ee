// RecordedCall: a call of a group in the rank's page (flight/recorder.h), from its beginning to the end of its
// transfers.
//
// The scope lies in the function that makes the call. Transfers that are started inside it take its end over. The scope
// is an event of libtorch's profiler, too, where one is on.
#pragma once

#include <ATen/core/Tensor.h>
#include <ATen/record_function.h>

#include <optional>
#include <source_location>
#include <utility>
#include <vector>

#include "hasten/comm/types/collective.h"
#include "hasten/flight/recorder.h"

namespace hasten::comm {

/// The records of a call: one, or one for each message of a batch, which begin and end together.
struct CallTickets {
  flight::Ticket first = {};
  std::vector<flight::Ticket> others = {};

  template <class Fn>
  void each(const Fn& fn) const {
    fn(first);
    for (const flight::Ticket ticket : others) fn(ticket);
  }
};

/// The end of a recorded call: the last of its transfers was waited for, or all have gone. It does not outlive the
/// group, which has the recorder.
class CallEnd {
 public:
  CallEnd() = default;
  CallEnd(flight::Recorder* recorder, CallTickets tickets) : recorder_(recorder), tickets_(std::move(tickets)) {}
  CallEnd(CallEnd&& other) noexcept
      : recorder_(std::exchange(other.recorder_, nullptr)), tickets_(std::move(other.tickets_)) {}
  CallEnd& operator=(CallEnd&&) = delete;
  ~CallEnd() { end(); }

  /// The caller waits from now on.
  void wait() noexcept {
    if (recorder_ == nullptr) return;
    tickets_.each([this](flight::Ticket ticket) { recorder_->wait(ticket); });
  }
  void end() noexcept {
    if (recorder_ == nullptr) return;
    tickets_.each([this](flight::Ticket ticket) { recorder_->end(ticket); });
    recorder_ = nullptr;
  }
  /// Ends a call that the device has done, in which no thread of the host has waited. 0: for an unknown time.
  void end_on_device(int64_t took_ns) noexcept {
    if (recorder_ == nullptr) return;
    tickets_.each([this, took_ns](flight::Ticket ticket) { recorder_->end_on_device(ticket, took_ns); });
    recorder_ = nullptr;
  }
  bool is_recorded() const noexcept { return recorder_ != nullptr; }

 private:
  flight::Recorder* recorder_ = nullptr;
  CallTickets tickets_ = {};
};

/// A call's values besides its kind. Absent ones are left out of the record.
struct RecordedFacts {
  const at::Tensor* tensor = nullptr;
  std::optional<ReduceOp> op = {};
  int root = -1;
  int peer = -1;
  int tag = -1;
  flight::CallKind kind = flight::CallKind::kCollective;
};

class RecordedCall {
 public:
  /// Posts the call, in which the thread then waits. Records nothing if `recorder` is null.
  RecordedCall(flight::Recorder* recorder, int group, OpType type, const std::source_location& site,
               const RecordedFacts& facts) noexcept;
  /// Posts the messages of a batch, each as a call of its own.
  RecordedCall(flight::Recorder* recorder, int group, const std::source_location& site,
               const std::vector<RecordedFacts>& messages) noexcept;
  /// Ends the record unless a transfer has taken it.
  ~RecordedCall();
  RecordedCall(const RecordedCall&) = delete;
  RecordedCall& operator=(const RecordedCall&) = delete;

  /// Takes over the call that this thread is in; nothing if it is in none. The thread goes on.
  static CallEnd take() noexcept;

 private:
  void enter(flight::Recorder* recorder) noexcept;

  flight::Recorder* recorder_ = nullptr;
  CallTickets tickets_ = {};
  RecordedCall* outer_ = nullptr;
  at::RecordFunction profiled_{at::RecordScope::USER_SCOPE};
};

}  // namespace hasten::comm
