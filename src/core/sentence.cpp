// See sentence.h.
#include "hasten/core/sentence.h"

#include <algorithm>

#include "hasten/core/digit.h"
#include "hasten/core/text.h"

namespace hasten {
namespace {

// Returns the bytes of "rank r/n: " at the front of `words`, 0 if there is none.
size_t rank_bytes(std::string_view words) {
  constexpr std::string_view kRank = "rank ";
  if (words.substr(0, kRank.size()) != kRank) return 0;
  const auto after_digits = [&](size_t at) {
    return static_cast<size_t>(std::find_if_not(words.begin() + at, words.end(), core::is_digit) - words.begin());
  };
  const size_t slash = after_digits(kRank.size());
  if (slash == kRank.size() || slash >= words.size() || words[slash] != '/') return 0;
  const size_t colon = after_digits(slash + 1);
  return colon > slash + 1 && words.substr(colon, 2) == ": " ? colon + 2 : 0;
}

}  // namespace

std::string guess_end(std::string_view word, const std::vector<std::string>& candidates) {
  const std::string guess = did_you_mean(word, candidates);
  return guess.empty() ? "." : guess;
}

std::string inner_sentence(std::string_view message) {
  const size_t bracket = message.empty() || message[0] != '[' ? std::string_view::npos : message.find("] ");
  if (bracket != std::string_view::npos && message.substr(0, bracket).find(' ') == std::string_view::npos) {
    message.remove_prefix(bracket + 2);
    message.remove_prefix(rank_bytes(message));
  }
  return std::string(message);
}

std::string inner_words(std::string_view message) {
  std::string words = inner_sentence(message);
  if (words.ends_with('.')) words.pop_back();
  return words;
}

}  // namespace hasten
