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

#include "hasten/comm/types/collective.h"
#include "hasten/flight/recorder.h"

namespace hasten::comm {

/// The end of a recorded call: the last of its transfers was waited for, or all have gone. It does not outlive the
/// group, which has the recorder.
class CallEnd {
 public:
  CallEnd() = default;
  CallEnd(flight::Recorder* recorder, flight::Ticket ticket) : recorder_(recorder), ticket_(ticket) {}
  CallEnd(CallEnd&& other) noexcept : recorder_(std::exchange(other.recorder_, nullptr)), ticket_(other.ticket_) {}
  CallEnd& operator=(CallEnd&&) = delete;
  ~CallEnd() { end(); }

  /// The caller waits from now on.
  void wait() noexcept {
    if (recorder_ != nullptr) recorder_->wait(ticket_);
  }
  void end() noexcept {
    if (recorder_ != nullptr) std::exchange(recorder_, nullptr)->end(ticket_);
  }
  /// Ends a call in which no thread of the host has waited.
  void end_uncounted() noexcept {
    if (recorder_ != nullptr) recorder_->go_on(ticket_);
    end();
  }
  bool is_recorded() const noexcept { return recorder_ != nullptr; }

 private:
  flight::Recorder* recorder_ = nullptr;
  flight::Ticket ticket_ = {};
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
  /// Ends the record unless a transfer has taken it.
  ~RecordedCall();
  RecordedCall(const RecordedCall&) = delete;
  RecordedCall& operator=(const RecordedCall&) = delete;

  /// Takes over the call that this thread is in; nothing if it is in none. The thread goes on.
  static CallEnd take() noexcept;

 private:
  flight::Recorder* recorder_ = nullptr;
  flight::Ticket ticket_ = {};
  RecordedCall* outer_ = nullptr;
  at::RecordFunction profiled_{at::RecordScope::USER_SCOPE};
};

}  // namespace hasten::comm
