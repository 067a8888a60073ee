// Ends of sentences and messages inside of messages, so that an error reads as whole sentences with one "[room]".
#pragma once

#include <string>
#include <string_view>
#include <vector>

namespace hasten {

/// Returns the end of a sentence about an unknown `word`: ", did you mean 'x'?" for the closest of `candidates` (see
/// `closest` in core/text.h), "." if none is near. Another sentence or nothing follows.
std::string guess_end(std::string_view word, const std::vector<std::string>& candidates);

/// Returns the words of another error's message, to stand inside of a message: without "[room] rank r/n: " in front,
/// and without the period behind.
std::string inner_words(std::string_view message);

/// Returns the same with the end that it has, to stand last.
std::string inner_sentence(std::string_view message);

}  // namespace hasten
