// Small operations on texts of files, options and variables: blanks, case, parts, flags.
//
// Letters are those of ASCII, whatever the program's locale is.
#pragma once

#include <optional>
#include <string>
#include <string_view>
#include <vector>

namespace hasten::core {

inline constexpr std::string_view kBlanks = " \t\n\v\f\r";

/// Returns `text` without the `blanks` at its begin and its end. It is part of `text`.
std::string_view trim(std::string_view text, std::string_view blanks = kBlanks);

/// Return `text` with all letters in that case.
std::string lower(std::string_view text);
std::string upper(std::string_view text);

/// Returns the parts between the separators: "a,,b" has three. A separator at the end ends the last part, so "a," has
/// one, and "" has none.
std::vector<std::string> split(std::string_view text, char separator);

/// Returns the value of 1 true yes on y t, 0 false no off n f, in any case (Accelerate's str_to_bool). Nothing for any
/// other text.
std::optional<bool> parse_flag(std::string_view text);

}  // namespace hasten::core
