// From the words of a command line to options and what follows them.
//
// Options are read from a table (option_table.h), so every command of `hasten` reads the same forms. These are --name
// value, --name=value, -n value, -nvalue, and names with underscores or dashes. Options end at the first word that is
// neither an option nor an option's value. A single message lists all mistakes.
#pragma once

#include <map>
#include <span>
#include <string>
#include <vector>

#include "hasten/launch/options/option_table.h"

namespace hasten::launcher {

/// An option of the command line.
struct GivenOption {
  std::string written;              ///< as it was typed, without its value: "-n", "--num-processes"
  std::vector<std::string> values;  ///< the last one counts, unless the option is a list; "True" for a switch
};

struct CommandLine {
  std::map<std::string, GivenOption> options;  ///< by name in the table
  std::vector<std::string> rest;               ///< words after the options, without a leading "--"
  std::vector<std::string> problems;           ///< mistakes, each a sentence without its full stop
  bool help = false;                           ///< -h or --help is among the options

  bool has(const std::string& name) const { return options.count(name) != 0; }
  /// Returns the last value, "" if the option is not there.
  std::string text(const std::string& name) const;
};

/// Reads `words`. A value that does not fit its option, an unknown option or a missing value becomes one of
/// `problems`.
CommandLine read_command_line(std::span<const OptionGroup> groups, const std::vector<std::string>& words);

/// Returns the mistake in `value` ("'abc' is not a whole number between 1 and 8"), "" if it fits the option.
std::string problem_with(const Option& option, const std::string& value);

/// Throws a single error for all `problems`: "[launch] first. See hasten launch --help." or a list. Throws: UsageError,
/// always.
[[noreturn]] void refuse(std::string_view room, const std::vector<std::string>& problems, std::string_view advice);

}  // namespace hasten::launcher
