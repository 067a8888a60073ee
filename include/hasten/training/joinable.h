// Joinable: what takes part in a loop of uneven length (torch.distributed.algorithms.join).
//
// A component notifies the scope before each collective of a rank with data. On a rank without data the scope calls
// `shadow` of the component with the same name. After the loop `finish` passes on what a rank that went on to the end
// has trained. The loop itself is parallel/join; components include this file alone.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

namespace hasten::training {

/// A call that a rank with data is about to make. Each component has a type of its own for its calls, which it encodes
/// here.
struct JoinCall {
  /// Joinable::name of the component that carries it out; empty: this rank has no data.
  std::string component = {};
  /// The operation, as the component calls it; errors show it.
  std::string operation = {};
  std::vector<int64_t> integers = {};
  std::vector<double> reals = {};
  bool operator==(const JoinCall&) const = default;
};

/// "models.backward [1, 0]".
std::string describe(const JoinCall& call);

/// The ranks that still have data, and what they are about to do.
struct ActiveRanks {
  std::vector<int> ranks = {};
  /// The call as it was notified. If the ranks' calls differ and are compatible, the result of Joinable::merge.
  JoinCall call = {};
  int first() const { return ranks.front(); }
  bool all_of(int world_size) const noexcept { return static_cast<int>(ranks.size()) == world_size; }
};

class Joinable {
 public:
  virtual ~Joinable() = default;
  /// The same on all ranks, and another for each component of a loop.
  virtual std::string name() const = 0;
  /// Takes part, without data, in a call of the ranks with data.
  /// Collective: yes. Blocks: yes. Throws: as the call.
  virtual void shadow(const JoinCall& call, const ActiveRanks& active) = 0;
  /// After a loop that not all ranks went through to its end: all ranks take over what `root`, which did, has trained.
  /// Collective: yes. Blocks: yes. Throws: CommError.
  virtual void finish(int root) { (void)root; }
  /// Returns the common operation of two ranks with data whose calls differ; nothing if that is a mistake.
  virtual std::optional<JoinCall> merge(const JoinCall& one, const JoinCall& other) const {
    (void)one, (void)other;
    return std::nullopt;
  }
};

/// An open loop of uneven length, as its components see it.
class JoinScope {
 public:
  virtual ~JoinScope() = default;
  /// Call it before a collective of a rank with data. Returns the ranks that take part with data.
  /// Collective: yes. Blocks: yes. Throws: UsageError on every rank if two ranks with data are about to do different
  /// things; CommError.
  virtual ActiveRanks notify(const JoinCall& call) = 0;
  /// The same for a collective that all ranks must take part in with data.
  /// Collective: yes. Blocks: yes. Throws: as notify; UsageError on all ranks if some have run out.
  virtual void require_all(const std::string& what) = 0;
  /// For a call that ranks without data could not take part in, whether or not all still have some.
  /// Collective: yes. Blocks: yes. Throws: UsageError on every rank, naming the call.
  [[noreturn]] virtual void reject(const std::string& what) = 0;
};

}  // namespace hasten::training
