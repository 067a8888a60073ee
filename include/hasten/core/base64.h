// Base64 (RFC 4648, section 4), as HTTP's Basic authorization and etcd's JSON take it.
#pragma once

#include <optional>
#include <string>
#include <string_view>

namespace hasten {

/// Returns the text for `bytes`, padded with '='.
std::string base64(std::string_view bytes);

/// Returns the bytes of `text`, or nothing if it is not base64. Takes the digits of section 5 (- and _, safe in URLs)
/// too. Throws: as base64.
std::optional<std::string> from_base64(std::string_view text);

}  // namespace hasten
