// Hosts: what the lookers of several hosts tell each other, over a store of keys and values.
//
// Each host's looker sets one key with its ranks. Times travel as durations, so clocks need not agree. The lowest host
// whose key changes compares all ranks; the others answer its questions about theirs. watcher.h has the threads.
#pragma once

#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <optional>
#include <string>

#include "hasten/flight/snapshot.h"

namespace hasten::flight {

/// Keys and values that the hosts of a run share. Calls may throw; then the host goes on alone.
class HostLink {
 public:
  virtual ~HostLink() = default;
  virtual void set(const std::string& key, const std::string& value) = 0;
  /// Returns at once; nothing if there is no such key.
  virtual std::optional<std::string> get(const std::string& key) = 0;
};

/// A host's ranks as its looker has told them.
struct HostNews {
  int64_t beat = 0;      ///< counts what the host has told
  int64_t answered = 0;  ///< the last question that it has answered
  Snapshot snapshot = {};
};

/// JSON of what diagnose() and the stragglers need: of each rank its groups, waiting calls and the last few others.
std::string encode_news(const HostNews& news);
/// Throws: DataError or UsageError for other text.
HostNews decode_news(const std::string& text);

/// One host's end of the link.
class Hosts {
 public:
  Hosts(std::unique_ptr<HostLink> link, int node, int world_size)
      : link_(std::move(link)), node_(node), world_size_(world_size) {}

  /// Tells the others about this host's ranks. `answered`: the question that it answers, if any.
  void tell(const Snapshot& local, int64_t answered = 0);
  /// Returns true if no lower host tells anything, `now_s` being a clock of this process.
  bool compares(double now_s);
  /// Returns this host's ranks with those of all others, as they were last told, `now_s` as before.
  Snapshot merge(const Snapshot& local, double now_s);

  /// Asks the other hosts about their ranks. Returns the number of the question.
  int64_t ask();
  /// Returns true if all hosts that tell something have answered it.
  bool all_answered(int64_t question, double now_s);
  /// Returns a question that this host has not answered yet.
  std::optional<int64_t> question();

  /// Has the host of this rank end it.
  void ask_to_kill(int rank);
  /// Returns a rank that is to be ended, once.
  std::optional<int> rank_to_kill();

 private:
  struct Other {
    HostNews news = {};
    double changed_s = 0;
  };
  bool look_at(int node, double now_s);
  void look_at_all(double now_s);

  const std::unique_ptr<HostLink> link_;
  const int node_;
  const int world_size_;
  int64_t beat_ = 0, answered_ = 0, requested_ = 0;
  std::string killed_ = {};
  std::map<int, Other> others_ = {};
};

}  // namespace hasten::flight
