// See trace_merge.h.
#include "hasten/flight/trace_merge.h"

#include <algorithm>
#include <charconv>
#include <cstdlib>
#include <utility>

#include "hasten/core/error.h"
#include "hasten/core/number.h"
#include "hasten/core/text.h"

namespace hasten::flight {
namespace {

constexpr int64_t kPerRank = 100'000'000'000;  // of numbers of flows and operators
constexpr int64_t kProcesses = 1000;           // of a rank

size_t skip_space(std::string_view text, size_t at) {
  while (at < text.size() && (text[at] == ' ' || text[at] == '\n' || text[at] == '\r' || text[at] == '\t')) ++at;
  return at;
}

// `at` is the opening quote. Returns the place behind the closing one; npos without.
size_t end_of_string(std::string_view text, size_t at) {
  for (size_t i = at + 1; i < text.size(); ++i) {
    if (text[i] == '\\') {
      ++i;
    } else if (text[i] == '"') {
      return i + 1;
    }
  }
  return std::string_view::npos;
}

// `at` is a brace or bracket. Returns the place behind its partner; npos without.
size_t end_of_block(std::string_view text, size_t at) {
  int depth = 0;
  for (size_t i = at; i < text.size(); ++i) {
    if (text[i] == '"') {
      i = end_of_string(text, i);
      if (i == std::string_view::npos) return i;
      --i;
    } else if (text[i] == '{' || text[i] == '[') {
      ++depth;
    } else if ((text[i] == '}' || text[i] == ']') && --depth == 0) {
      return i + 1;
    }
  }
  return std::string_view::npos;
}

size_t end_of_value(std::string_view text, size_t at) {
  if (at >= text.size()) return std::string_view::npos;
  if (text[at] == '"') return end_of_string(text, at);
  if (text[at] == '{' || text[at] == '[') return end_of_block(text, at);
  while (at < text.size() && text[at] != ',' && text[at] != '}' && text[at] != ']' && text[at] != '\n') ++at;
  return at;
}

std::string_view trimmed(std::string_view words) {
  while (!words.empty() && (words.back() == ' ' || words.back() == '\r')) words.remove_suffix(1);
  return words;
}

// The number behind a key outside of events; 0 without.
int64_t header_number(std::string_view text, std::string_view key) {
  const size_t found = text.find(key);
  if (found == std::string_view::npos) return 0;
  const size_t at = skip_space(text, std::min(text.size(), text.find(':', found) + 1));
  int64_t number = 0;
  std::from_chars(text.data() + at, text.data() + text.size(), number);
  return number;
}

// Numbers that name something get the rank in front; -1 and 0 name nothing. Other values stay.
std::string numbered(int rank, std::string_view value) {
  const bool quoted = value.size() > 1 && value.front() == '"';
  const std::string_view digits = quoted ? value.substr(1, value.size() - 2) : value;
  int64_t number = 0;
  const auto [end, error] = std::from_chars(digits.data(), digits.data() + digits.size(), number);
  if (error != std::errc() || end != digits.data() + digits.size() || number <= 0) return std::string(value);
  const std::string moved = text(int64_t{rank} * kPerRank + number);
  return quoted ? text('"', moved, '"') : moved;
}

// "name" of a process: its rank comes in front.
std::string named(int rank, std::string_view value) {
  if (value.empty() || value.front() != '"') return std::string(value);
  return text("\"rank ", rank, ": ", value.substr(1));
}

// Microseconds with up to three decimals, moved. Numbers of this size have no thousandths as floating point numbers,
// and Perfetto drops an event that ends a nanosecond behind the one around it. Other forms stay.
std::string moved_time(std::string_view value, int64_t shift_ns) {
  const size_t dot = std::min(value.find('.'), value.size());
  std::string thousandths(value.substr(std::min(dot + 1, value.size())));
  if (thousandths.size() > 3) return std::string(value);
  thousandths.resize(3, '0');
  const auto whole = core::whole_number<int64_t>(value.substr(0, dot)), part = core::whole_number<int64_t>(thousandths);
  if (!whole || !part || *whole < 0 || *part < 0) return std::string(value);
  const int64_t time = *whole * 1000 + *part + shift_ns;
  const std::string rest = text(std::abs(time) % 1000);
  return text(time < 0 ? "-" : "", std::abs(time) / 1000, '.', std::string(3 - rest.size(), '0'), rest);
}

/// Calls `change(key, value)` for the keys of an object, and copies the rest.
template <class Change>
std::string rewritten(std::string_view object, const Change& change) {
  std::string result = "{";
  size_t at = 1;
  while (at < object.size()) {
    const size_t key = object.find_first_of("\"}", at);
    if (key == std::string_view::npos || object[key] == '}') break;
    const size_t key_end = end_of_string(object, key);
    if (key_end == std::string_view::npos) break;
    const size_t value = skip_space(object, std::min(object.size(), object.find(':', key_end) + 1));
    const size_t value_end = end_of_value(object, value);
    if (value_end == std::string_view::npos) break;
    if (result.size() > 1) result += ", ";
    result += object.substr(key, key_end - key);
    result += ": ";
    result += change(object.substr(key + 1, key_end - key - 2), trimmed(object.substr(value, value_end - value)));
    at = value_end;
  }
  return result + "}";
}

}  // namespace

std::string TraceMerger::process_of(int rank, std::string_view process) {
  if (!process.empty() && process.front() == '"') return named(rank, process);
  const auto [place, is_new] = processes_.try_emplace(text(rank, ' ', process), 0);
  if (is_new) place->second = int64_t{rank} * kProcesses + static_cast<int64_t>(processes_.size());
  return text(place->second);
}

std::string TraceMerger::renumbered(int rank, std::string_view event) {
  const bool is_name = event.find("\"process_name\"") != std::string_view::npos;
  const bool is_order = event.find("\"process_sort_index\"") != std::string_view::npos;
  const auto of_args = [&](std::string_view key, std::string_view value) -> std::string {
    if (is_name && key == "name") return named(rank, value);
    // The processes of a rank stand together.
    if (is_order && key == "sort_index") {
      const auto place = core::whole_number<int64_t>(value).value_or(0);
      return text(int64_t{rank} * kProcesses + place % kProcesses);
    }
    if (key == "External id" || key == "correlation") return numbered(rank, value);
    return std::string(value);
  };
  return rewritten(event, [&](std::string_view key, std::string_view value) -> std::string {
    if (key == "pid") return process_of(rank, value);
    if (key == "id") return numbered(rank, value);
    if (key == "args" && !value.empty() && value.front() == '{') return rewritten(value, of_args);
    return key == "ts" && shift_ns_ != 0 ? moved_time(value, shift_ns_) : std::string(value);
  });
}

int64_t TraceMerger::add(int rank, std::string_view trace, const std::string& name) {
  const size_t list = trace.find("\"traceEvents\"");
  size_t at = list == std::string_view::npos ? list : trace.find('[', list);
  if (at == std::string_view::npos) {
    throw DataError({"flight"}, name, name, " is no trace: it has no \"traceEvents\".");
  }
  const int64_t base = header_number(trace, "\"baseTimeNanoseconds\"");
  if (!std::exchange(has_begun_, true)) {
    base_ns_ = base;
    out_ << "{\"schemaVersion\": 1, \"displayTimeUnit\": \"ms\", \"baseTimeNanoseconds\": " << text(base)
         << ", \"traceEvents\": [";
  }
  shift_ns_ = base - base_ns_;
  int64_t count = 0;
  for (++at;;) {
    at = skip_space(trace, at);
    if (at < trace.size() && trace[at] == ',') {
      ++at;
      continue;
    }
    if (at < trace.size() && trace[at] == ']') return count;
    const size_t end = at < trace.size() && trace[at] == '{' ? end_of_block(trace, at) : std::string_view::npos;
    if (end == std::string_view::npos) {
      throw DataError({"flight"}, name, name, " ends inside of its events, behind ", count,
                      " of them. It may be written still, or its disk is full.");
    }
    out_ << (std::exchange(has_events_, true) ? ",\n" : "\n") << renumbered(rank, trace.substr(at, end - at));
    ++count;
    at = end;
  }
}

void TraceMerger::end() {
  if (has_begun_) out_ << "\n]}\n";
}

}  // namespace hasten::flight
