// See summary.h.
#include "tracking/sinks/summary.h"

#include <cstring>

#include "tracking/journal/json.h"
#include "tracking/sinks/crc32c.h"
#include "tracking/sinks/proto.h"

namespace hasten::tracking::summary {
namespace {

constexpr int kFloat64 = 3, kBool = 2, kString = 1;  // hparams' DataType

std::string one_value(const ProtoWriter& value) {
  return ProtoWriter().bytes(1, value.str()).str();
}

std::string metadata(std::string_view plugin, std::string_view content = "", int data_class = 0) {
  ProtoWriter data;
  data.bytes(1, plugin);
  if (!content.empty()) data.bytes(2, content);
  ProtoWriter all;
  all.bytes(1, data.str());
  if (data_class != 0) all.varint(4, static_cast<uint64_t>(data_class));
  return all.str();
}

std::string hparams_value(const char* tag, const ProtoWriter& content) {
  return one_value(ProtoWriter().bytes(1, tag).bytes(9, metadata("hparams", content.str())));
}

int hparam_type(const core::Value& value) {
  return value.is_bool() ? kBool : value.is_number() ? kFloat64 : kString;
}

std::string hparam_text(const core::Value& value) {
  if (value.is_string()) return value.as_string();
  std::string json;
  append_json(json, value);
  return json;
}

}  // namespace

std::string scalar(std::string_view tag, float value) {
  return one_value(ProtoWriter().bytes(1, tag).fixed32(2, value));
}

std::string double_scalar(std::string_view tag, double value) {
  ProtoWriter tensor;
  tensor.varint(1, 2).bytes(2, "").packed(6, {value});
  return one_value(ProtoWriter().bytes(1, tag).bytes(8, tensor.str()).bytes(9, metadata("scalars", "", 1)));
}

std::string text(std::string_view tag, std::string_view value) {
  const std::string shape = ProtoWriter().bytes(2, ProtoWriter().varint(1, 1).str()).str();
  ProtoWriter tensor;
  tensor.varint(1, 7).bytes(2, shape).bytes(8, value);
  const std::string name = std::string(tag) + "/text_summary";
  return one_value(ProtoWriter().bytes(1, name).bytes(8, tensor.str()).bytes(9, metadata("text")));
}

std::string image(std::string_view tag, int width, int height, int channels, std::string_view png) {
  ProtoWriter image;
  image.varint(1, static_cast<uint64_t>(height)).varint(2, static_cast<uint64_t>(width));
  image.varint(3, static_cast<uint64_t>(channels)).bytes(4, png);
  return one_value(ProtoWriter().bytes(1, tag).bytes(4, image.str()));
}

std::string histogram(std::string_view tag, const Histogram& histogram) {
  ProtoWriter histo;
  const auto real = [&](int field, double value) {
    if (value != 0) histo.fixed64(field, value);  // as proto3 leaves out zeros
  };
  real(1, histogram.min);
  real(2, histogram.max);
  real(3, histogram.num);
  real(4, histogram.sum);
  real(5, histogram.sum_squares);
  histo.packed(6, histogram.limits).packed(7, histogram.counts);
  return one_value(ProtoWriter().bytes(1, tag).bytes(5, histo.str()));
}

std::string hparams_experiment(const core::Value& config, const std::vector<std::string>& metrics) {
  ProtoWriter experiment;
  for (const auto& [key, value] : flatten(config)) {
    if (value.is_null()) continue;
    experiment.bytes(4, ProtoWriter().bytes(1, key).varint(4, static_cast<uint64_t>(hparam_type(value))).str());
  }
  for (const std::string& tag : metrics) {
    experiment.bytes(5, ProtoWriter().bytes(1, ProtoWriter().bytes(2, tag).str()).str());
  }
  return hparams_value("_hparams_/experiment", ProtoWriter().bytes(2, experiment.str()));
}

std::string hparams_start(const core::Value& config, double time_s) {
  ProtoWriter start;
  for (const auto& [key, value] : flatten(config)) {
    if (value.is_null()) continue;
    ProtoWriter item;
    switch (hparam_type(value)) {
      case kBool:
        item.varint(4, value.as_bool() ? 1 : 0);
        break;
      case kFloat64:
        item.fixed64(2, value.as_double());
        break;
      default:
        item.bytes(3, hparam_text(value));
    }
    start.bytes(1, ProtoWriter().bytes(1, key).bytes(2, item.str()).str());
  }
  start.fixed64(5, time_s);
  return hparams_value("_hparams_/session_start_info", ProtoWriter().bytes(3, start.str()));
}

std::string hparams_end(bool success, double time_s) {
  const ProtoWriter end = ProtoWriter().varint(1, success ? 1 : 2).fixed64(2, time_s);
  return hparams_value("_hparams_/session_end_info", ProtoWriter().bytes(4, end.str()));
}

std::string graph(const std::vector<GraphNode>& nodes) {
  ProtoWriter graph;
  for (const GraphNode& node : nodes) {
    ProtoWriter one;
    one.bytes(1, node.name).bytes(2, node.op);
    for (const std::string& input : node.inputs) one.bytes(3, input);
    graph.bytes(1, one.str());
  }
  return graph.bytes(4, ProtoWriter().varint(1, 22).str()).str();
}

std::string event(double time_s, int64_t step, std::string_view summary) {
  ProtoWriter event;
  event.fixed64(1, time_s);
  if (step != 0) event.varint(2, static_cast<uint64_t>(step));
  return event.bytes(5, summary).str();
}

std::string version_event(double time_s) {
  return ProtoWriter().fixed64(1, time_s).bytes(3, "brain.Event:2").str();
}

std::string graph_event(double time_s, std::string_view graph) {
  return ProtoWriter().fixed64(1, time_s).bytes(4, graph).str();
}

std::string start_event(double time_s, int64_t step) {
  ProtoWriter event;
  event.fixed64(1, time_s);
  if (step != 0) event.varint(2, static_cast<uint64_t>(step));
  return event.bytes(7, ProtoWriter().varint(1, 1).str()).str();
}

void append_scalar_record(std::string& out, double time_s, int64_t step, std::string_view tag, float value) {
  const auto varint_size = [](uint64_t number) {
    uint64_t size = 1;
    while (number >>= 7) ++size;
    return size;
  };
  const uint64_t value_size = 1 + varint_size(tag.size()) + tag.size() + 5;
  const uint64_t summary_size = 1 + varint_size(value_size) + value_size;
  const uint64_t step_size = step == 0 ? 0 : 1 + varint_size(static_cast<uint64_t>(step));
  const uint64_t size = 9 + step_size + 1 + varint_size(summary_size) + summary_size;
  const size_t start = out.size();
  out.resize(start + size + 16);
  char* at = out.data() + start;
  const auto put = [&at](const auto& bytes) {
    std::memcpy(at, &bytes, sizeof bytes);
    at += sizeof bytes;
  };
  const auto put_varint = [&at](uint64_t number) {
    for (; number >= 128; number >>= 7) *at++ = static_cast<char>(number | 128);
    *at++ = static_cast<char>(number);
  };
  put(size);
  put(masked_crc32c({at - 8, 8}));
  const char* const data = at;
  *at++ = 0x09;
  put(time_s);
  if (step != 0) {
    *at++ = 0x10;
    put_varint(static_cast<uint64_t>(step));
  }
  *at++ = 0x2a;
  put_varint(summary_size);
  *at++ = 0x0a;
  put_varint(value_size);
  *at++ = 0x0a;
  put_varint(tag.size());
  std::memcpy(at, tag.data(), tag.size());
  at += tag.size();
  *at++ = 0x15;
  put(value);
  put(masked_crc32c({data, size}));
}

std::string record(std::string_view data) {
  const uint64_t size = data.size();
  std::string bytes(reinterpret_cast<const char*>(&size), sizeof size);
  bytes.reserve(data.size() + 16);
  const auto add_crc = [&](std::string_view of) {
    const uint32_t crc = masked_crc32c(of);
    bytes.append(reinterpret_cast<const char*>(&crc), sizeof crc);
  };
  add_crc(std::string(bytes));
  bytes.append(data);
  add_crc(data);
  return bytes;
}

}  // namespace hasten::tracking::summary
