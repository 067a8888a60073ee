// The words of `--redirects`, `--tee`, `--local_ranks_filter` and the filters: which streams, of which
// workers, which lines.
#pragma once

#include <map>
#include <optional>
#include <string>
#include <vector>

namespace hasten::launcher {

/// Streams as bits: 1 output, 2 error.
struct StreamChoice {
  int of_all = 0;
  std::map<int, int> by_local_rank = {};  ///< if there are any, the others have none

  int of(int local_rank) const {
    const auto found = by_local_rank.find(local_rank);
    return found == by_local_rank.end() ? of_all : found->second;
  }
};

/// "3" for all, or "0:3,1:2" for some; "" is "0". Nothing if it is neither.
std::optional<StreamChoice> read_stream_choice(const std::string& words);

/// "apple,orange"; a comma in a word is written twice, as torchrun has it. Without blanks around the words.
std::vector<std::string> read_words(const std::string& words);

/// "0,2"; "" is none. Nothing if it is no list of numbers.
std::optional<std::vector<int>> read_local_ranks(const std::string& words);

}  // namespace hasten::launcher
