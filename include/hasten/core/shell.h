// Words for a shell: commands in messages can be pasted, whatever a path has in it.
#pragma once

#include <string>
#include <string_view>

namespace hasten {

/// Returns the word as a POSIX shell takes it: as it is if that is one word already, else in single quotes. A word that
/// begins with "-" is no option only behind "--" or "./".
std::string shell_word(std::string_view word);

}  // namespace hasten
