// Masked words of a text, as Megatron-Core draws them (bert_samples.h, t5_samples.h).
#pragma once

#include <cstdint>
#include <functional>
#include <vector>

#include "data/dataset/numpy_random.h"
#include "hasten/data/dataset/word_pieces.h"

namespace hasten::data {

// Places of a text, ascending, and the tokens that were there.
struct MaskedSpan {
  std::vector<int64_t> places = {}, labels = {};
};

struct MaskedText {
  std::vector<int64_t> tokens = {};
  std::vector<MaskedSpan> spans = {};  // in the order of the text
};

// Returns the token in the place of one that is masked.
using TokenMask = std::function<int64_t(int64_t token)>;

// `length`: of the sample, by which masked tokens are limited. `mask` may draw from `random`.
MaskedText mask_words(const std::vector<int64_t>& tokens, int64_t length, const WordPieces& pieces,
                      const MaskingOptions& options, NumpyRandom& random, const TokenMask& mask);

}  // namespace hasten::data
