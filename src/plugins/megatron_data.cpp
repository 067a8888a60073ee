// See megatron_data.h.
#include "hasten/plugins/megatron_data.h"

#include <algorithm>
#include <array>

#include "hasten/core/error.h"
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

}  // namespace

MegatronLoaders make_megatron_loaders(const MegatronDataOptions& data, const AcceleratorOptions& options,
                                      int data_ranks) {
  const auto plugin = plugin_of(options);
  const int64_t length = data.seq_length != 0 ? data.seq_length : number_or(plugin, "seq_length", 0);
  if (length == 0) {
    throw UsageError(kMegatronData,
                     "a MegatronLmDummyDataLoader without a length of its samples. Set its seq_length, or that of "
                     "MegatronLmPlugin.");
  }
  if (data.micro_batch_size < 1) {
    throw UsageError(kMegatronData, "micro_batch_size of a MegatronLmDummyDataLoader is ", data.micro_batch_size,
                     "; expected at least 1.");
  }
  const int64_t batch = data.micro_batch_size * std::max(options.parallel.microbatches, 1);
  const auto samples = samples_of(data, plugin, batch * data_ranks * options.gradient_accumulation_steps);
  const files::IndexedTokens tokens(data.data_path);
  const auto ranges = data::split_sequences(data.splits_string, tokens.size());
  MegatronLoaders loaders;
  const std::array parts = {&loaders.train, &loaders.valid, &loaders.test};
  for (size_t i = 0; i < parts.size(); ++i) {
    if (ranges[i].size() == 0) continue;
    *parts[i] = data::loader<torch::data::samplers::SequentialSampler>(
        data::GptSamples(tokens, ranges[i], {.seq_length = length, .num_samples = samples[i], .seed = data.seed}),
        static_cast<size_t>(options.loader.split_batches ? batch * data_ranks : batch));
  }
  return loaders;
}

}  // namespace hasten::parallel
