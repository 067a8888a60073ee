// See hosts.h.
#include "hasten/flight/hosts.h"

#include <algorithm>
#include <charconv>
#include <utility>

#include "hasten/core/text.h"
#include "hasten/core/value.h"

namespace hasten::flight {
namespace {

using core::Value;

constexpr double kFreshHostS = 8;  // of a host whose key changes each 2 s
constexpr size_t kMostCalls = 12;  // of a rank, besides those it waits in

std::string key_of(int node) {
  return text("host/", node);
}

int64_t number_in(const std::optional<std::string>& words) {
  int64_t number = 0;
  if (words) std::from_chars(words->data(), words->data() + words->size(), number);
  return number;
}

Value value_of(const GroupState& group) {
  return Value::list(
      {text(group.key), group.name, group.rank, group.size, static_cast<int64_t>(group.calls), group.timeout_s});
}

Value value_of(const CallState& call) {
  return Value::list({text(call.group), static_cast<int>(call.kind), static_cast<int64_t>(call.number), call.label,
                      call.site, call.purpose, call.purpose_number, static_cast<int>(call.rule), Value(call.sizes),
                      call.dims, call.root, call.peer, call.tag, call.posted_s, call.waits_s.value_or(-1), call.ended});
}

Value value_of(const RankState& rank) {
  Value groups = Value::list(), calls = Value::list(), phases = Value::map();
  for (const GroupState& group : rank.groups) groups.push_back(value_of(group));
  for (size_t i = 0; i < rank.calls.size(); ++i) {
    const bool waits = rank.calls[i].waits_s && !rank.calls[i].ended;
    if (waits || i + kMostCalls >= rank.calls.size()) calls.push_back(value_of(rank.calls[i]));
  }
  for (const auto& [name, time] : rank.phase_times_s) phases[name] = time;
  return Value::map({{"rank", rank.rank},
                     {"local_rank", rank.local_rank},
                     {"local_world_size", rank.local_world_size},
                     {"node_rank", rank.node_rank},
                     {"pid", static_cast<int>(rank.pid)},
                     {"host", rank.host},
                     {"program", rank.program},
                     {"state", static_cast<int>(rank.state)},
                     {"life", static_cast<int>(rank.life)},
                     {"tracer", rank.tracer},
                     {"progress_s", rank.progress_s},
                     {"phase", rank.phase},
                     {"phase_s", rank.phase_s},
                     {"step", rank.step},
                     {"epoch", rank.epoch},
                     {"batch", rank.batch},
                     {"step_times_s", Value(rank.step_times_s)},
                     {"waited_s", rank.waited_s},
                     {"delayed_s", rank.delayed_s},
                     {"read_at_s", rank.read_at_s},
                     {"phases", std::move(phases)},
                     {"groups", std::move(groups)},
                     {"calls", std::move(calls)},
                     {"facts", rank.facts ? Value(write_facts(*rank.facts)) : Value()},
                     {"stack", rank.stack}});
}

uint64_t hash_in(const Value& value) {
  uint64_t number = 0;
  const std::string& words = value.as_string();
  std::from_chars(words.data(), words.data() + words.size(), number);
  return number;
}

int int_in(const Value& value) {
  return static_cast<int>(value.as_int());
}

GroupState group_in(const Value& value) {
  const auto& all = value.as_list();
  if (all.size() != 6) return {};
  return {.key = hash_in(all[0]),
          .name = all[1].as_string(),
          .rank = int_in(all[2]),
          .size = int_in(all[3]),
          .calls = static_cast<uint64_t>(all[4].as_int()),
          .timeout_s = all[5].as_double()};
}

CallState call_in(const Value& value) {
  const auto& all = value.as_list();
  if (all.size() != 16) return {};
  CallState call{.group = hash_in(all[0]),
                 .kind = static_cast<CallKind>(std::clamp(int_in(all[1]), 0, 4)),
                 .number = static_cast<uint64_t>(all[2].as_int()),
                 .label = all[3].as_string(),
                 .site = all[4].as_string(),
                 .purpose = all[5].as_string(),
                 .purpose_number = all[6].as_int(),
                 .rule = static_cast<SizesRule>(std::clamp(int_in(all[7]), 0, 2)),
                 .dims = int_in(all[9]),
                 .root = int_in(all[10]),
                 .peer = int_in(all[11]),
                 .tag = int_in(all[12]),
                 .posted_s = all[13].as_double(),
                 .ended = all[15].as_bool()};
  for (const Value& size : all[8].as_list()) call.sizes.push_back(size.as_int());
  if (all[14].as_double() >= 0) call.waits_s = all[14].as_double();
  return call;
}

RankState rank_in(const Value& value, int world_size) {
  RankState rank{.rank = int_in(value.at("rank")),
                 .world_size = world_size,
                 .local_rank = int_in(value.at("local_rank")),
                 .local_world_size = int_in(value.at("local_world_size")),
                 .node_rank = int_in(value.at("node_rank")),
                 .pid = static_cast<pid_t>(value.at("pid").as_int()),
                 .host = value.at("host").as_string(),
                 .program = value.at("program").as_string(),
                 .state = static_cast<PageState>(std::clamp(int_in(value.at("state")), 0, 3)),
                 .life = static_cast<Life>(std::clamp(int_in(value.at("life")), 0, 3)),
                 .tracer = value.at("tracer").as_string(),
                 .progress_s = value.at("progress_s").as_double(),
                 .phase = value.at("phase").as_string(),
                 .phase_s = value.at("phase_s").as_double(),
                 .step = value.at("step").as_int(),
                 .epoch = value.at("epoch").as_int(),
                 .batch = value.at("batch").as_int(),
                 .waited_s = value.at("waited_s").as_double(),
                 .delayed_s = value.at("delayed_s").as_double(),
                 .read_at_s = value.at("read_at_s").as_double(),
                 .stack = value.at("stack").as_string()};
  for (const Value& time : value.at("step_times_s").as_list()) rank.step_times_s.push_back(time.as_double());
  for (const auto& [name, time] : value.at("phases").as_map()) rank.phase_times_s[name] = time.as_double();
  for (const Value& group : value.at("groups").as_list()) rank.groups.push_back(group_in(group));
  for (const Value& call : value.at("calls").as_list()) rank.calls.push_back(call_in(call));
  if (const Value& facts = value.at("facts"); facts.is_string()) rank.facts = read_facts(facts.as_string());
  return rank;
}

}  // namespace

std::string encode_news(const HostNews& news) {
  Value ranks = Value::list();
  for (const RankState& rank : news.snapshot.ranks) ranks.push_back(value_of(rank));
  return Value::map({{"beat", news.beat},
                     {"answered", news.answered},
                     {"world_size", news.snapshot.world_size},
                     {"ranks", std::move(ranks)}})
      .to_json();
}

HostNews decode_news(const std::string& text) {
  const Value value = Value::parse_json(text, "news of a host");
  HostNews news{.beat = value.at("beat").as_int(), .answered = value.at("answered").as_int()};
  news.snapshot.world_size = int_in(value.at("world_size"));
  for (const Value& rank : value.at("ranks").as_list()) {
    news.snapshot.ranks.push_back(rank_in(rank, news.snapshot.world_size));
  }
  return news;
}

void Hosts::tell(const Snapshot& local, int64_t answered) {
  answered_ = std::max(answered_, answered);
  link_->set(key_of(node_), encode_news({.beat = ++beat_, .answered = answered_, .snapshot = local}));
}

// False if the host has never told anything.
bool Hosts::look_at(int node, double now_s) {
  const auto words = link_->get(key_of(node));
  if (!words) return false;
  HostNews news = decode_news(*words);
  Other& other = others_[node];
  if (news.beat != other.news.beat) other.changed_s = now_s;
  other.news = std::move(news);
  return true;
}

void Hosts::look_at_all(double now_s) {
  int missing = 0;
  size_t known = 0;
  // Hosts are numbered from 0. Behind two that are not there no further ones are looked for.
  for (int node = 0; node < world_size_ && missing < 2 && known < static_cast<size_t>(world_size_); ++node) {
    if (node == node_ || look_at(node, now_s)) {
      missing = 0;
      known += node == node_ ? 0 : others_[node].news.snapshot.ranks.size();
    } else {
      ++missing;
    }
  }
}

bool Hosts::compares(double now_s) {
  for (int node = 0; node < node_; ++node) {
    if (look_at(node, now_s) && now_s - others_[node].changed_s < kFreshHostS) return false;
  }
  return true;
}

Snapshot Hosts::merge(const Snapshot& local, double now_s) {
  look_at_all(now_s);
  Snapshot all = local;
  for (const auto& [_, other] : others_) {
    const double age_s = now_s - other.changed_s;
    for (RankState rank : other.news.snapshot.ranks) {
      if (age_s >= kFreshHostS && rank.life != Life::kEnded) {
        rank.life = Life::kSilent;
        rank.progress_s += age_s;
      }
      all.ranks.push_back(std::move(rank));
    }
  }
  std::sort(all.ranks.begin(), all.ranks.end(), [](const auto& a, const auto& b) { return a.rank < b.rank; });
  return all;
}

int64_t Hosts::ask() {
  requested_ = number_in(link_->get("ask")) + 1;
  link_->set("ask", text(requested_));
  answered_ = requested_;  // of its own ranks it knows
  return requested_;
}

bool Hosts::all_answered(int64_t question, double now_s) {
  look_at_all(now_s);
  return std::all_of(others_.begin(), others_.end(), [&](const auto& entry) {
    return entry.second.news.answered >= question || now_s - entry.second.changed_s >= kFreshHostS;
  });
}

std::optional<int64_t> Hosts::question() {
  const int64_t number = number_in(link_->get("ask"));
  if (number <= answered_) return std::nullopt;
  return number;
}

void Hosts::ask_to_kill(int rank) {
  link_->set("kill", text(rank));
}

std::optional<int> Hosts::rank_to_kill() {
  const auto words = link_->get("kill");
  if (!words || *words == killed_) return std::nullopt;
  killed_ = *words;
  return static_cast<int>(number_in(words));
}

}  // namespace hasten::flight
