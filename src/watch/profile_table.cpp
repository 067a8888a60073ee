// Averages of recorded events and their table; see profile_table.h.
#include "hasten/watch/profile_table.h"

#include <algorithm>
#include <cmath>
#include <functional>
#include <map>
#include <tuple>

#include "hasten/core/error.h"
#include "hasten/core/number.h"
#include "hasten/core/sentence.h"
#include "hasten/core/strings.h"
#include "hasten/core/text.h"

namespace hasten::watch {
namespace {

constexpr size_t kColumn = 12;

/// An event with what lies directly inside of it.
struct Node {
  ProfileEvent event = {};
  int parent = -1;
  std::vector<int> children = {};
  bool is_dropped = false;
};

double microseconds(int64_t nanoseconds) {
  return static_cast<double>(nanoseconds) / 1e3;
}

// As torch takes it, so that texts are equal to the last digit.
double duration(const ProfileEvent& event) {
  return microseconds(event.end_ns) - microseconds(event.start_ns);
}

// An event is the child of the innermost one of its thread that holds it. Those that overlap partly have none.
void find_parents(std::vector<Node>& nodes) {
  std::map<uint64_t, std::vector<int>> threads;
  for (size_t i = 0; i < nodes.size(); ++i) {
    if (nodes[i].event.is_async || nodes[i].event.device != "cpu") continue;
    threads[nodes[i].event.thread].push_back(static_cast<int>(i));
  }
  const auto at = [&](int i) -> Node& { return nodes[static_cast<size_t>(i)]; };
  for (auto& [_, events] : threads) {
    std::stable_sort(events.begin(), events.end(), [&](int a, int b) {
      return std::pair(at(a).event.start_ns, -at(a).event.end_ns) <
             std::pair(at(b).event.start_ns, -at(b).event.end_ns);
    });
    std::vector<int> open;
    for (const int event : events) {
      while (!open.empty()) {
        const ProfileEvent& outer = at(open.back()).event;
        if (at(event).event.start_ns < outer.end_ns && at(event).event.end_ns <= outer.end_ns) break;
        open.pop_back();
      }
      if (!open.empty()) {
        at(event).parent = open.back();
        at(open.back()).children.push_back(event);
      }
      open.push_back(event);
    }
  }
}

std::string key_of(const std::string& name) {
  return name.starts_with("ProfilerStep#") ? "ProfilerStep*" : name;
}

// An event whose only child has its name is that child (torch's _remove_dup_nodes).
void drop_duplicates(std::vector<Node>& nodes) {
  const auto at = [&](int i) -> Node& { return nodes[static_cast<size_t>(i)]; };
  bool changed = true;
  while (std::exchange(changed, false)) {
    for (Node& node : nodes) {
      if (node.is_dropped || node.parent < 0) continue;
      Node& outer = at(node.parent);
      if (outer.is_dropped || key_of(outer.event.name) != key_of(node.event.name) || outer.children.size() != 1)
        continue;
      outer.children = node.children;
      outer.event.kernels_ns = node.event.kernels_ns;
      for (const int child : node.children) at(child).parent = node.parent;
      node.is_dropped = true;
      changed = true;
    }
  }
}

// Kernels of an event and of all inside it.
double device_time(const std::vector<Node>& nodes, const Node& node) {
  if (node.event.device != "cpu") return duration(node.event);
  double total = microseconds(node.event.kernels_ns);
  for (const int child : node.children) total += device_time(nodes, nodes[static_cast<size_t>(child)]);
  return total;
}

void add(ProfileAverage& average, const std::vector<Node>& nodes, const Node& node) {
  const ProfileEvent& event = node.event;
  ++average.count;
  average.flops += event.flops;
  const double total_device = event.is_async ? 0 : device_time(nodes, node);
  double self_device = total_device;
  const double total = event.device == "cpu" ? duration(event) : 0;
  double inside = 0;
  int64_t self_cpu_bytes = event.cpu_bytes, self_device_bytes = event.device_bytes;
  if (event.is_async || event.device != "cpu") self_cpu_bytes = self_device_bytes = 0;
  for (const int i : node.children) {
    const Node& child = nodes[static_cast<size_t>(i)];
    inside += duration(child.event);
    self_device -= event.device == "cpu" ? device_time(nodes, child) : 0;
    self_cpu_bytes -= child.event.cpu_bytes;
    self_device_bytes -= child.event.device_bytes;
  }
  average.cpu_time_total += total;
  average.self_cpu_time_total += event.is_async ? 0 : total - inside;
  average.device_time_total += total_device;
  average.self_device_time_total += self_device;
  average.cpu_memory_usage += event.cpu_bytes;
  average.self_cpu_memory_usage += self_cpu_bytes;
  average.device_memory_usage += event.device_bytes;
  average.self_device_memory_usage += self_device_bytes;
}

// ---- Texts of torch's table.

std::string fixed(double value, int digits) {
  return core::fixed_text(value, digits);
}

std::string time_text(double us, const std::string& unit) {
  if (unit == "s" || (unit.empty() && us >= 1e6)) return fixed(us / 1e6, 3) + "s";
  if (unit == "ms" || (unit.empty() && us >= 1e3)) return fixed(us / 1e3, 3) + "ms";
  return fixed(us, 3) + "us";
}

std::string share_text(double us, double total) {
  return total == 0 ? "NaN" : fixed(us * 100 / total, 2) + "%";
}

std::string bytes_text(int64_t bytes) {
  constexpr double kKilo = 1024;
  const auto value = static_cast<double>(bytes);
  if (std::abs(value) >= kKilo * kKilo * kKilo) return fixed(value / (kKilo * kKilo * kKilo), 2) + " GB";
  if (std::abs(value) >= kKilo * kKilo) return fixed(value / (kKilo * kKilo), 2) + " MB";
  if (std::abs(value) >= kKilo) return fixed(value / kKilo, 2) + " KB";
  return text(bytes, " B");
}

// As Python prints a list of lists.
std::string shapes_text(const std::vector<std::vector<int64_t>>& shapes) {
  std::vector<std::string> all;
  for (const auto& shape : shapes) all.push_back(text("[", join(shape), "]"));
  return text("[", join(all), "]");
}

using Field = std::function<double(const ProfileAverage&)>;

const std::map<std::string, Field>& fields() {
  static const auto* const all = new std::map<std::string, Field>{
      {"cpu_time_total", [](const auto& it) { return it.cpu_time_total; }},
      {"self_cpu_time_total", [](const auto& it) { return it.self_cpu_time_total; }},
      {"cpu_time", [](const auto& it) { return it.cpu_time_total / static_cast<double>(it.count); }},
      {"device_time_total", [](const auto& it) { return it.device_time_total; }},
      {"self_device_time_total", [](const auto& it) { return it.self_device_time_total; }},
      {"device_time", [](const auto& it) { return it.device_time_total / static_cast<double>(it.count); }},
      {"cpu_memory_usage", [](const auto& it) { return static_cast<double>(it.cpu_memory_usage); }},
      {"self_cpu_memory_usage", [](const auto& it) { return static_cast<double>(it.self_cpu_memory_usage); }},
      {"device_memory_usage", [](const auto& it) { return static_cast<double>(it.device_memory_usage); }},
      {"self_device_memory_usage", [](const auto& it) { return static_cast<double>(it.self_device_memory_usage); }},
      {"count", [](const auto& it) { return static_cast<double>(it.count); }},
      {"flops", [](const auto& it) { return static_cast<double>(it.flops); }}};
  return *all;
}

void sort_rows(std::vector<ProfileAverage>& rows, std::string by) {
  if (by.empty()) return;
  const std::string given = by;
  for (const std::string device : {"cuda", "xpu", "privateuse1"}) {
    for (size_t at = 0; (at = by.find(device, at)) != std::string::npos; at += 6)
      by.replace(at, device.size(), "device");
  }
  const auto field = fields().find(by);
  if (field == fields().end()) {
    std::vector<std::string> names;
    for (const auto& [name, _] : fields()) names.push_back(name);
    throw UsageError({"watch"}, "sort_by '", given, "' is none of ", join(names), guess_end(given, names));
  }
  std::stable_sort(rows.begin(), rows.end(), [&](const ProfileAverage& a, const ProfileAverage& b) {
    return field->second(a) > field->second(b);
  });
}

/// Columns of fixed widths, right-aligned, two spaces apart.
class Table {
 public:
  void add_column(const std::string& heading, size_t width) {
    headings_.push_back(heading);
    widths_.push_back(width);
  }
  std::string line(const std::vector<std::string>& cells) const {
    std::string words;
    for (size_t i = 0; i < cells.size(); ++i) {
      words += std::string(widths_[i] - std::min(widths_[i], cells[i].size()), ' ') + cells[i] + "  ";
    }
    return words + "\n";
  }
  std::string heading() const { return line(headings_); }
  std::string rule() const {
    std::string words;
    for (const size_t width : widths_) words += std::string(width, '-') + "  ";
    return words + "\n";
  }
  size_t width() const {
    size_t all = 0;
    for (const size_t width : widths_) all += width + 2;
    return all - 2;
  }

