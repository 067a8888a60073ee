// See stream_choice.h.
#include "hasten/launch/output/stream_choice.h"

#include <algorithm>
#include <sstream>

#include "hasten/core/number.h"
#include "hasten/core/strings.h"

namespace hasten::launcher {
namespace {

constexpr size_t kMostDigits = 9;

std::optional<int> local_rank_in(const std::string& word) {
  const bool good =
      !word.empty() && word.size() <= kMostDigits && word.find_first_not_of("0123456789") == std::string::npos;
  return good ? core::whole_number<int>(word) : std::nullopt;
}

std::optional<int> streams_in(const std::string& word) {
  return word.size() == 1 && word[0] >= '0' && word[0] <= '3' ? std::optional(word[0] - '0') : std::nullopt;
}

std::vector<std::string> parts_of(const std::string& words) {
  auto parts = core::split(words, ',');
  if (words.ends_with(',')) parts.emplace_back();
  return parts;
}

}  // namespace

std::optional<StreamChoice> read_stream_choice(const std::string& words) {
  StreamChoice choice;
  if (words.empty()) return choice;
  if (const auto all = streams_in(words)) {
    choice.of_all = *all;
    return choice;
  }
  for (const std::string& part : parts_of(words)) {
    const size_t colon = part.find(':');
    if (colon == std::string::npos) return std::nullopt;
    const auto local_rank = local_rank_in(part.substr(0, colon));
    const auto streams = streams_in(part.substr(colon + 1));
    if (!local_rank || !streams) return std::nullopt;
    choice.by_local_rank[*local_rank] = *streams;
  }
  return choice;
}

std::vector<std::string> read_words(const std::string& words) {
  std::vector<std::string> result(1);
  for (size_t i = 0; i < words.size(); ++i) {
    const bool doubled = words[i] == ',' && i + 1 < words.size() && words[i + 1] == ',';
    if (doubled) ++i;
    if (words[i] == ',' && !doubled) {
      result.emplace_back();
    } else {
      result.back() += words[i];
    }
  }
  for (std::string& word : result) word = std::string(core::trim(word, " \t"));
  std::erase(result, "");
  return result;
}

std::optional<std::vector<int>> read_local_ranks(const std::string& words) {
  std::vector<int> ranks;
  for (const std::string& part : parts_of(words)) {
    const auto rank = local_rank_in(part);
    if (!rank) return std::nullopt;
    ranks.push_back(*rank);
  }
  return ranks;
}

}  // namespace hasten::launcher
