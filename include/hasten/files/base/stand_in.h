// Files that stand in the place of others: what a download leaves behind under the name of the weights.
//
// A clone without Git LFS has pointers, and a link that asks for a login gives a web page. Every reader of a binary
// form asks here before it calls a file damaged.
#pragma once

#include <string>
#include <string_view>

namespace hasten::files {

/// Returns what a file that begins with `head` is in truth, with the remedy: a Git LFS pointer, or a web page. "" for
/// others. 512 bytes are enough.
std::string stand_in_of(std::string_view head);

/// Returns true if bytes are printable characters of a text. 256 are looked at.
bool is_printable(std::string_view head);

/// Throws: DataError with the words for a text in the place of weights.
[[noreturn]] void refuse_text(const std::string& path, std::string_view head);

/// Throws: DataError with those words if the file is one.
void refuse_stand_in(const std::string& path, std::string_view head);

}  // namespace hasten::files
