// The options of the smaller commands, in the form of hasten launch's (option_table.h), and what all of them
// do with a command line.
#pragma once

#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "hasten/launch/config/config_file.h"
#include "hasten/launch/options/command_line.h"

namespace hasten::cli {

const std::vector<launcher::OptionGroup>& config_options();
const std::vector<launcher::OptionGroup>& env_options();
const std::vector<launcher::OptionGroup>& test_options();
const std::vector<launcher::OptionGroup>& tpu_config_options();
const std::vector<launcher::OptionGroup>& estimate_memory_options();
const std::vector<launcher::OptionGroup>& track_options();
const std::vector<launcher::OptionGroup>& board_options();
const std::vector<launcher::OptionGroup>& plan_options();
const std::vector<launcher::OptionGroup>& to_fsdp2_options();
const std::vector<launcher::OptionGroup>& watch_options();
const std::vector<launcher::OptionGroup>& stacks_options();
const std::vector<launcher::OptionGroup>& no_options();

/// Reads a command line that has nothing but options and up to `most_words` other words.
/// Throws: UsageError for anything that is wrong with it.
launcher::CommandLine read_options(const std::string& command, const std::vector<launcher::OptionGroup>& options,
                                   const std::vector<std::string>& words, size_t most_words = 0);

/// Refuses given options that only other actions of the command read. `owners`: an option's name, and those actions.
/// Throws: UsageError with the option and its actions.
void refuse_options_of_others(const std::string& command, const launcher::CommandLine& line, const std::string& action,
                              const std::vector<std::pair<std::string, std::vector<std::string>>>& owners);

/// The file of --config_file, or the default one if there is one.
/// Throws: UsageError as load_config.
std::optional<launcher::Config> chosen_config(const launcher::CommandLine& line, const Environment& environment);

}  // namespace hasten::cli
