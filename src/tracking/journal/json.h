// JSON as a journal has it: written without a tree, read with a bound on depth.
//
// core::Value's own JSON goes through a library. A journal line is written in the training step, and read by programs
// that get damaged and hostile files. So both are done here. Read are also Python's NaN, Infinity and -Infinity.
#pragma once

#include <optional>
#include <string>
#include <string_view>

#include "hasten/core/value.h"

namespace hasten::tracking {

/// Appends a quoted string; bytes that are no UTF-8 become U+FFFD. Collective: no. Blocks: no. Throws: nothing but
/// std::bad_alloc.
void append_json_string(std::string& out, std::string_view text);

/// Appends the shortest text that reads back as the same number. Not finite numbers are "NaN", "Infinity", "-Infinity".
void append_json_number(std::string& out, double number);
void append_json_number(std::string& out, int64_t number);

/// Appends a tree in one line.
void append_json(std::string& out, const core::Value& value);

/// Reads one JSON text. Numbers without fraction and exponent that fit are ints. Returns nothing, and the reason with
/// its offset, if the text is no JSON or is nested deeper than 64. Collective: no. Blocks: no. Throws: nothing but
/// std::bad_alloc.
std::optional<core::Value> read_json(std::string_view text, std::string* reason = nullptr);

}  // namespace hasten::tracking
