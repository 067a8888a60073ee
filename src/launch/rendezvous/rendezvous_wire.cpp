// JSON of each message; see rendezvous_wire.h.
#include "launch/rendezvous/rendezvous_wire.h"

#include <nlohmann/json.hpp>

#include "launch/rendezvous/channel.h"

namespace hasten::launcher {
namespace {

using nlohmann::json;

// A worker's words may be of any length, a frame is not.
constexpr size_t kMaxWordsBytes = Channel::kMaxTextBytes / 4;

// JSON that need not be valid UTF-8: the words of a failing worker.
std::string dumped(const json& value) {
  return value.dump(-1, ' ', false, json::error_handler_t::replace);
}

// As much of the words as fits into kMaxWordsBytes of JSON, in which a byte may take six.
std::string fitting(const std::string& words) {
  std::string part = words;
  while (dumped(part).size() > kMaxWordsBytes) part.resize(part.size() / 2);
  return part.size() == words.size() ? words : part + "…";
}

json json_of(const NodeInfo& node) {
  return {{"id", node.id},
          {"name", node.name},
          {"address", node.address},
          {"port", node.port},
          {"num_workers", node.num_workers}};
}
NodeInfo node_info_of(const json& j) {
  return {.id = j.at("id"),
          .name = j.at("name"),
          .address = j.at("address"),
          .port = j.at("port"),
          .num_workers = j.at("num_workers")};
}

json json_of(const Assignment& a) {
  json successors = json::array();
  for (const NodeInfo& node : a.successors) successors.push_back(json_of(node));
  return {{"round", a.round},
          {"restart_count", a.restart_count},
          {"node_rank", a.node_rank},
          {"num_nodes", a.num_nodes},
          {"first_rank", a.first_rank},
          {"world_size", a.world_size},
          {"master_addr", a.master_addr},
          {"master_port", a.master_port},
          {"successors", successors}};
}
Assignment assignment_of(const json& j) {
  Assignment a{.round = j.at("round"),
               .restart_count = j.at("restart_count"),
               .node_rank = j.at("node_rank"),
               .num_nodes = j.at("num_nodes"),
               .first_rank = j.at("first_rank"),
               .world_size = j.at("world_size"),
               .master_addr = j.at("master_addr"),
               .master_port = j.at("master_port")};
  for (const json& node : j.at("successors")) a.successors.push_back(node_info_of(node));
  return a;
}

json json_of(const Ask&) {
  return {{"type", "ask"}};
}
json json_of(const Answer& m) {
  return {{"type", "answer"},
          {"kind", static_cast<int>(m.kind)},
          {"generation", m.generation},
          {"address", m.host.host},
          {"port", m.host.port}};
}
json json_of(const Claim& m) {
  return {{"type", "claim"}, {"generation", m.generation}, {"address", m.host.host}, {"port", m.host.port}};
}
json json_of(const NodeMessage& m) {
  json j = {{"type", "node"}, {"kind", static_cast<int>(m.kind)}, {"round", m.round}};
  if (m.kind == NodeMessage::Kind::kHeartbeat) return j;
  j.update({{"value", m.value}, {"text", fitting(m.text)}, {"busy", m.busy}, {"restarts", m.restarts}});
  if (m.kind == NodeMessage::Kind::kJoin) j["node"] = json_of(m.node);
  return j;
}
json json_of(const Order& m) {
  json j = {{"type", "order"}, {"kind", static_cast<int>(m.kind)}, {"round", m.round}};
  if (m.kind == Order::Kind::kHeartbeat) return j;
  j.update({{"value", m.value}, {"text", fitting(m.text)}, {"report", fitting(m.report)}});
  if (m.kind == Order::Kind::kStart) j["assignment"] = json_of(m.assignment);
  return j;
}

// The number of an enumerator, of which `last` is the last.
template <class Kind>
Kind kind_of(const json& j, Kind last) {
  const int number = j.at("kind");
  if (number < 0 || number > static_cast<int>(last)) throw std::out_of_range("kind");
  return static_cast<Kind>(number);
}

WireMessage message_of(const json& j) {
  const std::string type = j.at("type");
  if (type == "ask") return Ask{};
  if (type == "answer")
    return Answer{kind_of(j, Answer::Kind::kVacant), j.at("generation"), {j.at("address"), j.at("port")}};
  if (type == "claim") return Claim{j.at("generation"), {j.at("address"), j.at("port")}};
  if (type == "node") {
    NodeMessage m{.kind = kind_of(j, NodeMessage::Kind::kLeave), .round = j.at("round")};
    if (m.kind == NodeMessage::Kind::kHeartbeat) return m;
    m.value = j.at("value");
    m.text = j.at("text");
    m.busy = j.at("busy");
    m.restarts = j.at("restarts");
    if (m.kind == NodeMessage::Kind::kJoin) m.node = node_info_of(j.at("node"));
    return m;
  }
  if (type != "order") throw std::out_of_range("type");
  Order m{.kind = kind_of(j, Order::Kind::kClose), .round = j.at("round")};
  if (m.kind == Order::Kind::kHeartbeat) return m;
  m.value = j.at("value");
  m.text = j.at("text");
  m.report = j.at("report");
  if (m.kind == Order::Kind::kStart) m.assignment = assignment_of(j.at("assignment"));
  return m;
}

}  // namespace

std::string to_wire(const WireMessage& message) {
  return std::visit([](const auto& m) { return dumped(json_of(m)); }, message);
}

std::optional<WireMessage> from_wire(const std::string& text) {
  try {
    return message_of(json::parse(text));
  } catch (const std::exception&) {
    return std::nullopt;
  }
}

}  // namespace hasten::launcher
