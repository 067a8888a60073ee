// See indexed.h.
//
// Sources: Megatron-Core's gpt_dataset.py and blended_megatron_dataset_config.py; numpy's RandomState, whose draws the
// orders are made of.
#include "hasten/data/dataset/indexed.h"

#include <ATen/ops/empty.h>

#include <algorithm>
#include <cmath>
#include <numeric>
#include <utility>
#include <vector>

#include "data/dataset/numpy_random.h"
#include "data/dataset/token_copies.h"
#include "hasten/core/count_text.h"
#include "hasten/core/error.h"
#include "hasten/core/number.h"
#include "hasten/core/strings.h"
#include "hasten/data/dataset/rows.h"

namespace hasten::data {
namespace {

const Origin kIndexed{"data"};

std::vector<int64_t> numbers_from(int64_t begin, int64_t end) {
  std::vector<int64_t> all(static_cast<size_t>(end - begin));
  std::iota(all.begin(), all.end(), begin);
  return all;
}

// The sequences of some epochs, shuffled together.
std::vector<int64_t> shuffled_epochs(const SequenceRange& range, int64_t num_epochs, NumpyRandom& random) {
  std::vector<int64_t> all;
  const auto one = numbers_from(range.begin, range.end);
  for (int64_t epoch = 0; epoch < num_epochs; ++epoch) all.insert(all.end(), one.begin(), one.end());
  random.shuffle(all);
  return all;
}

}  // namespace

std::array<SequenceRange, 3> split_sequences(std::string_view splits, int64_t size) {
  std::array<double, 3> parts = {};
  const char mark = splits.find('/') != std::string_view::npos ? '/' : ',';
  size_t count = 0;
  for (const std::string& word : core::split(splits, mark)) {
    const auto number = core::python_number(word);
    if (!number || !(*number >= 0) || !std::isfinite(*number) || count == parts.size()) count = parts.size() + 1;
    if (count > parts.size()) break;
    parts[count++] = *number;
  }
  const double sum = parts[0] + parts[1] + parts[2];
  if (count > parts.size() || !(sum > 0)) {
    throw UsageError(kIndexed, "splits are '", splits,
                     "'; expected up to three numbers of at least 0 for training, validation and test, such as "
                     "\"969, 30, 1\".");
  }
  std::array<SequenceRange, 3> ranges;
  double before = 0;
  for (size_t i = 0; i < parts.size(); ++i) {
    const double behind = before + parts[i] / sum;
    // Python's round: halves go to the even number.
    const auto place = [&](double part) {
      return std::min(static_cast<int64_t>(std::nearbyint(part * static_cast<double>(size))), size);
    };
    ranges[i] = {place(before), place(behind)};
    before = behind;
  }
  return ranges;
}

struct GptSamples::Impl {
  // Where a sample begins: in which of the shuffled sequences, and at which token of it.
  struct Start {
    int64_t place = 0, offset = 0;
  };
  files::IndexedTokens tokens;
  int64_t seq_length, num_samples = 0, num_epochs = 1;
  std::vector<int64_t> sequences = {}, order = {};
  std::vector<Start> starts = {};

