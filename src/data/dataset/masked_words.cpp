// See masked_words.h. Source: Megatron-Core's masked_dataset.py.
#include "data/dataset/masked_words.h"

#include <algorithm>
#include <cmath>
#include <numeric>

namespace hasten::data {
namespace {

// The places of each word, or of each piece.
std::vector<std::vector<int64_t>> words_of(const std::vector<int64_t>& tokens, const WordPieces& pieces,
                                           bool whole_words) {
  std::vector<std::vector<int64_t>> words;
  for (size_t i = 0; i < tokens.size(); ++i) {
    if (tokens[i] == pieces.cls_token_id || tokens[i] == pieces.sep_token_id) continue;
    if (!whole_words || words.empty() || !pieces.continues_word(tokens[i])) words.emplace_back();
    words.back().push_back(static_cast<int64_t>(i));
  }
  return words;
}

// The share of runs of 1, 2, … words.
std::vector<double> shares_of_lengths(const MaskingOptions& options) {
  std::vector<double> shares;
  for (int64_t n = 1; n <= options.max_ngram; ++n) shares.push_back(1.0 / static_cast<double>(n));
  const double sum = std::accumulate(shares.begin(), shares.end(), 0.0);
  for (double& share : shares) share /= sum;
  if (options.longer_ngrams) std::reverse(shares.begin(), shares.end());
  return shares;
}

// The places of at most `count` words from one on.
std::vector<int64_t> places_of(const std::vector<std::vector<int64_t>>& words, size_t first, int64_t count) {
  std::vector<int64_t> places;
  const size_t behind = std::min(words.size(), first + static_cast<size_t>(count));
  for (size_t word = first; word < behind; ++word) places.insert(places.end(), words[word].begin(), words[word].end());
  return places;
}

}  // namespace

MaskedText mask_words(const std::vector<int64_t>& tokens, int64_t length, const WordPieces& pieces,
                      const MaskingOptions& options, NumpyRandom& random, const TokenMask& mask) {
  MaskedText out{.tokens = tokens};
  const auto words = words_of(tokens, pieces, options.whole_words);
  const auto shares = shares_of_lengths(options);
  // nearbyint is Python's round: halves go to the even number.
  const double most =
      std::min(options.masking_probability * static_cast<double>(length),
               std::max(1.0, std::nearbyint(static_cast<double>(tokens.size()) * options.masking_probability)));
  std::vector<int64_t> order(words.size());
  std::iota(order.begin(), order.end(), 0);
  random.shuffle(order);
  std::vector<bool> is_masked(tokens.size());
  int64_t num_masked = 0;
  for (const int64_t word : order) {
    if (static_cast<double>(num_masked) >= most) break;
    int64_t count = options.geometric_ngrams ? std::clamp<int64_t>(random.geometric(0.2), 1, options.max_ngram)
                                             : static_cast<int64_t>(random.choice(shares)) + 1;
    // Fewer words, until they fit.
    std::vector<int64_t> places;
    for (; count > 0; --count) {
      places = places_of(words, static_cast<size_t>(word), count);
      if (most >= static_cast<double>(num_masked) + static_cast<double>(places.size())) break;
    }
    if (count == 0) continue;
    if (std::any_of(places.begin(), places.end(), [&](int64_t at) { return is_masked[static_cast<size_t>(at)]; })) {
      continue;
    }
    MaskedSpan span{.places = places};
    for (const int64_t at : places) {
      const auto place = static_cast<size_t>(at);
      is_masked[place] = true;
      out.tokens[place] = mask(tokens[place]);
      span.labels.push_back(tokens[place]);
    }
    num_masked += static_cast<int64_t>(places.size());
    out.spans.push_back(std::move(span));
  }
  std::sort(out.spans.begin(), out.spans.end(),
            [](const MaskedSpan& a, const MaskedSpan& b) { return a.places[0] < b.places[0]; });
  return out;
}

}  // namespace hasten::data
