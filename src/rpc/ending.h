// Ending: the time when all workers may stop, as a pure state machine at one of them (four counters, after Mattern). It
// is the lowest rank that is not lost.
//
// Each worker reports how many messages it has sent to and received from each other one, whenever nothing runs there.
// Two rounds with the same numbers, in which every message sent was received, show that nothing is under way.
#pragma once

#include <cstddef>
#include <cstdint>
#include <map>
#include <set>
#include <vector>

namespace hasten::rpc {

/// A worker's counts, by the other worker's rank. kLostCount for a worker that it has lost. Two workers whose
/// connection was cut lose each other, while the rest still has both.
constexpr uint64_t kLostCount = UINT64_MAX;
struct EndingReport {
  std::vector<uint64_t> sent, received;
  bool operator==(const EndingReport&) const = default;
};

class Ending {
 public:
  explicit Ending(int world_size, int first_round = 1) : world_size_(world_size), round_(first_round) {}
  /// Returns the next round, to which all workers reply.
  int round() const { return round_; }
  void report(int rank, int round, EndingReport report);
  void lose(int rank) { lost_.insert(rank); }
  const std::set<int>& lost() const { return lost_; }
  /// All have reported in this round: goes on to the next, or is done. Returns true if there is something to do.
  bool advance();
  bool done() const { return done_; }

 private:
  bool complete() const;
  bool balanced() const;
  const int world_size_;
  int round_;
  bool done_ = false;
  std::set<int> lost_;
  std::map<int, EndingReport> now_, before_;
};

}  // namespace hasten::rpc
