// See line_queue.h.
#include "tracking/journal/line_queue.h"

#include <algorithm>

#include "tracking/journal/json.h"

namespace hasten::tracking {
namespace {

constexpr size_t kMostKept = 64;

void append_values(std::string& out, const Values& values) {
  char separator = '{';
  for (const auto& [key, value] : values) {
    out += separator;
    append_json_string(out, key);
    out += ':';
    switch (value.kind()) {
      case Value::Kind::kDouble:
        append_json_number(out, value.as_number());
        break;
      case Value::Kind::kInt:
        append_json_number(out, value.as_int());
        break;
      case Value::Kind::kBool:
        out += value.as_number() != 0 ? "true" : "false";
        break;
      case Value::Kind::kGroup:
        append_values(out, value.as_group());
        break;
      case Value::Kind::kPending:
        append_json_number(out, value.pending().value());
        break;
      case Value::Kind::kInvalid:
        out += "null";
        break;  // refused before
      case Value::Kind::kString: {
        const std::string& text = value.as_string();
        // These words mean numbers.
        const bool is_number_word = text == "NaN" || text == "Infinity" || text == "-Infinity";
        if (is_number_word) out += "{\"$text\":";
        append_json_string(out, text);
        if (is_number_word) out += '}';
      }
    }
    separator = ',';
  }
  out += values.empty() ? "{}" : "}";
}

bool all_ready(const Values& values) {
  return std::all_of(values.begin(), values.end(), [](const Entry& entry) {
    const Value& value = entry.second;
    if (value.kind() == Value::Kind::kGroup) return all_ready(value.as_group());
    return value.kind() != Value::Kind::kPending || value.pending().ready();
  });
}

}  // namespace

void append_log_line(std::string& out, const LogLine& line) {
  out += R"({"op":"log","t":)";
  append_json_number(out, line.time_s);
  out += R"(,"step":)";
  append_json_number(out, line.step);
  out += R"(,"values":)";
  append_values(out, line.values);
  if (!line.kwargs.is_null() && !line.kwargs.empty()) {
    out += R"(,"kwargs":)";
    append_json(out, line.kwargs);
  }
  if (!line.only.empty()) {
    out += R"(,"only":)";
    append_json(out, core::Value(line.only));
  }
  out += "}\n";
}

void LineQueue::push(LogLine line) {
  const std::lock_guard lock(mutex_);
  if (kept_.empty() && all_ready(line.values)) {
    buffer_.clear();
    append_log_line(buffer_, line);
    journal_->append_lines(buffer_);
    return;
  }
  kept_.push_back({std::move(line)});
  while (!kept_.empty() && (front_is_ready() || kept_.size() > kMostKept)) write_front();
}

void LineQueue::push(std::string line) {
  const std::lock_guard lock(mutex_);
  if (kept_.empty()) {
    journal_->append_lines(line);
  } else {
    kept_.push_back({.text = std::move(line)});
  }
}

void LineQueue::drain(bool all) {
  const std::lock_guard lock(mutex_);
  while (!kept_.empty() && (all || front_is_ready())) write_front();
}

bool LineQueue::empty() const {
  const std::lock_guard lock(mutex_);
  return kept_.empty();
}

bool LineQueue::front_is_ready() const {
  return !kept_.front().text.empty() || all_ready(kept_.front().line.values);
}

void LineQueue::write_front() {
  buffer_.clear();
  if (kept_.front().text.empty()) {
    append_log_line(buffer_, kept_.front().line);
  } else {
    buffer_ = std::move(kept_.front().text);
  }
  kept_.pop_front();
  journal_->append_lines(buffer_);
}

}  // namespace hasten::tracking
