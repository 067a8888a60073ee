// Numbers and texts as pickles write them; private to the room.
#pragma once

#include <optional>
#include <string>
#include <string_view>

#include "hasten/files/python/python_value.h"

namespace hasten::files {

/// Returns the integer of little-endian two's complement bytes, nothing for more than 4096 bytes.
std::optional<PythonValue> int_of_bytes(std::string_view bytes);
/// Returns the bytes of an integer in the shortest little-endian two's complement form.
std::string bytes_of_int(std::string_view decimal);

/// Reads the line of opcode 'I' (int or bool), 'L' (int with an L) or 'F' (float).
std::optional<PythonValue> number_of_text(std::string_view line, unsigned char opcode);

std::string utf8_of_latin1(std::string_view bytes);
/// Returns the Latin-1 bytes of UTF-8 text, nothing if a character is above 255.
std::optional<std::string> latin1_of_utf8(std::string_view text);

/// Reads a quoted text with Python's escapes.
std::optional<std::string> unquoted(std::string_view line);
/// Reads a raw-unicode-escape text.
std::optional<std::string> unescaped(std::string_view line);

}  // namespace hasten::files
