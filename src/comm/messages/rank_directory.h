// RankDirectory: the ranks that join and leave one by one, as keys of a store.
//
// A rank draws its number from a counter and sets its address. A rank that has gone is marked, so that later ranks pass
// it by. Numbers are never used twice.
#pragma once

#include <optional>
#include <string>

#include "hasten/comm/store/store.h"
#include "hasten/core/hmac.h"

namespace hasten::comm {

class RankDirectory {
 public:
  /// Draws this process's rank. Throws (all): CommError if the store is gone.
  explicit RankDirectory(const Store& store);
  int rank() const noexcept { return rank_; }
  /// The run's key if the first rank has one, else a key that it has drawn. `is_run_key` tells which. Throws:
  /// UsageError if this rank lacks the run's key.
  Bytes agree_on_key(const Bytes& run_key, bool& is_run_key) const;
  void publish(const std::string& address) const;
  /// Returns the address of a rank; nothing if it has left. Blocks: for a rank that has drawn its number and has not
  /// set its address yet, 10 s at most. Then the rank counts as left.
  std::optional<std::string> find(int rank) const;
  /// Marks this rank as left, or another one that was found dead.
  void leave() const noexcept { mark_left(rank_); }
  void mark_left(int rank) const noexcept;

 private:
  Store store_;
  int rank_;
};

}  // namespace hasten::comm