  void arrange(const SequenceRange& range, const GptSamplesOptions& options);
  void find_starts(int64_t count);
  void fill(int64_t sample, int64_t* to) const;
};

void GptSamples::Impl::arrange(const SequenceRange& range, const GptSamplesOptions& options) {
  const auto& lengths = tokens.lengths();
  int64_t in_epoch = 0;
  for (int64_t i = range.begin; i < range.end; ++i) in_epoch += lengths[static_cast<size_t>(i)];
  const int64_t needed = std::max<int64_t>(options.num_samples, 1) * seq_length + 1;
  if (in_epoch < 1 || (options.num_samples == 0 && in_epoch < needed)) {
    throw UsageError(kIndexed, "sequences ", range.begin, " to ", range.end, " have ", count_text(in_epoch, "token"),
                     "; expected at least seq_length + 1 = ", seq_length + 1,
                     ". Give this part more sequences, or take shorter samples.");
  }
  num_epochs = options.num_samples == 0 ? 1 : (needed + in_epoch - 1) / in_epoch;
  const auto samples_of = [&](int64_t epochs) { return (epochs * in_epoch - 1) / seq_length; };
  const int64_t all = samples_of(num_epochs), earlier = samples_of(num_epochs - 1);
  num_samples = options.num_samples == 0 ? all : options.num_samples;
  const auto threshold = static_cast<int64_t>(0.8 * static_cast<double>(samples_of(1)));
  const bool is_apart = num_epochs > 1 && options.num_samples - earlier < threshold;
  NumpyRandom random(options.seed);
  sequences = shuffled_epochs(range, is_apart ? num_epochs - 1 : num_epochs, random);
  if (is_apart) {
    const auto last = shuffled_epochs(range, 1, random);
    sequences.insert(sequences.end(), last.begin(), last.end());
  }
  find_starts(all);
  order = numbers_from(0, is_apart ? earlier : all);
  random.shuffle(order);
  if (!is_apart) return;
  auto last = numbers_from(earlier, all);
  random.shuffle(last);
  order.insert(order.end(), last.begin(), last.end());
}

// The starts of `count` samples, and of one behind them. A sample takes seq_length tokens and looks at one more, with
// which the next one begins.
void GptSamples::Impl::find_starts(int64_t count) {
  Start at;
  starts = {at};
  while (static_cast<int64_t>(starts.size()) <= count) {
    int64_t left = seq_length + 1;
    while (left > 0) {
      const auto sequence = static_cast<size_t>(sequences[static_cast<size_t>(at.place)]);
      const int64_t length = tokens.lengths()[sequence] - at.offset;
      left -= length;
      if (left <= 0) {
        at.offset += left + length - 1;
      } else {
        ++at.place;
        at.offset = 0;
      }
    }
    starts.push_back(at);
  }
}

void GptSamples::Impl::fill(int64_t sample, int64_t* to) const {
  Start at = starts[static_cast<size_t>(order[static_cast<size_t>(sample)])];
  const auto bytes = static_cast<int64_t>(files::element_bytes(tokens.dtype()));
  for (int64_t left = seq_length + 1; left > 0; ++at.place, at.offset = 0) {
    const int64_t sequence = sequences[static_cast<size_t>(at.place)];
    const int64_t count = std::min(left, tokens.lengths()[static_cast<size_t>(sequence)] - at.offset);
    if (count > 0) copy_tokens(tokens.dtype(), tokens.tokens(sequence) + at.offset * bytes, count, to);
    to += count;
    left -= count;
  }
}

GptSamples::GptSamples(const files::IndexedTokens& tokens, const SequenceRange& range,
                       const GptSamplesOptions& options) {
  if (options.seq_length < 1 || options.num_samples < 0) {
    throw UsageError(kIndexed, "seq_length = ", options.seq_length, ", num_samples = ", options.num_samples,
                     "; expected at least 1 and 0.");
  }
  if (range.begin < 0 || range.end > tokens.size() || range.size() < 0) {
    throw UsageError(kIndexed, "sequences ", range.begin, " to ", range.end, " of ", tokens.size(),
                     "; expected some that are there.");
  }
  if (tokens.dtype() == files::Dtype::kFloat32 || tokens.dtype() == files::Dtype::kFloat64) {
    throw DataError(kIndexed, "", "an indexed dataset of real numbers; expected integers, the numbers of tokens.");
  }
  const auto impl = std::make_shared<Impl>(Impl{tokens, options.seq_length});
  impl->arrange(range, options);
  impl_ = impl;
}

std::map<std::string, at::Tensor> GptSamples::get_batch(c10::ArrayRef<size_t> indices) {
  const int64_t row = impl_->seq_length + 1;
  const at::Tensor text = at::empty({static_cast<int64_t>(indices.size()), row}, at::TensorOptions(at::kLong));
  auto* to = text.mutable_data_ptr<int64_t>();
  for (const size_t index : indices) {
    check_index(index, *size(), "an indexed dataset");
    impl_->fill(static_cast<int64_t>(index), to);
    to += row;
  }
  return {{"text", text}};
}

std::optional<size_t> GptSamples::size() const {
  return static_cast<size_t>(impl_->num_samples);
}

int64_t GptSamples::num_epochs() const noexcept {
  return impl_->num_epochs;
}

}  // namespace hasten::data
