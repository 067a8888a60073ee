// Every option of `hasten launch` in one table: its names, its values, and the other places that set it.
//
// The names are those of torchrun 2.13, `accelerate launch` 1.15 and `python -m torch.distributed.launch`, so that a
// command line of theirs works here. The help, the checks, the configuration file, the shell completion and --explain
// all read this table. Words are split by command_line.h, values chosen by settings.h.
#pragma once

#include <cstdint>
#include <span>
#include <string>
#include <string_view>
#include <vector>

namespace hasten::launcher {

/// The kind of an option's values.
enum class OptionKind {
  kSwitch,   ///< nothing: it is on when it is there
  kFlag,     ///< true or false, in any of the spellings of Environment::flag
  kInteger,  ///< a whole number within `least` and `most`
  kReal,     ///< a number within `least` and `most`
  kText,     ///< any text
  kChoice,   ///< one of `choices`
  kList,     ///< any text; may be given several times
};

/// The peers that have the option; there can be several.
enum Peer : unsigned { kHasten = 1, kTorchrun = 2, kAccelerate = 4, kTorchLaunch = 8 };

struct Option {
  std::string_view name;  ///< with underscores, without the leading dashes
  char letter = 0;        ///< the short form, 0 for none
  OptionKind kind = OptionKind::kText;
  unsigned peers = kAccelerate;
  std::string_view fallback = {};  ///< the default as it would be typed; empty: not set
  std::string_view variable = {};  ///< where it can be set in the environment; empty: nowhere
  std::string_view section = {};   ///< the mapping of the configuration file that holds it; empty: its root
  std::string_view key = {};       ///< its key there; empty: it is not in the file
  std::string_view choices = {};   ///< separated by blanks
  double least = INT32_MIN;
  double most = INT32_MAX;
  std::string_view value = {};  ///< the value's name in the help, empty: made from the kind
  std::string_view help = {};
};

/// Options that the help shows together, under one title.
struct OptionGroup {
  std::string_view title;
  std::string_view note;  ///< a line under the title, may be empty
  std::vector<Option> options;
};

/// Returns all options of `hasten launch`.
const std::vector<OptionGroup>& launch_options();

/// Returns the option of this name, nullptr if there is none; dashes count as underscores. A name that an older release
/// of Accelerate had (from 0.20) finds the option of today.
const Option* find_option(std::span<const OptionGroup> groups, std::string_view name);

/// Returns all names, with underscores.
std::vector<std::string> option_names(std::span<const OptionGroup> groups);

/// Returns the keys under which the configuration file may have the option. Its own comes first, then that without its
/// section's prefix (backend in fp8_config), then those of Accelerate's interview and of older releases.
std::vector<std::string> keys_of(const Option& option);

/// Returns the reason why a flag or a key of an older Accelerate is gone, and what to write today; "" for others.
std::string_view removed_name(std::string_view name);

/// Returns the words of Option::choices.
std::vector<std::string> choices_of(const Option& option);

}  // namespace hasten::launcher
