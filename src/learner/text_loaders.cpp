// See text_loaders.h.
#include "hasten/learner/text_loaders.h"
#include "hasten/core/strings.h"

#include <ATen/ATen.h>

#include <algorithm>
#include <cctype>
#include <numeric>

#include "learner/at_least.h"

namespace hasten::learner {

std::vector<std::string> tokenize(const std::string& text) {
  std::vector<std::string> tokens;
  for (size_t i = 0; i < text.size();) {
    const auto c = static_cast<unsigned char>(text[i]);
    if (std::isspace(c)) {
      ++i;
      continue;
    }
    size_t end = i + 1;
    if (std::isalnum(c) || c >= 128) {
      while (end < text.size() &&
             (std::isalnum(static_cast<unsigned char>(text[end])) || static_cast<unsigned char>(text[end]) >= 128))
        ++end;
    }
    const std::string word = text.substr(i, end - i);
    if (std::isupper(c)) tokens.emplace_back("xxmaj");
    tokens.push_back(core::lower(word));
    i = end;
  }
  return tokens;
}

Vocab Vocab::of(const std::vector<std::string>& texts, int64_t least, size_t size) {
  std::map<std::string, int64_t> counts;
  for (const auto& text : texts) {
    for (auto& token : tokenize(text)) ++counts[std::move(token)];
  }
  std::vector<std::pair<int64_t, std::string>> sorted;
  for (const auto& [word, count] : counts) {
    if (count >= least) sorted.emplace_back(-count, word);
  }
  std::sort(sorted.begin(), sorted.end());
  Vocab vocab;
  vocab.words_ = {"xxunk", "xxpad", "xxbos"};
  for (size_t i = 0; i < std::min(size, sorted.size()); ++i) vocab.words_.push_back(sorted[i].second);
  for (size_t i = 0; i < vocab.words_.size(); ++i) vocab.index_[vocab.words_[i]] = static_cast<int64_t>(i);
  return vocab;
}

std::vector<int64_t> Vocab::numbers(const std::string& text) const {
  std::vector<int64_t> result{kStart};
  for (const auto& token : tokenize(text)) {
    const auto found = index_.find(token);
    result.push_back(found == index_.end() ? kUnknown : found->second);
  }
  return result;
}

std::vector<Batch> language_model_batches(const std::vector<std::vector<int64_t>>& texts, const LanguageModelOptions& o,
                                          int rank, int world_size) {
  std::vector<int64_t> stream;
  for (const auto& text : texts) stream.insert(stream.end(), text.begin(), text.end());
  at_least(1, "LanguageModelOptions::seq_len", o.seq_len);
  const int64_t rows = at_least(1, "LanguageModelOptions::batch_size", o.batch_size) * world_size;
  const int64_t length = (static_cast<int64_t>(stream.size()) - 1) / rows;
  if (length < 1) {
    throw UsageError(Origin{"learner", rank, world_size}, "a language model on ", stream.size(), " tokens in ", rows,
                     " rows; expected more tokens than rows. Take a smaller batch_size.");
  }
  const auto all = at::tensor(at::ArrayRef<int64_t>(stream.data(), static_cast<size_t>(rows * length + 1)), at::kLong);
  const auto x =
      all.slice(0, 0, rows * length).reshape({rows, length}).slice(0, rank * o.batch_size, (rank + 1) * o.batch_size);
  const auto y = all.slice(0, 1).reshape({rows, length}).slice(0, rank * o.batch_size, (rank + 1) * o.batch_size);
  std::vector<Batch> batches;
  for (int64_t at = 0; at < length; at += o.seq_len) {
    const auto end = std::min(at + o.seq_len, length);
    batches.push_back({{x.slice(1, at, end).contiguous()}, {y.slice(1, at, end).contiguous()}});
  }
  return batches;
}

std::vector<Batch> text_batches(const std::vector<std::vector<int64_t>>& texts, const std::vector<int64_t>& classes,
                                const TextBatchOptions& o) {
  if (texts.size() != classes.size()) {
    throw UsageError(Origin{"learner"}, texts.size(), " texts with ", classes.size(),
                     " classes; expected a class for each.");
  }
  at_least(1, "TextBatchOptions::max_len", o.max_len);
  const auto batch_size = static_cast<size_t>(at_least(1, "TextBatchOptions::batch_size", o.batch_size));
  std::vector<size_t> order(texts.size());
  std::iota(order.begin(), order.end(), size_t{0});
  std::stable_sort(order.begin(), order.end(), [&](size_t a, size_t b) { return texts[a].size() > texts[b].size(); });
  std::vector<Batch> batches;
  for (size_t begin = 0; begin < order.size(); begin += batch_size) {
    const size_t end = std::min(order.size(), begin + batch_size);
    const auto longest = std::min<int64_t>(o.max_len, static_cast<int64_t>(texts[order[begin]].size()));
    auto ids = at::full({static_cast<int64_t>(end - begin), longest}, Vocab::kPadding, at::kLong);
    auto labels = at::empty({static_cast<int64_t>(end - begin)}, at::kLong);
    for (size_t i = begin; i < end; ++i) {
      const auto& text = texts[order[i]];
      const size_t kept = std::min(text.size(), static_cast<size_t>(longest));
      auto* row =
          ids.mutable_data_ptr<int64_t>() + static_cast<int64_t>(i - begin + 1) * longest - static_cast<int64_t>(kept);
      std::copy(text.end() - static_cast<std::ptrdiff_t>(kept), text.end(), row);
      labels.mutable_data_ptr<int64_t>()[i - begin] = classes[order[i]];
    }
    batches.push_back({{ids}, {labels}});
  }
  return batches;
}

}  // namespace hasten::learner