 private:
  std::vector<std::string> headings_;
  std::vector<size_t> widths_;
};

struct Flops {
  double scale = 1;
  std::string heading = {};
};

Flops scale_of(const std::vector<ProfileAverage>& rows) {
  static const std::vector<std::string> kNames = {"FLOPs", "KFLOPs", "MFLOPs", "GFLOPs", "TFLOPs", "PFLOPs"};
  uint64_t least = 0;
  for (const ProfileAverage& row : rows) {
    if (row.flops > 0 && (least == 0 || row.flops < least)) least = row.flops;
  }
  if (least == 0) return {};
  const double most = static_cast<double>(kNames.size() - 1);
  const double magnitude = std::clamp(std::log10(static_cast<double>(least)) / 3, 0.0, most);
  return {std::pow(10, std::floor(magnitude) * -3.0), "Total " + kNames[static_cast<size_t>(magnitude)]};
}

/// The columns that the rows have, and their sums.
struct Shown {
  bool device_time = false, device_memory = false, shapes = false;
  std::string device = {};
  double self_cpu = 0, self_device = 0;
};

Shown shown_of(const std::vector<ProfileAverage>& rows) {
  Shown shown;
  for (const ProfileAverage& row : rows) {
    shown.device_time = shown.device_time || row.self_device_time_total > 0;
    shown.device_memory = shown.device_memory || row.self_device_memory_usage > 0;
    shown.shapes = shown.shapes || !row.input_shapes.empty();
    shown.self_cpu += row.self_cpu_time_total;
    if (row.device == "cpu") continue;
    shown.device = core::upper(row.device);
    if (!row.is_annotation) shown.self_device += row.self_device_time_total;
  }
  return shown;
}

/// The table of some rows: torch's columns and texts.
class TableWriter {
 public:
  TableWriter(const std::vector<ProfileAverage>& rows, const ProfileTableOptions& options, bool with_memory,
              bool with_flops)
      : rows_(rows),
        options_(options),
        shown_(shown_of(rows)),
        flops_(with_flops ? scale_of(rows) : Flops{}),
        memory_(with_memory),
        device_memory_(with_memory && !shown_.device.empty() && shown_.device_memory) {
    add_columns();
  }

