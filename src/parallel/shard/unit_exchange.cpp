// See unit_exchange.h.
#include "parallel/shard/unit_exchange.h"

#include <algorithm>
#include <cstring>
#include <span>
#include <utility>

#include "hasten/core/error.h"

namespace hasten::parallel::shard {
namespace {

constexpr char kAsk = 'a', kGive = 'g';

std::string head_of(char kind, uint64_t unit) {
  std::string head(1, kind);
  head.append(reinterpret_cast<const char*>(&unit), sizeof(unit));
  return head;
}

}  // namespace

class UnitExchange::Request : public comm::IncomingMessage {
 public:
  Request(UnitExchange& exchange, int from, size_t unit) : exchange_(exchange), from_(from), unit_(unit) {}
  void complete() override { exchange_.answer(from_, unit_); }

 private:
  UnitExchange& exchange_;
  int from_;
  size_t unit_;
};

class UnitExchange::Answer : public comm::IncomingMessage {
 public:
  Answer(UnitExchange& exchange, int from) : exchange_(exchange), from_(from) {}
  void complete() override { exchange_.take(from_); }

 private:
  UnitExchange& exchange_;
  int from_;
};

UnitExchange::UnitExchange(const comm::Group& group, comm::SharedRegion whole, comm::SharedRegion rest,
                           std::vector<UnitStripes> units)
    : group_(group),
      whole_(std::move(whole)),
      rest_(std::move(rest)),
      units_(std::move(units)),
      gone_(static_cast<size_t>(group.world_size())),
      messages_(std::make_unique<comm::Messages>(group_, static_cast<comm::MessageSink&>(*this),
                                                 comm::MessagesOptions{.about = "units"})) {
  thread_ = std::thread([this] {
    while (!ending_.load()) messages_->serve(std::chrono::milliseconds(-1));
  });
}

UnitExchange::~UnitExchange() {
  ending_.store(true);
  messages_->wake();
  thread_.join();
  messages_->close(true);
}

std::unique_ptr<comm::IncomingMessage> UnitExchange::begin(int from, std::string_view head, int64_t body_bytes) {
  uint64_t unit = units_.size();
  if (head.size() == 1 + sizeof(unit)) std::memcpy(&unit, head.data() + 1, sizeof(unit));
  if (unit >= units_.size())
    throw CommError(Origin{"shard", group_.rank(), group_.world_size()}, "unit", "a message of rank ", from,
                    " is none of a unit");
  if (head[0] == kAsk) return std::make_unique<Request>(*this, from, unit);
  const auto& stripes = units_[unit];
  {
    const std::lock_guard lock(mutex_);
    const bool requested = unit == filling_ && std::find(awaited_.begin(), awaited_.end(), from) != awaited_.end();
    if (!requested || body_bytes != num_local() * stripes.stripe_bytes) {
      throw CommError(Origin{"shard", group_.rank(), group_.world_size()}, "unit", "rank ", from, " sent ", body_bytes,
                      " bytes that nothing had asked for");
    }
  }
  auto answer = std::make_unique<Answer>(*this, from);
  const auto& hosts = whole_.hosts();
  const auto host = std::find_if(hosts.begin(), hosts.end(), [&](const auto& ranks) {
    return std::find(ranks.begin(), ranks.end(), from) != ranks.end();
  });
  const int64_t of = host - hosts.begin();
  for (int64_t local = 0; local < num_local(); ++local) {
    const int64_t owner = local * num_hosts() + of;
    answer->body.emplace_back(whole_.writable() + stripes.whole_begin + owner * stripes.stripe_bytes,
                              static_cast<size_t>(stripes.stripe_bytes));
  }
  return answer;
}

void UnitExchange::answer(int to, size_t unit) {
  const auto& stripes = units_[unit];
  comm::OutgoingMessage message;
  message.head += head_of(kGive, unit);
  message.body = {{rest_.data() + stripes.rest_begin, static_cast<size_t>(num_local() * stripes.stripe_bytes)}};
  try {
    messages_->send(to, std::move(message));
  } catch (const CommError&) {
    // It is gone, and waits for nothing any more.
  }
}

void UnitExchange::take(int from) {
  const std::lock_guard lock(mutex_);
  std::erase(awaited_, from);
  changed_.notify_all();
}

void UnitExchange::gone(int rank, bool left, const std::string& reason) {
  const std::lock_guard lock(mutex_);
  gone_[static_cast<size_t>(rank)] = left             ? "it has ended or given the model up"
                                     : reason.empty() ? "it was lost"
                                                      : reason;
  changed_.notify_all();
}

void UnitExchange::fill(size_t unit) {
  const Origin origin{"shard", group_.rank(), group_.world_size()};
  const auto& stripes = units_.at(unit);
  std::vector<int> others;
  for (int64_t host = 0; host < num_hosts(); ++host) {
    if (host != whole_.host_index())
      others.push_back(whole_.hosts()[static_cast<size_t>(host)][static_cast<size_t>(whole_.local_index())]);
  }
  {
    const std::lock_guard lock(mutex_);
    filling_ = unit;
    awaited_ = others;
  }
  for (const int rank : others) {
    comm::OutgoingMessage message;
    message.head += head_of(kAsk, unit);
    try {
      messages_->send(rank, std::move(message));
    } catch (const CommError& error) {
      const std::lock_guard lock(mutex_);
      if (gone_[static_cast<size_t>(rank)].empty()) gone_[static_cast<size_t>(rank)] = error.what();
    }
  }
  for (int64_t local = 0; local < num_local(); ++local) {
    const int64_t owner = local * num_hosts() + whole_.host_index();
    whole_.write(stripes.whole_begin + owner * stripes.stripe_bytes,
                 rest_.data() + stripes.rest_begin + local * stripes.stripe_bytes, stripes.stripe_bytes);
  }
  std::unique_lock lock(mutex_);
  const auto is_lost = [&] {
    return std::any_of(awaited_.begin(), awaited_.end(),
                       [&](int rank) { return !gone_[static_cast<size_t>(rank)].empty(); });
  };
  const bool ended = changed_.wait_for(lock, group_.options().timeout, [&] { return awaited_.empty() || is_lost(); });
  if (!awaited_.empty()) {
    const int rank = awaited_.front();
    const std::string why = ended ? gone_[static_cast<size_t>(rank)] : "it does not answer";
    throw CommError(origin, "unit", "rank ", rank, " keeps a part of unit ", unit, " of the parameters, and ", why);
  }
  pulled_bytes_.fetch_add((num_hosts() - 1) * num_local() * stripes.stripe_bytes);
}

}  // namespace hasten::parallel::shard
