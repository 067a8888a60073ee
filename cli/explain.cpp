// The tables of explain.h. A secret's value is not shown, nor --explain itself.
#include "explain.h"

#include <algorithm>
#include <vector>

#include "hasten/core/count_text.h"
#include "hasten/core/strings.h"
#include "hasten/core/text.h"

namespace hasten::cli {
namespace {

using launcher::Setting;

struct Row {
  std::string_view title;  // of its group
  std::string name, value, origin;
  bool is_default;
};

Row row_of(const Setting& setting, std::string_view title) {
  const bool is_switch = setting.option->kind == launcher::OptionKind::kSwitch;
  std::string value = join(setting.values, ",");
  if (value.empty()) value = is_switch ? "False" : "-";
  if (setting.option->name.starts_with("aws_") && !setting.values.empty()) value = "(not shown)";
  return {title, std::string(setting.option->name), value, setting.origin,
          setting.source == launcher::Source::kDefault};
}

std::string padded(std::string word, size_t width) {
  word.resize(std::max(width, word.size()), ' ');
  return word;
}

std::string table_of(const std::vector<Row>& rows) {
  size_t name_width = 0, value_width = 0;
  for (const Row& row : rows) {
    name_width = std::max(name_width, row.name.size());
    if (row.value.size() <= 40) value_width = std::max(value_width, row.value.size());
  }
  std::string table;
  std::string_view title;
  for (const Row& row : rows) {
    if (row.title != title) table += text(table.empty() ? "" : "\n", row.title, ":\n");
    title = row.title;
    table += text("  ", padded(row.name, name_width), "  ", padded(row.value, value_width), "  ", row.origin, "\n");
  }
  return table;
}

}  // namespace

std::string explained(const launcher::LaunchSettings& settings, bool all) {
  std::vector<Row> chosen, defaults;
  size_t next = 0;
  for (const launcher::OptionGroup& group : launcher::launch_options()) {
    for (size_t i = 0; i < group.options.size(); ++i, ++next) {
      const Row row = row_of(settings.all()[next], group.title);
      if (row.name == "explain") continue;
      (row.is_default ? defaults : chosen).push_back(row);
    }
  }
  const std::string first = chosen.empty() ? "No setting differs from its default.\n" : table_of(chosen);
  if (!all) {
    return text(first, "\n", count_text(defaults.size(), "setting"),
                defaults.size() == 1 ? " has its default" : " have their defaults",
                "; hasten launch --explain all shows them.\n");
  }
  return text(first, "\nDefaults\n\n", table_of(defaults));
}

std::string explained_devices(const launcher::LaunchSettings& settings, const launcher::Machine& machine,
                              int num_local_processes, const Environment& environment) {
  if (machine.num_gpus() == 0) return "";
  const std::string title = text("\nDevices (", machine.num_gpus(), machine.num_gpus() == 1 ? " GPU" : " GPUs", "):\n");
  if (settings.on("cpu")) return text(title, "  all processes  CPU  --cpu\n");
  // The names that the processes see as GPU 0, 1 …
  std::vector<std::string> names;
  const auto given = settings.text("gpu_ids");
  if (given && *given != "all") {
    names = core::split(*given, ',');
  } else if (const auto visible = environment.text("CUDA_VISIBLE_DEVICES")) {
    names = core::split(*visible, ',');
  } else {
    for (int index = 0; index < machine.num_gpus(); ++index) names.push_back(std::to_string(index));
  }
  std::string lines = title;
  for (int rank = 0; rank < num_local_processes; ++rank) {
    const auto index = static_cast<size_t>(rank);
    lines += index < names.size()
                 ? text("  process ", rank, "  GPU ", names[index], "\n")
                 : text("  process ", rank, "  none: start ", count_text(names.size(), "process"),
                        " at most, or give --cpu\n");
  }
  return lines;
}

}  // namespace hasten::cli