  std::string write() const {
    std::string words;
    if (!options_.header.empty()) words += std::string(table_.width(), '=') + "\n" + options_.header + "\n";
    words += table_.rule() + table_.heading() + table_.rule();
    int64_t count = 0;
    for (const ProfileAverage& row : rows_) {
      if (count++ == options_.row_limit) break;
      words += table_.line(cells_of(row));
    }
    words += table_.rule() + "Self CPU time total: " + time(shown_.self_cpu) + "\n";
    if (shown_.device_time) words += "Self " + shown_.device + " time total: " + time(shown_.self_device) + "\n";
    return words;
  }

 private:
  void add_columns() {
    size_t name_width = 0;
    for (const ProfileAverage& row : rows_) {
      name_width = std::max(name_width, row.key.size() + 4);
      shapes_width_ = std::max(shapes_width_, shapes_text(row.input_shapes).size() + 4);
    }
    shapes_width_ = std::min(shapes_width_, options_.max_shapes_column_width);
    table_.add_column("Name", std::min(name_width, options_.max_name_column_width));
    const auto add = [&](const std::vector<std::string>& headings) {
      for (const std::string& heading : headings) table_.add_column(heading, kColumn);
    };
    const std::string& device = shown_.device;
    add({"Self CPU %", "Self CPU", "CPU total %", "CPU total", "CPU time avg"});
    if (shown_.device_time) add({"Self " + device, "Self " + device + " %", device + " total", device + " time avg"});
    if (memory_) add({"CPU Mem", "Self CPU Mem"});
    if (device_memory_) add({device + " Mem", "Self " + device + " Mem"});
    add({"# of Calls"});
    if (shown_.shapes) table_.add_column("Input Shapes", shapes_width_);
    if (!flops_.heading.empty()) add({flops_.heading});
  }

