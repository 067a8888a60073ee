// See word_pieces.h.
#include "hasten/data/dataset/word_pieces.h"

#include <string_view>
#include <unordered_map>

#include "hasten/core/error.h"
#include "hasten/data/dataset/text_lines.h"

namespace hasten::data {

WordPieces WordPieces::read(const std::string& vocab_file, int64_t num_extra_ids) {
  if (num_extra_ids < 0) {
    throw UsageError(Origin{"data"}, "num_extra_ids = ", num_extra_ids, " of a vocabulary; expected at least 0.");
  }
  const TextLines lines(vocab_file);
  WordPieces out;
  std::unordered_map<std::string_view, int64_t*> special = {
      {"[CLS]", &out.cls_token_id}, {"[SEP]", &out.sep_token_id}, {"[MASK]", &out.mask_token_id},
      {"[PAD]", &out.pad_token_id}, {"[BOS]", &out.bos_token_id}, {"[EOS]", &out.eos_token_id},
  };
  const auto count = static_cast<int64_t>(*lines.size());
  for (int64_t i = 0; i < count; ++i) {
    const std::string_view piece = lines.line(static_cast<size_t>(i));
    out.continues.push_back(piece.starts_with("##"));
    if (const auto found = special.find(piece); found != special.end()) *found->second = i;
  }
  out.vocab_size = count;
  for (int64_t* const id : {&out.bos_token_id, &out.eos_token_id}) {
    if (*id < 0) *id = out.vocab_size++;
  }
  for (int64_t i = 0; i < num_extra_ids; ++i) out.extra_ids.push_back(out.vocab_size++);
  return out;
}

}  // namespace hasten::data
