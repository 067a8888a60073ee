// See rank_directory.h.
#include "comm/messages/rank_directory.h"

#include <chrono>
#include <thread>

#include "hasten/core/error.h"

namespace hasten::comm {
namespace {

constexpr std::chrono::seconds kAddressPatience{10};
constexpr const char* kLeft = "left";

std::string address_key(int rank) {
  return text("address/", rank);
}

}  // namespace

RankDirectory::RankDirectory(const Store& store)
    : store_(store.scoped("messages")), rank_(static_cast<int>(store_.add("next", 1) - 1)) {}

Bytes RankDirectory::agree_on_key(const Bytes& run_key, bool& is_run_key) const {
  store_.set_once("key", run_key.empty() ? hex(random_bytes()) : "run");
  const Bytes key = store_.get("key").value_or("");
  is_run_key = key == "run";
  if (!is_run_key) return key;
  if (run_key.empty()) {
    throw UsageError({"messages", rank_},
                     "the ranks that came before know the run's key, and this process does not. Start it "
                     "with HASTEN_RUN_KEY of the run that it joins.");
  }
  return run_key;
}

void RankDirectory::publish(const std::string& address) const {
  store_.set(address_key(rank_), address);
}

std::optional<std::string> RankDirectory::find(int rank) const {
  const auto until = std::chrono::steady_clock::now() + kAddressPatience;
  for (;;) {
    auto found = store_.get(address_key(rank));
    if (found && *found == kLeft) return {};
    if (found) return found;
    if (std::chrono::steady_clock::now() > until) return {};
    std::this_thread::sleep_for(std::chrono::milliseconds(2));
  }
}

void RankDirectory::mark_left(int rank) const noexcept {
  try {
    store_.set(address_key(rank), kLeft);
  } catch (...) {
    // The store is gone, and with it all that could read the mark.
  }
}

}  // namespace hasten::comm
