// The search of the c10d backend; see host_finder.h.
#include "launch/rendezvous/host_finder.h"

#include <algorithm>
#include <cerrno>
#include <cstring>

#include "hasten/core/text.h"

namespace hasten::launcher {
namespace {

constexpr Seconds kAttempt = std::chrono::seconds(2);
constexpr Seconds kPause = std::chrono::milliseconds(200);

}  // namespace

void EndpointFinder::begin(Search search, TimePoint now) {
  search_ = std::move(search);
  candidates_.clear();
  searching_ = true;
  attempting_ = false;
  next_ = now;
}

void EndpointFinder::add_sources(std::vector<pollfd>& sources) const {
  for (const Candidate& candidate : candidates_) candidate.channel->add_source(sources);
}

std::optional<TimePoint> EndpointFinder::deadline() const {
  return searching_ ? std::optional(next_) : std::nullopt;
}

std::optional<Found> EndpointFinder::pump(const std::vector<int>& ready, TimePoint now) {
  if (!searching_) return std::nullopt;
  std::optional<Found> found;
  if (!attempting_ && now >= next_) found = start_attempt(now);
  for (Candidate& candidate : candidates_) {
    const bool is_ready = std::binary_search(ready.begin(), ready.end(), candidate.channel->handle());
    if (!found && open(candidate) && is_ready) found = read(candidate);
  }
  const bool all_known = std::none_of(candidates_.begin(), candidates_.end(), [this](auto& c) { return open(c); });
  if (!found && attempting_ && (all_known || now >= next_)) found = conclude(now);
  if (found) {
    searching_ = false;
    candidates_.clear();
  }
  return found;
}

std::optional<Found> EndpointFinder::start_attempt(TimePoint now) {
  if (search_.successors.empty()) {
    if (Socket listener = listen_at(endpoint_).first; listener.handle() >= 0) {
      Found here{.here = true};
      here.host = local_end(listener);
      here.listener = std::move(listener);
      return here;
    }
  }
  candidates_.clear();
  attempting_ = true;
  next_ = later(now, kAttempt);
  ask({.where = endpoint_});
  if (search_.hint) ask({.where = *search_.hint});
  for (const NodeInfo& node : search_.successors) {
    if (node.id != search_.self_id) ask({.where = {node.address, node.port}, .id = node.id});
  }
  return std::nullopt;
}

void EndpointFinder::ask(Candidate candidate) {
  candidate.channel = std::make_unique<Channel>(connect_to(candidate.where), Channel::Side::kClient, run_key_);
  candidate.channel->send(to_wire(Ask{}));
  candidates_.push_back(std::move(candidate));
}

std::optional<Found> EndpointFinder::read(Candidate& candidate) {
  for (const std::string& text : candidate.channel->pump()) {
    const auto message = from_wire(text);
    const auto* answer = message ? std::get_if<Answer>(&*message) : nullptr;
    if (answer == nullptr) continue;
    candidate.answer = *answer;
    if (answer->kind != Answer::Kind::kHost) continue;
    Found found{.channel = std::move(candidate.channel), .host = candidate.where, .generation = answer->generation};
    return found;
  }
  if (candidate.channel->refused() && search_.successors.empty()) {
    return Found{.hopeless = text("the host at ", shown(candidate.where), ": ", candidate.channel->why_closed())};
  }
  return std::nullopt;
}

// All have answered, or will not.
std::optional<Found> EndpointFinder::conclude(TimePoint now) {
  attempting_ = false;
  next_ = later(now, kPause);
  search_.hint.reset();
  for (const Candidate& candidate : candidates_) {
    if (candidate.answer && candidate.answer->kind == Answer::Kind::kElsewhere) search_.hint = candidate.answer->host;
  }
  std::optional<Found> found;
  if (!search_.hint && may_be_host()) {
    found = Found{.here = true};
    for (const Candidate& candidate : candidates_) {
      if (!candidate.answer && !candidate.id.empty()) found->unreachable.insert(candidate.id);
    }
  }
  candidates_.clear();
  return found;
}

// Returns true if no successor before this node is left.
bool EndpointFinder::may_be_host() const {
  for (const NodeInfo& node : search_.successors) {
    if (node.id == search_.self_id) return true;
    const bool lives = std::any_of(candidates_.begin(), candidates_.end(), [&](const Candidate& candidate) {
      return candidate.id == node.id && candidate.answer;
    });
    if (lives) return false;
  }
  return false;
}

}  // namespace hasten::launcher
