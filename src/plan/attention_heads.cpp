// See attention_heads.h.
#include "hasten/plan/attention_heads.h"

#include <algorithm>

#include "hasten/core/text.h"

namespace hasten::plan {

std::string problem_with_heads(const std::vector<HeadCount>& counts, int64_t parts) {
  const auto divides = [&](int64_t n) {
    return std::all_of(counts.begin(), counts.end(), [n](const HeadCount& count) { return count.heads % n == 0; });
  };
  if (divides(parts)) return "";
  std::vector<std::string> words;
  std::vector<int64_t> possible;
  for (const HeadCount& count : counts) words.push_back(text(count.heads, ' ', count.name));
  for (int64_t n = 1; n <= counts.front().heads; ++n) {
    if (divides(n)) possible.push_back(n);
  }
  return text(join(words), ", tp ", parts, "; ", join(possible),
              possible.size() == 1 ? " is possible" : " are possible");
}

}  // namespace hasten::plan
