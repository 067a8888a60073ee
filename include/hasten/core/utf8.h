// UTF-8 (RFC 3629): no overlong forms, no surrogates.
#pragma once

#include <cstddef>
#include <string>
#include <string_view>

namespace hasten::core {

/// Returns the number of bytes of the letter at the begin of `text`, 0 if there is none.
size_t utf8_length(std::string_view text);

/// Appends the letter of the number `code`.
void append_utf8(std::string& out, unsigned code);

}  // namespace hasten::core
