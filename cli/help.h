// The help of a command, made from its option table: by groups, in colour on a terminal only.
#pragma once

#include <span>
#include <string>

#include "hasten/launch/options/option_table.h"

namespace hasten::cli {

/// The help of a command besides its options.
struct HelpText {
  std::string usage;    ///< "hasten launch [OPTIONS] PROGRAM [ARGUMENTS]"
  std::string summary;  ///< a sentence or two
  std::string note;     ///< after the options; may be empty
};

/// Whether standard output is a terminal with colours (NO_COLOR is not set, TERM is not dumb).
bool colours_wanted();

std::string help_of(const HelpText& text, std::span<const launcher::OptionGroup> groups, bool colours);

}  // namespace hasten::cli
