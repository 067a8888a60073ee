// The table of explain.h. A secret's value is not shown.
#include "explain.h"

#include <algorithm>

#include "hasten/core/text.h"

namespace hasten::cli {
namespace {

using launcher::Setting;

struct Row {
  std::string name, value, origin;
};

Row row_of(const Setting& setting) {
  const bool is_switch = setting.option->kind == launcher::OptionKind::kSwitch;
  std::string value = join(setting.values, ",");
  if (value.empty()) value = is_switch ? "False" : "-";
  if (setting.option->name.starts_with("aws_") && !setting.values.empty()) value = "(not shown)";
  return {std::string(setting.option->name), value, setting.origin};
}

std::string padded(std::string word, size_t width) {
  word.resize(std::max(width, word.size()), ' ');
  return word;
}

}  // namespace

std::string explained(const launcher::LaunchSettings& settings) {
  std::vector<Row> rows;
  size_t name_width = 0, value_width = 0;
  for (const Setting& setting : settings.all()) {
    rows.push_back(row_of(setting));
    name_width = std::max(name_width, rows.back().name.size());
    if (rows.back().value.size() <= 40) value_width = std::max(value_width, rows.back().value.size());
  }
  std::string table;
  size_t next = 0;
  for (const launcher::OptionGroup& group : launcher::launch_options()) {
    table += text(table.empty() ? "" : "\n", group.title, ":\n");
    for (size_t i = 0; i < group.options.size(); ++i, ++next) {
      const Row& row = rows[next];
      table += text("  ", padded(row.name, name_width), "  ", padded(row.value, value_width), "  ", row.origin, "\n");
    }
  }
  return table;
}

}  // namespace hasten::cli
