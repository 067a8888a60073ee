// Rejoin: groups whose dead ranks are replaced under their numbers.
//
// Such a group stands in until its ranks meet: each other rank counts as a copy of this one. It meets again when a rank
// has ended, at keys of the store that no meeting has used (comm/store/generations.h). All handles of the group, and
// its subgroups, see it.
#pragma once

#include <chrono>
#include <cstdint>
#include <functional>
#include <list>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "hasten/comm/group/group.h"
#include "hasten/comm/store/generations.h"

namespace hasten::comm {

/// Values beside the group that belong to its meetings, as the numbers of saves. Ranks have the same parts in the same
/// order.
struct MeetingPart {
  /// Returns them as of now.
  std::function<std::string()> state = {};
  /// Called on every rank when the ranks have met, with what state() has returned on the one whose state all take.
  std::function<void(const std::string&)> load_state = {};
  /// Called behind an error, before the ranks meet anew. It ends work that waits for the others. Throws nothing.
  std::function<void()> leave = {};
};

/// A rank's part in a run whose dead ranks are replaced, which a group and its subgroups share.
class Meetings {
 public:
  /// `open` opens the run's store. `replaces`: this process has the place of a rank that ended.
  Meetings(Generations::Open open, int rank, bool replaces)
      : generations_(std::move(open), rank), replaces_(replaces) {}

  /// Connects the ranks of `group`, which stand_in has made with these, and of its subgroups.
  /// Collective: yes. Blocks: until all have come. Throws: CommError if a rank ends meanwhile, and then another call
  /// may succeed; CommError naming those that have not come within `timeout`.
  void meet(const Group& group, std::chrono::milliseconds timeout);
  bool replaces() const noexcept { return replaces_; }
  /// Returns the number of the last meeting, -1 before the first.
  int64_t number() const noexcept { return generations_.number(); }
  /// The rank of the group of all ranks whose values the others take since the last meeting; the same on all ranks.
  int source() const noexcept { return source_; }
  void set_source(int rank) noexcept { source_ = rank; }

  /// Keeps the part until `remove` of what is returned.
  std::list<MeetingPart>::const_iterator add(MeetingPart part);
  void remove(std::list<MeetingPart>::const_iterator part) noexcept;
  /// The parts' states, in their order.
  std::vector<std::string> states() const;
  /// Throws: UsageError for other parts than this rank has.
  void load_states(const std::vector<std::string>& states) const;
  void leave() const;

 private:
  Generations generations_;
  const bool replaces_;
  int source_ = 0;
  std::list<MeetingPart> parts_ = {};
};

/// Returns a group that is not connected yet. Until its ranks meet, all_gather gives equal parts, a sum is multiplied
/// by world_size, broadcast and barrier do nothing, and messages are refused. So do its subgroups.
/// Throws: UsageError for a rank outside the world.
Group stand_in(int rank, int world_size, const GroupOptions& options, std::shared_ptr<Meetings> meetings = nullptr);

/// Returns true until a group that stands in has met.
bool stands_in(const Group& group) noexcept;

/// Returns the meetings of a group that stand_in has made, or of its subgroup. Null for others.
std::shared_ptr<Meetings> meetings_of(const Group& group) noexcept;

/// Returns true if a collective of the group or of a subgroup has failed since the ranks met: data may be missing.
bool is_broken(const Group& group) noexcept;

/// Connects the ranks anew at a store whose keys no meeting has used, and then the subgroups in the order of their
/// making. Work that has not been waited for ends with an error. Options stay; `timeout` is for this meeting.
/// Collective: yes. Blocks: until all ranks have come. Throws: CommError, also for another rank's words; UsageError for
/// a store that was adopted.
void rejoin(const Group& group, const Store& store, std::chrono::milliseconds timeout);

}  // namespace hasten::comm
