// See event_reader.h.
#include "tracking/board/event_reader.h"

#include <cerrno>
#include <cstdio>
#include <cstring>
#include <memory>

#include "hasten/core/error.h"
#include "tracking/sinks/crc32c.h"
#include "tracking/sinks/proto.h"

namespace hasten::tracking {
namespace {

constexpr uint64_t kMostEventBytes = 64 << 20;

struct Tensor {
  int dtype = 0;
  double number = 0;
  std::string text = {};
  bool has_number = false;
};

template <class T>
double first_of(std::string_view bytes) {
  T value{};
  std::memcpy(&value, bytes.data(), sizeof value);
  return static_cast<double>(value);
}

Tensor read_tensor(std::string_view message) {
  Tensor tensor;
  std::string_view content;
  ProtoReader reader(message);
  const auto number = [&](double value) {
    if (!tensor.has_number) tensor.number = value;
    tensor.has_number = true;
  };
  while (reader.next()) {
    switch (reader.field()) {
      case 1:
        tensor.dtype = static_cast<int>(reader.varint());
        break;
      case 4:
        content = reader.bytes();
        break;
      case 5:
        if (reader.bytes().size() >= 4) number(first_of<float>(reader.bytes()));
        break;
      case 6:
        if (reader.bytes().size() >= 8) number(first_of<double>(reader.bytes()));
        break;
      case 8:
        if (tensor.text.empty()) tensor.text = reader.bytes();
        break;
      default:
        break;
    }
  }
  if (tensor.dtype == 1 && content.size() >= 4) number(first_of<float>(content));
  if (tensor.dtype == 2 && content.size() >= 8) number(first_of<double>(content));
  if (tensor.dtype == 3 && content.size() >= 4) number(first_of<int32_t>(content));
  return tensor;
}

core::Value read_hparam(std::string_view message) {
  ProtoReader reader(message);
  core::Value value;
  while (reader.next()) {
    if (reader.field() == 2) value = reader.real();
    if (reader.field() == 3) value = std::string(reader.bytes());
    if (reader.field() == 4) value = reader.varint() != 0;
  }
  return value;
}

// HParamsPluginData: session_start_info {1 map entries}.
core::Value read_hparams(std::string_view content) {
  core::Value config;
  ProtoReader data(content);
  while (data.next()) {
    if (data.field() != 3) continue;
    ProtoReader start(data.bytes());
    while (start.next()) {
      if (start.field() != 1) continue;
      ProtoReader entry(start.bytes());
      std::string key;
      core::Value value;
      while (entry.next()) {
        if (entry.field() == 1) key = entry.bytes();
        if (entry.field() == 2) value = read_hparam(entry.bytes());
      }
      config[key] = value;
    }
  }
  return config;
}

std::string read_image(std::string_view message) {
  ProtoReader reader(message);
  std::string png;
  while (reader.next()) {
    if (reader.field() == 4) png = reader.bytes();
  }
  return png;
}

void read_value(std::string_view message, EventValue base, const std::function<void(EventValue)>& take) {
  ProtoReader reader(message);
  std::string plugin;
  std::string_view plugin_content;
  Tensor tensor;
  bool has_scalar = false, has_tensor = false;
  while (reader.next()) {
    switch (reader.field()) {
      case 1:
        base.tag = reader.bytes();
        break;
      case 2:
        base.number = reader.real();
        has_scalar = true;
        break;
      case 4:
        base.kind = EventValue::Kind::kImage;
        base.bytes = read_image(reader.bytes());
        break;
      case 8:
        tensor = read_tensor(reader.bytes());
        has_tensor = true;
        break;
      case 9: {
        ProtoReader metadata(reader.bytes());
        while (metadata.next()) {
          if (metadata.field() != 1) continue;
          ProtoReader data(metadata.bytes());
          while (data.next()) {
            if (data.field() == 1) plugin = data.bytes();
            if (data.field() == 2) plugin_content = data.bytes();
          }
        }
        break;
      }
      default:
        break;
    }
  }
  if (base.kind == EventValue::Kind::kImage) {
    if (!base.bytes.empty()) take(std::move(base));
  } else if (plugin == "hparams") {
    base.kind = EventValue::Kind::kConfig;
    base.config = read_hparams(plugin_content);
    if (!base.config.is_null()) take(std::move(base));
  } else if (has_scalar) {
    take(std::move(base));
  } else if (has_tensor && tensor.has_number) {
    base.number = tensor.number;
    take(std::move(base));
  } else if (has_tensor && tensor.dtype == 7 && plugin == "text") {
    base.kind = EventValue::Kind::kText;
    base.bytes = tensor.text;
    if (base.tag.ends_with("/text_summary")) base.tag.resize(base.tag.size() - 13);
    take(std::move(base));
  }
}

void read_event(std::string_view message, const std::function<void(EventValue)>& take) {
  EventValue base;
  std::vector<std::string_view> summaries;
  ProtoReader event(message);
  bool restart = false;
  while (event.next()) {
    if (event.field() == 1) base.time_s = event.real();
    if (event.field() == 2) base.step = static_cast<int64_t>(event.varint());
    if (event.field() == 5) summaries.push_back(event.bytes());
    if (event.field() != 7) continue;
    ProtoReader log(event.bytes());
    while (log.next()) restart = restart || (log.field() == 1 && log.varint() == 1);
  }
  if (restart) {
    EventValue mark = base;
    mark.kind = EventValue::Kind::kRestart;
    take(std::move(mark));
  }
  for (const std::string_view summary : summaries) {
    ProtoReader values(summary);
    while (values.next()) {
      if (values.field() == 1) read_value(values.bytes(), base, take);
    }
  }
}

}  // namespace

EventFileReport read_events(const std::filesystem::path& path, const std::function<void(EventValue)>& take) {
  const std::unique_ptr<std::FILE, int (*)(std::FILE*)> file(std::fopen(path.c_str(), "rb"), &std::fclose);
  if (!file)
    throw DataError(Origin{"tracking"}, path, path, " cannot be read: ", std::strerror(errno), ". Correct the path.");
  EventFileReport report;
  std::string data;
  char head[12], tail[4];
  while (std::fread(head, 1, sizeof head, file.get()) == sizeof head) {
    uint64_t size = 0;
    uint32_t crc = 0;
    std::memcpy(&size, head, 8);
    std::memcpy(&crc, head + 8, 4);
    if (crc != masked_crc32c({head, 8}) || size > kMostEventBytes) {
      report.problem = text("record ", report.num_records, " has a length that its checksum does not confirm");
      break;
    }
    data.resize(size);
    if (std::fread(data.data(), 1, size, file.get()) != size || std::fread(tail, 1, 4, file.get()) != 4) break;
    std::memcpy(&crc, tail, 4);
    if (crc != masked_crc32c(data)) {
      report.problem = text("record ", report.num_records, " has data that its checksum does not confirm");
      break;
    }
    ++report.num_records;
    read_event(data, take);
  }
  return report;
}

}  // namespace hasten::tracking
