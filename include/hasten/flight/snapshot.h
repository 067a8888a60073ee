// Snapshot: the ranks of a run as their pages show them, in plain values. Times are seconds before the moment of
// reading, so clocks of several hosts need not agree.
#pragma once

#include <sys/types.h>

#include <cstdint>
#include <map>
#include <optional>
#include <string>
#include <vector>

#include "hasten/flight/facts.h"
#include "hasten/flight/page.h"

namespace hasten::flight {

struct GroupState {
  uint64_t key = 0;
  std::string name = {};
  int rank = 0;
  int size = 1;
  uint64_t calls = 0;  ///< the number of the rank's last call
  double timeout_s = 1800;
};

struct CallState {
  uint64_t group = 0;  ///< its key
  CallKind kind = CallKind::kCollective;
  uint64_t number = 0;
  std::string label = {};  ///< "all_reduce(sum) of float32"
  std::string site = {};   ///< "bucket.cpp:131"
  std::string purpose = {};
  int64_t purpose_number = -1;
  SizesRule rule = SizesRule::kEqual;
  std::vector<int64_t> sizes = {};
  int dims = 0;
  int root = -1;
  int peer = -1;
  int tag = -1;
  uint32_t thread = 0;
  double posted_s = 0;
  std::optional<double> waits_s = {};  ///< how long its caller has been waiting, if it does
  bool ended = false;
};

/// How the process of a rank stands. kSilent: its host tells nothing any more, so all else of it is old.
enum class Life { kRunning, kStopped, kTraced, kEnded, kSilent };

struct RankState {
  int rank = 0;
  int world_size = 1;
  int local_rank = 0;
  int local_world_size = 1;
  int node_rank = 0;
  int restart_count = 0;
  pid_t pid = 0;
  std::string run = {};
  std::string run_id = {};
  std::string host = {};
  std::string program = {};
  PageState state = PageState::kRunning;
  Life life = Life::kRunning;
  std::string tracer = {};  ///< "gdb (412)"
  double heartbeat_s = 0;
  double progress_s = 0;
  std::string phase = {};
  double phase_s = 0;
  int64_t step = 0, samples = 0, epoch = 0, batch = 0;
  std::vector<double> step_times_s = {};  ///< of the last steps, oldest first
  double last_step_s = 0;                 ///< 0: none yet
  double waited_s = 0;                    ///< in collectives, in all
  double delayed_s = 0;                   ///< its main thread wanted a core and had none, in all
  double read_at_s = 0;                   ///< the moment of reading, by the host's clock
  std::map<std::string, double> phase_times_s = {};
  std::optional<double> loss = {};
  int64_t bad_step = 0;  ///< 0: all values were finite
  int64_t bad_epoch = 0, bad_batch = 0;
  std::string bad_value = {};
  std::vector<GroupState> groups = {};
  std::vector<CallState> calls = {};  ///< oldest first
  std::optional<Facts> facts = {};    ///< of its own threads, if it was asked
  std::string stack = {};             ///< of its main thread, innermost first: "f (a.cpp:3) < main (a.cpp:9)"
};

struct Snapshot {
  int world_size = 1;
  std::vector<RankState> ranks = {};  ///< those that are known, by rank
};

/// Returns the median of the last steps of all ranks; 0 if none was made.
double median_step_s(const Snapshot& snapshot);

/// "2", "0 1 3", "0-3 7".
std::string rank_list(std::vector<int> ranks);

}  // namespace hasten::flight
