// Looking options up by name; see option_table.h. The table itself is launch_options.cpp.
#include <algorithm>
#include <sstream>

#include "hasten/launch/options/option_table.h"

namespace hasten::launcher {

const Option* find_option(std::span<const OptionGroup> groups, std::string_view name) {
  std::string wanted(name);
  std::replace(wanted.begin(), wanted.end(), '-', '_');
  for (const OptionGroup& group : groups) {
    for (const Option& option : group.options) {
      if (option.name == wanted) return &option;
    }
  }
  return nullptr;
}

std::vector<std::string> option_names(std::span<const OptionGroup> groups) {
  std::vector<std::string> names;
  for (const OptionGroup& group : groups) {
    for (const Option& option : group.options) names.emplace_back(option.name);
  }
  return names;
}

std::vector<std::string> choices_of(const Option& option) {
  std::vector<std::string> choices;
  std::istringstream words{std::string(option.choices)};
  for (std::string word; words >> word;) choices.push_back(word);
  return choices;
}

}  // namespace hasten::launcher
