// See megatron_data.h.
#include "hasten/plugins/megatron_data.h"

#include <algorithm>
#include <array>
#include <utility>

#include "hasten/core/error.h"
#include "hasten/files/folders/indexed_tokens.h"
#include "hasten/plugins/megatron.h"

namespace hasten::parallel {
namespace {

const Origin kMegatronData{"megatron"};

// The plugin of the program. Fields of the data have no variables, so that the environment is not needed.
std::optional<plan::MegatronPlugin> plugin_of(const AcceleratorOptions& options) {
  return options.megatron_lm ? read_megatron(options, Environment::of({})) : std::nullopt;
}

int64_t number_or(const std::optional<plan::MegatronPlugin>& plugin, const char* field, int64_t otherwise) {
  return plugin && !(*plugin)[field].is_null() ? plugin->number(field) : otherwise;
}

// Samples of training, validation and test, as Megatron counts them.
std::array<int64_t, 3> samples_of(const MegatronDataOptions& data, const std::optional<plan::MegatronPlugin>& plugin,
                                  int64_t batch) {
  std::array<int64_t, 3> samples = {data.train_samples, data.valid_samples, data.test_samples};
  const int64_t steps = number_or(plugin, "train_iters", 0);
  if (steps == 0) return samples;
  const int64_t evaluations = plugin->number("eval_iters"), interval = plugin->number("eval_interval");
  const std::array<int64_t, 3> otherwise = {steps * batch, (steps / interval + 1) * evaluations * batch,
                                            evaluations * batch};
  for (size_t i = 0; i < samples.size(); ++i) {
    if (samples[i] == 0) samples[i] = otherwise[i];
  }
  return samples;
}

const char* name_of(MegatronDataKind kind) {
  return kind == MegatronDataKind::kGpt ? "GPT" : kind == MegatronDataKind::kBert ? "BERT" : "T5";
}

// Tokens of a sample, of T5's encoder and decoder.
struct Lengths {
  int64_t tokens = 0, decoder = 0;
};

Lengths lengths_of(const MegatronDataOptions& data, const std::optional<plan::MegatronPlugin>& plugin) {
  const bool is_t5 = data.kind == MegatronDataKind::kT5;
  Lengths lengths{data.seq_length, data.decoder_seq_length};
  if (lengths.tokens == 0 && is_t5) lengths.tokens = number_or(plugin, "encoder_seq_length", 0);
  if (lengths.tokens == 0) lengths.tokens = number_or(plugin, "seq_length", 0);
  if (lengths.decoder == 0) lengths.decoder = number_or(plugin, "decoder_seq_length", 0);
  if (lengths.tokens == 0) {
    throw UsageError(kMegatronData,
                     "a MegatronLmDummyDataLoader without a length of its samples. Set its seq_length, or that of "
                     "MegatronLmPlugin.");
  }
  if (is_t5 && lengths.decoder == 0) {
    throw UsageError(kMegatronData,
                     "a MegatronLmDummyDataLoader for T5 without a length of the decoder. Set its decoder_seq_length, "
                     "or that of MegatronLmPlugin.");
  }
  return lengths;
}

data::WordPieces pieces_of(const MegatronDataOptions& data) {
  if (data.kind == MegatronDataKind::kGpt) return {};
  if (data.pieces) return *data.pieces;
  if (data.vocab_file.empty()) {
    throw UsageError(kMegatronData, "a MegatronLmDummyDataLoader for ", name_of(data.kind),
                     " without a vocabulary. Set its vocab_file, or pieces.");
  }
  return data::WordPieces::read(data.vocab_file, data.vocab_extra_ids);
}

struct Source {
  const MegatronDataOptions& data;
  Lengths lengths;
  data::WordPieces pieces;
  files::IndexedTokens tokens;

  // What splits_string splits.
  int64_t size() const {
    if (data.kind == MegatronDataKind::kGpt) return tokens.size();
    return std::max<int64_t>(static_cast<int64_t>(tokens.documents().size()) - 1, 0);
  }
  MegatronSamples samples(const data::SequenceRange& range, int64_t num_samples) const;
};

MegatronSamples Source::samples(const data::SequenceRange& range, int64_t num_samples) const {
  if (data.kind == MegatronDataKind::kBert) {
    data::BertSamplesOptions options{.seq_length = lengths.tokens,
                                     .num_samples = num_samples,
                                     .seed = data.seed,
                                     .sentence_order = data.bert_binary_head,
                                     .pieces = pieces};
    if (data.masking) options.masking = *data.masking;
    return MegatronSamples(data::BertSamples(tokens, range, options));
  }
  if (data.kind == MegatronDataKind::kT5) {
    data::T5SamplesOptions options{.seq_length = lengths.tokens,
                                   .decoder_seq_length = lengths.decoder,
                                   .num_samples = num_samples,
                                   .seed = data.seed,
                                   .pieces = pieces};
    if (data.masking) options.masking = *data.masking;
    return MegatronSamples(data::T5Samples(tokens, range, options));
  }
  return MegatronSamples(
      data::GptSamples(tokens, range, {.seq_length = lengths.tokens, .num_samples = num_samples, .seed = data.seed}));
}

}  // namespace

std::map<std::string, at::Tensor> MegatronSamples::get_batch(c10::ArrayRef<size_t> indices) {
  return std::visit([&](auto& samples) { return samples.get_batch(indices); }, samples_);
}

std::optional<size_t> MegatronSamples::size() const {
  return std::visit([](const auto& samples) { return samples.size(); }, samples_);
}

MegatronLoaders make_megatron_loaders(const MegatronDataOptions& data, const AcceleratorOptions& options,
                                      int data_ranks) {
  const auto plugin = plugin_of(options);
  const Lengths lengths = lengths_of(data, plugin);
  if (data.micro_batch_size < 1) {
    throw UsageError(kMegatronData, "micro_batch_size of a MegatronLmDummyDataLoader is ", data.micro_batch_size,
                     "; expected at least 1.");
  }
  const int64_t batch = data.micro_batch_size * std::max(options.parallel.microbatches, 1);
  const auto samples = samples_of(data, plugin, batch * data_ranks * options.gradient_accumulation_steps);
  const Source source{data, lengths, pieces_of(data), files::IndexedTokens(data.data_path)};
  if (source.size() == 0) {
    throw DataError(kMegatronData, data.data_path, "'", data.data_path, "' has no documents. Check how it was written.");
  }
  const auto ranges = data::split_sequences(data.splits_string, source.size());
  MegatronLoaders loaders;
  const std::array parts = {&loaders.train, &loaders.valid, &loaders.test};
  for (size_t i = 0; i < parts.size(); ++i) {
    if (ranges[i].size() == 0) continue;
    *parts[i] = data::loader<torch::data::samplers::SequentialSampler>(
        source.samples(ranges[i], samples[i]),
        static_cast<size_t>(options.loader.split_batches ? batch * data_ranks : batch));
  }
  return loaders;
}

}  // namespace hasten::parallel
