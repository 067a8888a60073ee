// See cgroup.h.
#include "flight/cgroup.h"

#include <algorithm>
#include <optional>
#include <vector>

#include "flight/proc.h"
#include "hasten/core/number.h"
#include "hasten/core/text.h"

namespace hasten::flight {
namespace {

// "1,4,cpu" has "cpu".
bool is_in_list(std::string_view list, std::string_view name) {
  while (!list.empty()) {
    const size_t end = std::min(list.find(','), list.size());
    if (list.substr(0, end) == name) return true;
    list.remove_prefix(std::min(end + 1, list.size()));
  }
  return false;
}

// The path of the hierarchy with this controller in lines "4:cpu,cpuacct:/job"; that of version 2 for "".
std::optional<std::string> path_of(std::string_view groups, std::string_view controller) {
  for (const std::string_view line : lines_of(groups)) {
    const size_t first = line.find(':');
    const size_t second = first == std::string_view::npos ? first : line.find(':', first + 1);
    if (second == std::string_view::npos) continue;
    const std::string_view list = line.substr(first + 1, second - first - 1);
    const bool is_wanted = controller.empty() ? list.empty() : is_in_list(list, controller);
    if (is_wanted) return std::string(line.substr(second + 1));
  }
  return std::nullopt;
}

// Folders in which the process's files may be, the best first.
std::vector<std::string> folders_of(std::string_view groups, std::string_view controller, const std::string& root) {
  std::vector<std::string> folders;
  if (const auto path = controller.empty() ? std::nullopt : path_of(groups, controller)) {
    folders.push_back(text(root, '/', controller, *path));
    folders.push_back(text(root, '/', controller));
  }
  if (const auto path = path_of(groups, "")) {
    for (const char* top : {"", "/unified"}) folders.push_back(text(root, top, *path));
    folders.push_back(root);
  }
  return folders;
}

std::string text_in(const std::vector<std::string>& folders, const char* file) {
  for (const std::string& folder : folders) {
    std::string words = read_text(text(folder, '/', file));
    if (!words.empty()) return words;
  }
  return "";
}

// "max" and an absent file are no limit.
std::optional<int64_t> number_in(std::string words) {
  while (!words.empty() && words.back() == '\n') words.pop_back();
  return core::whole_number<int64_t>(words);
}

}  // namespace

int64_t stall_us(std::string_view pressure) {
  constexpr std::string_view kTotal = "total=";
  for (const std::string_view line : lines_of(pressure)) {
    const size_t total = line.find(kTotal);
    if (!line.starts_with("some ") || total == std::string_view::npos) continue;
    return core::whole_number<int64_t>(line.substr(total + kTotal.size())).value_or(-1);
  }
  return -1;
}

CgroupTotals read_cgroup(std::string_view groups, const std::string& root) {
  CgroupTotals totals;
  const std::string cpu = text_in(folders_of(groups, "cpu", root), "cpu.stat");
  totals.throttled_periods = std::max<int64_t>(0, number_after(cpu, "nr_throttled"));
  const auto unified = folders_of(groups, "", root);
  totals.memory_stall_us = stall_us(text_in(unified, "memory.pressure"));
  const auto limit = number_in(text_in(unified, "memory.high")), used = number_in(text_in(unified, "memory.current"));
  // The kernel takes pages above the limit back at once, so a process that is held there is at times below it.
  totals.is_at_memory_limit = limit && used && *used >= *limit - *limit / 20;
  return totals;
}

}  // namespace hasten::flight
