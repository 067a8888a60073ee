// See mlflow_requests.h.
#include "tracking/sinks/mlflow_requests.h"

#include <algorithm>
#include <cctype>

#include "hasten/core/text.h"
#include "tracking/journal/json.h"

namespace hasten::tracking::mlflow {
namespace {

constexpr size_t kMostMetrics = 1000, kMostParams = 100, kMostTags = 100, kMostEntries = 1000;
constexpr size_t kMostBytes = 900'000;  // of 1 MB
constexpr size_t kMostKey = 250;

size_t bytes_of(const Metric& metric) {
  return metric.key.size() + 120;
}
size_t bytes_of(const Pair& pair) {
  return 2 * pair.value.size() + pair.key.size() + 40;
}

void append_pairs(std::string& out, const char* name, const std::vector<Pair>& pairs) {
  out += text(",\"", name, "\":[");
  for (size_t i = 0; i < pairs.size(); ++i) {
    out += i == 0 ? "{\"key\":" : ",{\"key\":";
    append_json_string(out, pairs[i].key);
    out += ",\"value\":";
    append_json_string(out, pairs[i].value);
    out += '}';
  }
  out += ']';
}

}  // namespace

std::string KeyMap::map(const std::string& key, std::string& changed) {
  changed.clear();
  if (const auto found = known_.find(key); found != known_.end()) return found->second;
  std::string mapped = key.substr(0, kMostKey);
  for (char& letter : mapped) {
    const auto byte = static_cast<unsigned char>(letter);
    if (std::isalnum(byte) == 0 && std::string("_-. :/").find(letter) == std::string::npos) letter = '_';
  }
  // MLflow also refuses what is no normal path.
  for (size_t i = 0; (i = mapped.find("//", i)) != std::string::npos;) mapped[i + 1] = '_';
  if (!mapped.empty() && mapped.front() == '/') mapped.front() = '_';
  if (!mapped.empty() && mapped.back() == '/') mapped.back() = '_';
  for (size_t i = 0; (i = mapped.find("..", i)) != std::string::npos;) mapped[i] = mapped[i + 1] = '_';
  if (mapped.empty() || mapped == ".") mapped = std::string(1, '_');
  const std::string base = mapped.substr(0, kMostKey - 8);
  for (int number = 2; !used_.insert(mapped).second; ++number) mapped = text(base, '_', number);
  known_[key] = mapped;
  if (mapped != key)
    changed = text("the key '", key.substr(0, 80), "' is shown as '", mapped.substr(0, 80),
                   "', since MLflow takes letters, digits and _-. :/ only");
  return mapped;
}

std::vector<Batch> split(const Batch& entries) {
  std::vector<Batch> batches;
  size_t bytes = 0;
  const auto room_for = [&](size_t size, auto count) -> Batch& {
    const bool full =
        batches.empty() || bytes + size > kMostBytes || batches.back().size() >= kMostEntries || count(batches.back());
    if (full) {
      batches.emplace_back();
      bytes = 0;
    }
    bytes += size;
    return batches.back();
  };
  for (const Pair& tag : entries.tags) {
    room_for(bytes_of(tag), [](const Batch& batch) { return batch.tags.size() >= kMostTags; }).tags.push_back(tag);
  }
  for (const Pair& param : entries.params) {
    room_for(bytes_of(param), [](const Batch& batch) {
      return batch.params.size() >= kMostParams;
    }).params.push_back(param);
  }
  for (const Metric& metric : entries.metrics) {
    room_for(bytes_of(metric), [](const Batch& batch) {
      return batch.metrics.size() >= kMostMetrics;
    }).metrics.push_back(metric);
  }
  return batches;
}

std::vector<Batch> halves(const Batch& batch) {
  std::vector<Batch> two(2);
  size_t index = 0;
  const size_t half = batch.size() / 2;
  for (const Metric& metric : batch.metrics) two[index++ < half ? 0 : 1].metrics.push_back(metric);
  for (const Pair& param : batch.params) two[index++ < half ? 0 : 1].params.push_back(param);
  for (const Pair& tag : batch.tags) two[index++ < half ? 0 : 1].tags.push_back(tag);
  return two;
}

std::string describe(const Batch& batch) {
  if (!batch.metrics.empty())
    return text("metric '", batch.metrics.front().key, "' of step ", batch.metrics.front().step);
  if (!batch.params.empty()) return text("param '", batch.params.front().key, "'");
  return batch.tags.empty() ? "nothing" : text("tag '", batch.tags.front().key, "'");
}

std::string log_batch_body(const std::string& run_id, const Batch& batch) {
  std::string out = "{\"run_id\":";
  append_json_string(out, run_id);
  out += ",\"metrics\":[";
  for (size_t i = 0; i < batch.metrics.size(); ++i) {
    const Metric& metric = batch.metrics[i];
    out += i == 0 ? "{\"key\":" : ",{\"key\":";
    append_json_string(out, metric.key);
    out += ",\"value\":";
    append_json_number(out, metric.value);
    out += ",\"timestamp\":";
    append_json_number(out, metric.timestamp_ms);
    out += ",\"step\":";
    append_json_number(out, metric.step);
    out += '}';
  }
  out += ']';
  append_pairs(out, "params", batch.params);
  append_pairs(out, "tags", batch.tags);
  return out + "}";
}

std::string image_path(const std::string& key, int64_t step, int64_t timestamp_ms, const std::string& unique) {
  std::string name = key;
  for (char& letter : name) {
    const auto byte = static_cast<unsigned char>(letter);
    if (letter == '/') letter = '~';
    if (byte < 0x80 && std::isalnum(byte) == 0 && std::string("_-. :~").find(letter) == std::string::npos) letter = '_';
  }
  return text("images/", name, "+step+", step, "+timestamp+", timestamp_ms, "+", unique, ".png");
}

}  // namespace hasten::tracking::mlflow
