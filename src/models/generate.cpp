// See generate.h.
#include "hasten/models/generate.h"

#include <ATen/CPUGeneratorImpl.h>
#include <ATen/Context.h>
#include <torch/types.h>

#include <limits>

#include "hasten/core/error.h"

namespace hasten::models {
namespace {

using Forward = std::function<at::Tensor(const at::Tensor&, const at::Tensor&, KvCache*)>;

void require_in_range(const GenerateOptions& options) {
  std::vector<std::string> wrong;
  wrong.reserve(4);
  if (options.max_new_tokens < 0)
    wrong.push_back(text("max_new_tokens = ", options.max_new_tokens, " (expected 0 or more)"));
  if (options.temperature < 0) wrong.push_back(text("temperature = ", options.temperature, " (expected 0 or more)"));
  if (options.top_k < 0) wrong.push_back(text("top_k = ", options.top_k, " (expected 0 or more)"));
  if (!(options.top_p > 0 && options.top_p <= 1))
    wrong.push_back(text("top_p = ", options.top_p, " (expected above 0 and at most 1)"));
  if (!wrong.empty()) throw UsageError(Origin{"models"}, "generate: ", join(wrong), ".");
}

at::Tensor next_tokens(const at::Tensor& logits, const GenerateOptions& options,
                       const std::optional<at::Generator>& generator) {
  if (options.temperature == 0) return logits.argmax(-1);
  return at::multinomial(sampling_probabilities(logits, options), 1, /*replacement=*/false, generator).squeeze(-1);
}

void require_in_vocabulary(const at::Tensor& prompt, int64_t vocabulary) {
  const auto low = prompt.min().item<int64_t>(), high = prompt.max().item<int64_t>();
  if (low >= 0 && high < vocabulary) return;
  throw UsageError(Origin{"models"}, "generate: the token id ", low < 0 ? low : high,
                   " is not below the model's vocabulary of ", vocabulary, ". Use the tokenizer of this model.");
}

// A kernel takes only a generator of its own device.
at::Generator seeded_generator(uint64_t seed, c10::Device device) {
  if (device.is_cpu()) return at::make_generator<at::CPUGeneratorImpl>(seed);
  at::Generator generator = at::globalContext().defaultGenerator(device).clone();
  generator.set_current_seed(seed);
  return generator;
}

at::Tensor run(const Forward& forward, const CausalLmModule& model, const at::Tensor& prompt,
               const GenerateOptions& options) {
  require_in_range(options);
  const int64_t max_positions = model.max_positions();
  if (prompt.dim() != 2 || prompt.numel() == 0) {
    throw UsageError(Origin{"models"}, "generate: the prompt has shape [", join(prompt.sizes()),
                     "]; expected [batch, tokens] with a token at least.");
  }
  const at::NoGradGuard no_grad;
  require_in_vocabulary(prompt, model.vocabulary());
  const int64_t all = prompt.size(1) + options.max_new_tokens;
  if (all - 1 > max_positions) {
    throw UsageError(Origin{"models"}, "generate: ", prompt.size(1), " + ", options.max_new_tokens, " = ", all,
                     " tokens are more than the model's ", max_positions, " positions. Lower max_new_tokens.");
  }
  std::optional<at::Generator> generator;
  if (options.seed) generator = seeded_generator(*options.seed, prompt.device());
  KvCache cache(model.num_layers(), all);
  at::Tensor ids = prompt, current = prompt, mask = options.attention_mask;
  at::Tensor ended = at::zeros({prompt.size(0)}, prompt.options().dtype(at::kBool));
  for (int64_t step = 0; step < options.max_new_tokens; ++step) {
    const at::Tensor logits = forward(current, mask, &cache);
    at::Tensor tokens = next_tokens(logits.select(1, logits.size(1) - 1).to(at::kFloat), options, generator);
    tokens = tokens.masked_fill(ended, options.pad);
    ids = at::cat({ids, tokens.unsqueeze(1)}, 1);
    for (const int64_t eos : options.eos) ended = at::logical_or(ended, tokens == eos);
    if (options.on_token && !options.on_token(tokens)) break;
    if (!options.eos.empty() && ended.all().item<bool>()) break;
    current = tokens.unsqueeze(1);
    if (mask.defined()) mask = at::cat({mask, at::ones({mask.size(0), 1}, mask.options())}, 1);
  }
  return ids;
}

}  // namespace

at::Tensor sampling_probabilities(const at::Tensor& given, const GenerateOptions& options) {
  constexpr double kNever = -std::numeric_limits<double>::infinity();
  at::Tensor logits = given.to(at::kFloat) / (options.temperature > 0 ? options.temperature : 1.0);
  if (options.top_k > 0 && options.top_k < logits.size(-1)) {
    const at::Tensor least = std::get<0>(logits.topk(options.top_k, -1)).narrow(-1, options.top_k - 1, 1);
    logits = logits.masked_fill(logits < least, kNever);
  }
  if (options.top_p < 1) {
    const auto [sorted, order] = logits.sort(-1, /*descending=*/true);
    const at::Tensor probabilities = sorted.softmax(-1);
    // A token goes if those before it reach top_p already; the first one never does.
    const at::Tensor goes = probabilities.cumsum(-1) - probabilities >= options.top_p;
    logits = logits.masked_fill(at::zeros_like(goes).scatter(-1, order, goes), kNever);
  }
  return logits.softmax(-1);
}

at::Tensor generate(const CausalLm& model, const at::Tensor& ids, const GenerateOptions& options) {
  const auto forward = [&](const at::Tensor& current, const at::Tensor& mask, KvCache* cache) {
    return model(current, mask, cache);
  };
  return run(forward, model.module(), ids, options);
}

at::Tensor generate(CausalLmModule& model, const at::Tensor& ids, const GenerateOptions& options) {
  const auto forward = [&](const at::Tensor& current, const at::Tensor& mask, KvCache* cache) {
    return model.forward(current, mask, cache);
  };
  return run(forward, model, ids, options);
}

}  // namespace hasten::models
