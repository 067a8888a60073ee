// JSON text: the one reader of files, journals and messages, and the writer behind Value::to_json.
//
// Files come from people, Python and other machines, so the reader has forms. It keeps no recursion and a bound on
// depth, so that a hostile text ends in an error.
#pragma once

#include <cstddef>
#include <optional>
#include <string>
#include <string_view>

#include "hasten/core/value.h"

namespace hasten::core {

/// The kinds of JSON that are read. The defaults are those of the standard (RFC 8259).
struct JsonForm {
  /// Takes comments (//, #, /* */), commas before a closing bracket, a byte order mark, and tabs in texts.
  bool comments = false;
  /// Takes NaN, Infinity and -Infinity. A number beyond the range of doubles is infinite, otherwise an error.
  bool python_numbers = false;
  /// Refuses a key that occurs twice in one map. Otherwise its last value counts, at the place of the first.
  bool unique_keys = false;
  /// Reads integers beyond 64 bits as doubles. Otherwise they are an error.
  bool large_integers = true;
  /// Reads {"$double": "nan"}, "inf" and "-inf" as the number, which Value::to_json writes so.
  bool named_doubles = false;
  /// Maps and lists within each other. A Value ends level by level, on the stack.
  size_t max_depth = 10'000;
};

/// The first mistake in a text.
struct JsonError {
  enum class Kind { kSyntax, kRepeatedKey, kLargeNumber, kDepth };
  Kind kind = Kind::kSyntax;
  std::string subject = {};  ///< the repeated key, or the number as it is written
  std::string found = {}, expected = {};
  size_t offset = 0, line = 1, column = 1;  ///< of its first byte; lines and columns count from 1

  /// Returns "line 1, column 9: '}'; expected a value".
  std::string text() const;
};

/// Reads one JSON text. Numbers without fraction and exponent that fit are ints. Returns nothing, and the mistake in
/// `error`, if the text is not of that form.
std::optional<Value> read_json(std::string_view text, const JsonForm& form, JsonError* error = nullptr);

struct JsonStyle {
  int indent = -1;     ///< spaces a level; below 0: one line
  bool ascii = false;  ///< other letters are written as `\u` escapes
};

/// Returns the JSON text of `value`, with non-finite numbers as Value::to_json has them.
std::string write_json(const Value& value, const JsonStyle& style = {});

/// Appends a quoted string. Bytes that are no UTF-8 become U+FFFD.
void append_json_string(std::string& out, std::string_view text, bool ascii = false);

}  // namespace hasten::core
