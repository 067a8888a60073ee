// See rank_place.h.
#include "hasten/parallel/layout/rank_place.h"

#include <string_view>

#include "hasten/core/sentence.h"

namespace hasten::parallel {

void throw_at(const RankPlace& place, const CommError& error) {
  const std::string_view words = error.what();
  if (place.words.empty() || words.find(place.words) != std::string_view::npos) throw CommError(error);
  const size_t begin = words.starts_with('[') ? 1 : 0;
  const std::string room(begin == 1 ? words.substr(begin, words.find(']') - begin) : std::string_view("comm"));
  // The place has the rank's number.
  throw CommError(Origin{room, place.rank, 1}, error.operation(), place.words, ": ", inner_sentence(words));
}

}  // namespace hasten::parallel
