// ReferenceHolders: which workers hold a reference to a value, as a pure state machine at the value's owner.
//
// Reference listing after Birrell and others, Network Objects (1993), with grants instead of acknowledgements. A worker
// that passes a reference on notifies the owner (grant) before it sends it. A holder that lets go returns its grant
// (drop). Grants and drops come on different connections, in any order between two workers, in order from one.
// docs/rpc.md explains why the value then never ends while it is held.
#pragma once

#include <compare>
#include <cstddef>
#include <cstdint>
#include <map>
#include <set>

namespace hasten::rpc {

/// A permission to hold: its giver, and a number that the giver uses once.
struct Grant {
  uint32_t giver = 0;
  uint64_t number = 0;
  auto operator<=>(const Grant&) const = default;
};

class ReferenceHolders {
 public:
  /// `grant.giver` has passed the reference to `holder`. A grant that comes again counts once.
  void grant(const Grant& grant, int holder);
  /// The holder reports by itself that it has the grant, because its giver was lost.
  void confirm(const Grant& grant, int holder);
  /// The grant's holder has let go; the grant itself may come later.
  void drop(const Grant& grant);
  /// `worker` was lost: nothing more comes from it. Its holds no longer count, and no grant of it is awaited.
  void lose(int worker);

  /// There is no holder of the reference, and no grant is known to be under way.
  bool empty() const { return held_.empty() && dropped_.empty(); }
  size_t num_held() const { return held_.size(); }

 private:
  std::map<Grant, int> held_;  // granted, not dropped: its holder
  std::set<Grant> dropped_;    // dropped before the grant came
  std::set<Grant> confirmed_;  // reported by the holder, whose giver's message may yet be read
};

}  // namespace hasten::rpc
