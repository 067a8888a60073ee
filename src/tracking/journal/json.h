// JSON as a journal has it: written without a tree in the training step, read with a bound on depth.
//
// Damaged and hostile files are read here. Python's NaN, Infinity and -Infinity are taken.
#pragma once

#include <optional>
#include <string>
#include <string_view>

#include "hasten/core/json.h"
#include "hasten/core/value.h"

namespace hasten::tracking {

using core::append_json_string;

/// Appends the shortest text that reads back as the same number. Not finite numbers are "NaN", "Infinity", "-Infinity".
void append_json_number(std::string& out, double number);
void append_json_number(std::string& out, int64_t number);

/// Appends a tree in one line.
void append_json(std::string& out, const core::Value& value);

/// Reads one JSON text. Numbers without fraction and exponent that fit are ints. Returns nothing, and the reason with
/// its place, if the text is no JSON or is nested deeper than 64.
std::optional<core::Value> read_json(std::string_view text, std::string* reason = nullptr);

}  // namespace hasten::tracking