  std::string time(double us) const { return time_text(us, options_.time_unit); }

  std::vector<std::string> cells_of(const ProfileAverage& row) const {
    std::string name = row.key;
    const size_t most = options_.max_name_column_width - std::min<size_t>(3, options_.max_name_column_width);
    if (name.size() >= most) name = name.substr(0, most) + "...";
    const auto calls = static_cast<double>(row.count);
    std::vector<std::string> cells = {name,
                                      share_text(row.self_cpu_time_total, shown_.self_cpu),
                                      time(row.self_cpu_time_total),
                                      row.is_async ? "0" : share_text(row.cpu_time_total, shown_.self_cpu),
                                      time(row.cpu_time_total),
                                      time(row.cpu_time_total / calls)};
    const auto add = [&](const std::vector<std::string>& more) { cells.insert(cells.end(), more.begin(), more.end()); };
    if (shown_.device_time) {
      add({time(row.self_device_time_total), share_text(row.self_device_time_total, shown_.self_device),
           time(row.device_time_total), time(row.device_time_total / calls)});
    }
    if (memory_) add({bytes_text(row.cpu_memory_usage), bytes_text(row.self_cpu_memory_usage)});
    if (device_memory_) add({bytes_text(row.device_memory_usage), bytes_text(row.self_device_memory_usage)});
    add({text(row.count)});
    if (shown_.shapes) add({shapes_text(row.input_shapes).substr(0, shapes_width_)});
    if (!flops_.heading.empty()) {
      add({row.flops == 0 ? "--" : fixed(static_cast<double>(row.flops) * flops_.scale, 3)});
    }
    return cells;
  }

  const std::vector<ProfileAverage>& rows_;
  const ProfileTableOptions& options_;
  const Shown shown_;
  const Flops flops_;
  const bool memory_;
  const bool device_memory_;
  size_t shapes_width_ = 0;
  Table table_;
};

}  // namespace

ProfileAverages average(std::vector<ProfileEvent> events, bool group_by_input_shapes, bool with_memory,
                        bool with_flops) {
  std::vector<Node> nodes;
  for (ProfileEvent& event : events) nodes.push_back({.event = std::move(event)});
  find_parents(nodes);
  drop_duplicates(nodes);
  using Key = std::tuple<std::string, std::string, bool, std::string>;
  std::map<Key, size_t> places;
  std::vector<ProfileAverage> averages;
  for (const Node& node : nodes) {
    if (node.is_dropped) continue;
    const ProfileEvent& event = node.event;
    const std::string shapes = group_by_input_shapes ? shapes_text(event.input_shapes) : "";
    const auto [place, is_new] =
        places.try_emplace({key_of(event.name), event.device, event.is_annotation, shapes}, averages.size());
    if (is_new) {
      averages.push_back({.key = key_of(event.name),
                          .device = event.device,
                          .is_async = event.is_async,
                          .is_annotation = event.is_annotation});
      if (group_by_input_shapes) averages.back().input_shapes = event.input_shapes;
    }
    add(averages[place->second], nodes, node);
  }
  return ProfileAverages(std::move(averages), with_memory, with_flops);
}

std::string ProfileAverages::table(const ProfileTableOptions& options) const {
  if (averages_.empty()) return "";
  const std::string& unit = options.time_unit;
  if (!unit.empty() && unit != "s" && unit != "ms" && unit != "us") {
    throw UsageError({"watch"}, "time_unit '", unit, "'; expected s, ms or us.");
  }
  std::vector<ProfileAverage> rows = averages_;
  sort_rows(rows, options.sort_by);
  return TableWriter(rows, options, with_memory_, with_flops_).write();
}

}  // namespace hasten::watch
