// How a launcher finds the host of its run, or finds that it is to be the host itself. Each rendezvous backend has one
// way: c10d here, etcd in etcd_finder.h.
#pragma once

#include <memory>
#include <optional>
#include <set>
#include <string>
#include <vector>

#include "hasten/launch/rendezvous/rendezvous.h"
#include "launch/rendezvous/channel.h"
#include "launch/rendezvous/rendezvous_wire.h"

namespace hasten::launcher {

struct Search {
  std::string self_id = {};
  std::vector<NodeInfo> successors = {};  ///< of the last round, the next host first
  std::optional<Endpoint> hint = {};      ///< the reported address of the host
};

/// The result of a search: one of the three.
struct Found {
  std::unique_ptr<Channel> channel = {};  ///< to the host, which has answered
  bool here = false;                      ///< this launcher is the host; `listener` is for it, if there is one
  std::string hopeless = {};              ///< why there is no use in looking further
  Endpoint host = {};
  int generation = 0;
  Socket listener = Socket();
  std::set<std::string> unreachable = {};  ///< ids of successors that cannot be reached
};

class HostFinder {
 public:
  virtual ~HostFinder() = default;
  virtual void begin(Search search, TimePoint now) = 0;
  virtual void add_sources(std::vector<pollfd>& sources) const = 0;
  /// Goes on with the search; nothing while it lasts.
  virtual std::optional<Found> pump(const std::vector<int>& ready, TimePoint now) = 0;
  virtual std::optional<TimePoint> deadline() const = 0;
  /// Where another host is, if one has taken this one's place without its knowledge.
  virtual std::optional<Endpoint> replaced_by() { return std::nullopt; }
};

/// c10d: the first launcher to listen at the endpoint is the host. Once there was a round, the first of its remaining
/// nodes takes over. It contacts those before it, and all others, to find a host.
class EndpointFinder final : public HostFinder {
 public:
  EndpointFinder(Endpoint endpoint, Bytes run_key) : endpoint_(std::move(endpoint)), run_key_(std::move(run_key)) {}

  void begin(Search search, TimePoint now) override;
  void add_sources(std::vector<pollfd>& sources) const override;
  std::optional<Found> pump(const std::vector<int>& ready, TimePoint now) override;
  std::optional<TimePoint> deadline() const override;

 private:
  struct Candidate {
    Endpoint where;
    std::string id = {};  // of the node there, if it is known
    std::unique_ptr<Channel> channel = {};
    std::optional<Answer> answer = {};
  };

  std::optional<Found> start_attempt(TimePoint now);
  void ask(Candidate candidate);
  std::optional<Found> read(Candidate& candidate);
  std::optional<Found> conclude(TimePoint now);
  bool open(const Candidate& candidate) const { return !candidate.answer && !candidate.channel->closed(); }
  bool may_be_host() const;

  Endpoint endpoint_;
  Bytes run_key_;
  Search search_;
  std::vector<Candidate> candidates_;
  bool searching_ = false;
  bool attempting_ = false;
  TimePoint next_ = {};  // the end of this attempt, or the beginning of the next
};

}  // namespace hasten::launcher
