// Looking options up by name; see option_table.h. The table itself is launch_options.cpp.
#include <algorithm>
#include <array>
#include <sstream>

#include "hasten/launch/options/option_table.h"

namespace hasten::launcher {
namespace {

using NamePair = std::pair<std::string_view, std::string_view>;

// Names that releases 0.20 to 1.14 of Accelerate had for an option of today.
constexpr std::array<NamePair, 1> kOldNames{{{"fsdp_backward_prefetch_policy", "fsdp_backward_prefetch"}}};

// Keys that `accelerate config` writes and `accelerate launch` does not read, beside the options that they mean.
constexpr std::array<NamePair, 3> kInterviewKeys{{{"amax_history_length", "fp8_amax_history_len"},
                                                  {"amax_compute_algorithm", "fp8_amax_compute_algo"},
                                                  {"optimization_level", "fp8_opt_level"}}};

// Flags and keys of those releases that 1.15 no longer has, and keys that lost their meaning.
constexpr std::array<NamePair, 7> kRemoved{{
    {"ipex", "Accelerate has removed Intel's extension; take it out"},
    {"use_xpu", "Accelerate has removed it; take it out"},
    {"ipex_config", "Accelerate has removed Intel's extension; take it out"},
    {"mpirun_ccl", "Accelerate has removed it; take it out"},
    {"use_tp", "write --use_parallelism_config"},
    {"tp_size", "write parallelism_config_tp_size"},
    {"tp_config", "its tp_size is parallelism_config_tp_size of parallelism_config"},
}};

template <size_t N>
std::string_view value_of(const std::array<NamePair, N>& pairs, std::string_view name) {
  for (const auto& [first, second] : pairs) {
    if (first == name) return second;
  }
  return {};
}

}  // namespace

const Option* find_option(std::span<const OptionGroup> groups, std::string_view name) {
  std::string requested(name);
  std::replace(requested.begin(), requested.end(), '-', '_');
  if (const auto today = value_of(kOldNames, requested); !today.empty()) requested = today;
  for (const OptionGroup& group : groups) {
    for (const Option& option : group.options) {
      if (option.name == requested) return &option;
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

std::vector<std::string> keys_of(const Option& option) {
  if (option.key.empty()) return {};
  std::vector<std::string> keys{std::string(option.key)};
  if (option.section.empty()) return keys;
  const std::string_view prefix = option.section.substr(0, option.section.rfind("config"));
  if (option.key.starts_with(prefix)) keys.emplace_back(option.key.substr(prefix.size()));
  for (const auto& [key, name] : kInterviewKeys) {
    if (name == option.name) keys.emplace_back(key);
  }
  for (const auto& [old, name] : kOldNames) {
    if (name == option.name) keys.emplace_back(old);
  }
  return keys;
}

std::string_view removed_name(std::string_view name) {
  return value_of(kRemoved, name);
}

std::vector<std::string> choices_of(const Option& option) {
  std::vector<std::string> choices;
  std::istringstream words{std::string(option.choices)};
  for (std::string word; words >> word;) choices.push_back(word);
  return choices;
}

}  // namespace hasten::launcher
