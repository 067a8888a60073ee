// Objects as bytes in uint8 tensors; see objects.h. A message is one status byte (0: an object in CBOR follows, 1: the
// reason why there is none follows) and the rest.
#include "hasten/comm/nested/objects.h"

#include <torch/serialize.h>

#include <algorithm>
#include <nlohmann/json.hpp>

#include "comm/group/origin.h"
#include "hasten/comm/group/rejoin.h"
#include "hasten/core/error.h"

namespace hasten::comm::detail {
namespace {

constexpr uint8_t kObject = 0;
constexpr uint8_t kWords = 1;

constexpr const char* kNoWords = "an exception without words";

at::Tensor message_of(const Parcel& parcel) {
  const bool failed = !parcel.error.empty();
  const auto* data = failed ? parcel.error.data() : reinterpret_cast<const char*>(parcel.bytes.data());
  const size_t size = failed ? parcel.error.size() : parcel.bytes.size();
  const at::Tensor message = torch::empty({static_cast<int64_t>(1 + size)}, torch::kUInt8);
  auto* out = message.mutable_data_ptr<uint8_t>();
  *out = failed ? kWords : kObject;
  std::copy_n(data, size, out + 1);
  return message;
}

Bytes bytes_of(const at::Tensor& message) {
  const auto* data = message.const_data_ptr<uint8_t>();
  return Bytes(data, data + message.numel());
}

void check_rank(const Group& group, const char* operation, int rank) {
  if (rank >= 0 && rank < group.world_size()) return;
  throw UsageError(origin_of(group), operation, " with rank ", rank, ": the group '", group.options().name, "' has ",
                   group.world_size(), " rank(s). Give a rank from 0 to ", group.world_size() - 1, ".");
}

// Where ranks have not met yet, the object of another one is nowhere. This rank's own would be another value.
void check_has_met(const Group& group, const char* operation, int from) {
  if (group.rank() == from || !stands_in(group)) return;
  throw UsageError(origin_of(group), operation, " from rank ", from,
                   " before the ranks have met: under hasten launch --survive they do in accelerator.survive. Compute "
                   "the object on every rank, or exchange it inside.");
}

using Json = nlohmann::ordered_json;

Json to_tree(const core::Value& value) {
  switch (value.kind()) {
    case core::Value::Kind::kNull:
      return nullptr;
    case core::Value::Kind::kBool:
      return value.as_bool();
    case core::Value::Kind::kInt:
      return value.as_int();
    case core::Value::Kind::kDouble:
      return value.as_double();
    case core::Value::Kind::kString:
      return value.as_string();
    case core::Value::Kind::kList: {
      Json list = Json::array();
      for (const core::Value& one : value.as_list()) list.push_back(to_tree(one));
      return list;
    }
    case core::Value::Kind::kMap: {
      Json map = Json::object();
      for (const auto& [key, one] : value.as_map()) map[key] = to_tree(one);
      return map;
    }
  }
  return nullptr;
}

core::Value from_tree(const Json& tree) {
  switch (tree.type()) {
    case Json::value_t::boolean:
      return tree.get<bool>();
    case Json::value_t::number_integer:
      return tree.get<int64_t>();
    case Json::value_t::number_unsigned:
      return static_cast<int64_t>(tree.get<uint64_t>());
    case Json::value_t::number_float:
      return tree.get<double>();
    case Json::value_t::string:
      return tree.get_ref<const std::string&>();
    case Json::value_t::array: {
      core::Value::List list;
      list.reserve(tree.size());
      for (const Json& one : tree) list.push_back(from_tree(one));
      return list;
    }
    case Json::value_t::object: {
      core::Value::Map map;
      map.reserve(tree.size());
      for (const auto& [key, one] : tree.items()) map.emplace_back(key, from_tree(one));
      return map;
    }
    default:
      return nullptr;
  }
}

}  // namespace

Bytes to_cbor(const core::Value& value) {
  return Json::to_cbor(to_tree(value));
}

core::Value from_cbor(std::span<const uint8_t> bytes) {
  return from_tree(Json::from_cbor(bytes.begin(), bytes.end()));
}

Parcel pack(const std::function<Bytes()>& encode) noexcept {
  try {
    return {encode(), ""};
  } catch (const std::exception& error) {
    return {{}, *error.what() ? error.what() : kNoWords};
  } catch (...) {
    return {{}, kNoWords};
  }
}

void refuse(const Reading& reading, const std::string& reason) {
  throw CommError(origin_of(reading.group), reading.operation, reading.operation, ": the object of rank ", reading.from,
                  " cannot be read: ", reason, ". Use one type on every rank.");
}

std::span<const uint8_t> unpack(const Bytes& message, const Reading& reading) {
  if (message.empty()) refuse(reading, "its message is empty");
  if (message.front() == kWords) {
    throw CommError(origin_of(reading.group), reading.operation, reading.operation, ": rank ", reading.from,
                    " sent no object: ", std::string(message.begin() + 1, message.end()));
  }
  return std::span(message).subspan(1);
}

std::vector<Bytes> gather_bytes(const Group& group, const Parcel& mine, const Group::Site& site) {
  std::vector<Bytes> messages;
  for (const at::Tensor& message : group.all_gather(message_of(mine), site)) messages.push_back(bytes_of(message));
  return messages;
}

Bytes broadcast_bytes(const Group& group, const Parcel& mine, int from, const Group::Site& site) {
  check_rank(group, "broadcast_object", from);
  check_has_met(group, "broadcast_object", from);
  at::Tensor message = group.rank() == from ? message_of(mine) : at::Tensor();
  at::Tensor length = torch::tensor({message.defined() ? message.numel() : int64_t{0}}, torch::kInt64);
  group.broadcast_(length, from, site);
  if (!message.defined()) message = torch::empty({length.item<int64_t>()}, torch::kUInt8);
  group.broadcast_(message, from, site);
  return bytes_of(message);
}

Bytes scatter_bytes(const Group& group, const std::vector<Parcel>& parts, int from, const Group::Site& site) {
  check_rank(group, "scatter_object", from);
  check_has_met(group, "scatter_object", from);
  std::vector<at::Tensor> messages;
  if (group.rank() == from) {
    const auto world_size = static_cast<size_t>(group.world_size());
    const std::string wrong = text("it has ", parts.size(), " object(s) for ", world_size,
                                   " rank(s); scatter_object needs one for each rank.");
    for (size_t rank = 0; rank < world_size; ++rank) {
      messages.push_back(message_of(parts.size() == world_size ? parts[rank] : Parcel{{}, wrong}));
    }
  }
  return bytes_of(group.scatter(messages, from, site));
}

void send_bytes(const Group& group, const Parcel& mine, int to, int tag, const Group::Site& site) {
  check_rank(group, "send_object", to);
  const at::Tensor message = message_of(mine);
  group.send(torch::tensor({message.numel()}, torch::kInt64), to, tag, site);
  group.send(message, to, tag, site);
}

Bytes receive_bytes(const Group& group, int from, int tag, const Group::Site& site) {
  check_rank(group, "receive_object", from);
  const at::Tensor length = torch::empty({1}, torch::kInt64);
  group.receive_(length, from, tag, site);
  const at::Tensor message = torch::empty({length.item<int64_t>()}, torch::kUInt8);
  group.receive_(message, from, tag, site);
  return bytes_of(message);
}

}  // namespace hasten::comm::detail
