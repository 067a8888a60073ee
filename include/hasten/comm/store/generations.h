// Generations: the meetings of a run whose dead ranks are replaced under their numbers.
//
// The number of the meeting lies in the store, and ranks do not count it: they may have failed at different times. Each
// meeting has keys of its own. A place may be taken, by this rank before or by its dead predecessor. Then the rank asks
// for the next meeting, and ends the one before by the key that its ranks look for.
#pragma once

#include <chrono>
#include <cstdint>
#include <functional>
#include <optional>
#include <utility>

#include "hasten/comm/store/store.h"

namespace hasten::comm {

class Generations {
 public:
  using Open = std::function<Store(std::chrono::milliseconds timeout)>;

  /// `open` opens the run's store, anew after the process that served it has ended. It is called at the first meeting.
  Generations(Open open, int rank) : open_(std::move(open)), rank_(rank) {}

  /// Returns the keys of a meeting in which this rank has its place, for Group::rejoin.
  /// Blocks: until the process that serves the store is there, at most `timeout`. Throws: CommError;
  /// WaitInterrupted of this thread's WaitCheck.
  Store enter(std::chrono::milliseconds timeout);
  /// Returns the number of the last meeting, -1 before the first.
  int64_t number() const noexcept { return number_; }

 private:
  Store enter_known();

  const Open open_;
  const int rank_;
  std::optional<Store> store_;
  int64_t number_ = -1;
};

}  // namespace hasten::comm
