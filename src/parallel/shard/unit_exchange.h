// UnitExchange: the parts of units that hosts keep, and how a host takes a unit's other parts from the others.
//
// Each host keeps the stripes that its ranks own. A rank that needs a whole unit copies its host's stripes. It requests
// the others from one rank of every other host, by messages that a thread there answers. So nothing is collective:
// ranks may use units in different orders, and an idle rank serves all the same. Owners write stripes in step() alone,
// when no rank is asking.
#pragma once

#include <atomic>
#include <chrono>
#include <condition_variable>
#include <cstdint>
#include <memory>
#include <mutex>
#include <string>
#include <thread>
#include <vector>

#include "hasten/comm/group/group.h"
#include "hasten/comm/messages/messages.h"
#include "hasten/comm/shared_region.h"

namespace hasten::parallel::shard {

/// Where one unit begins in the whole region, where this host's stripes of it begin, and the bytes of one owner's
/// stripe.
struct UnitStripes {
  int64_t whole_begin = 0;
  int64_t rest_begin = 0;
  int64_t stripe_bytes = 0;
};

class UnitExchange : private comm::MessageSink {
 public:
  /// `whole` has the units, `rest` this host's stripes. Owner number local * hosts + host has the stripe of that
  /// number.
  /// Collective: yes. Blocks: until all ranks have come. Throws: CommError.
  UnitExchange(const comm::Group& group, comm::SharedRegion whole, comm::SharedRegion rest,
               std::vector<UnitStripes> units);
  ~UnitExchange() override;
  UnitExchange(const UnitExchange&) = delete;
  UnitExchange& operator=(const UnitExchange&) = delete;

  /// Puts the unit's stripes together in the whole region. A single call runs at a time.
  /// Blocks: until they are there. Throws: CommError naming a rank that is gone or does not answer.
  void fill(size_t unit);
  /// Bytes that this rank has taken from other hosts.
  int64_t pulled_bytes() const noexcept { return pulled_bytes_.load(); }

 private:
  class Request;
  class Answer;
  std::unique_ptr<comm::IncomingMessage> begin(int from, std::string_view head, int64_t body_bytes) override;
  void gone(int rank, bool left, const std::string& reason) override;
  void timer() override {}
  void answer(int to, size_t unit);
  void take(int from);
  int64_t num_hosts() const { return static_cast<int64_t>(whole_.hosts().size()); }
  int64_t num_local() const { return static_cast<int64_t>(whole_.local_ranks().size()); }

  comm::Group group_;
  comm::SharedRegion whole_, rest_;
  std::vector<UnitStripes> units_;
  std::mutex mutex_;
  std::condition_variable changed_;
  /// Ranks that have not answered the present fill; and why others are gone.
  std::vector<int> awaited_;
  std::vector<std::string> gone_;
  size_t filling_ = 0;
  std::atomic<int64_t> pulled_bytes_{0};
  std::atomic<bool> ending_{false};
  std::unique_ptr<comm::Messages> messages_;
  std::thread thread_;
};

}  // namespace hasten::parallel::shard
