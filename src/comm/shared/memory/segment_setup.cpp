// See segment_setup.h.
#include "comm/shared/memory/segment_setup.h"

#include <unistd.h>

#include <array>
#include <climits>
#include <fstream>
#include <optional>

#include "comm/store/store_all_gather.h"
#include "hasten/core/descriptor_passing.h"
#include "hasten/core/error.h"

namespace hasten::comm::shared {
namespace {

using Clock = std::chrono::steady_clock;

}  // namespace

std::string this_host() {
  std::string boot_id;
  std::ifstream("/proc/sys/kernel/random/boot_id") >> boot_id;
  std::array<char, PATH_MAX> network{};
  const auto size = readlink("/proc/self/ns/net", network.data(), network.size() - 1);
  return boot_id.empty() || size <= 0 ? "" : boot_id + '/' + network.data();
}

std::shared_ptr<Segment> share_segment(const Store& store, int rank, const Layout& layout,
                                       std::chrono::milliseconds timeout) {
  const auto deadline = Clock::now() + timeout;
  const auto refused = [&] { return store.get("refused"); };
  std::shared_ptr<Segment> segment;
  try {
    if (rank == 0) {
      segment = Segment::create(layout);
      DescriptorOffer offer;
      store.set("ticket", offer.ticket());
      const auto left = std::chrono::duration_cast<std::chrono::milliseconds>(deadline - Clock::now());
      offer.serve(segment->descriptor(), layout.world_size - 1, left, [&] { return refused().has_value(); });
    } else {
      std::optional<std::string> answer;
      const bool published = poll_until(deadline, [&] { return (answer = store.get("ticket")) || refused(); });
      if (!published) throw std::runtime_error("the first rank did not make the shared memory in time");
      if (answer) segment = Segment::attach(layout, fetch_descriptor(*answer));
    }
    if (segment && !refused()) {
      segment->take_place(rank);
      store.add("attached", 1);
    }
  } catch (const std::exception& error) {
    store.set_once("refused", text("rank ", rank, ": ", error.what()));
  }
  std::optional<std::string> reason;
  const bool ended = poll_until(
      deadline, [&] { return store.add("attached", 0) == layout.world_size || (reason = refused()).has_value(); });
  if (reason || !ended) throw NotShared(reason.value_or("not every rank has attached in time"));
  return segment;
}

}  // namespace hasten::comm::shared
