// Drawing; see samplers.h.
#include "hasten/data/sampler/samplers.h"

#include <ATen/CPUGeneratorImpl.h>
#include <ATen/ops/from_blob.h>
#include <ATen/ops/multinomial.h>
#include <ATen/ops/randint.h>
#include <torch/serialize/archive.h>
#include <torch/types.h>

#include <algorithm>
#include <cmath>
#include <numeric>
#include <utility>

#include "hasten/core/error.h"

namespace hasten::data {

namespace {

void append(Indices& to, const at::Tensor& drawn) {
  const int64_t* data = drawn.const_data_ptr<int64_t>();
  to.insert(to.end(), data, data + drawn.numel());
}

std::vector<int64_t> read_integers(torch::serialize::InputArchive& archive, const char* key) {
  torch::Tensor values;
  archive.read(key, values, /*is_buffer=*/true);
  const auto* data = values.const_data_ptr<int64_t>();
  return {data, data + values.numel()};
}

}  // namespace

void SeedableSampler::begin_if_needed() {
  if (begun_) return;
  epoch_ = next_epoch_++;
  begun_ = true;
  begin_epoch(epoch_);
}

void SeedableSampler::reset(std::optional<size_t> new_size) {
  if (new_size && *new_size != size()) {
    throw UsageError(Origin{"data"}, "reset of a sampler of ", size(), " indices to ", *new_size,
                     ": its size is fixed. Make a sampler for the new size.");
  }
  begun_ = false;
  position_ = 0;
  begin_if_needed();
}

void SeedableSampler::seek(size_t position) {
  if (position > size()) {
    throw UsageError(Origin{"data"}, "seek to position ", position, " of a sampler that gives ", size(),
                     " indices per epoch.");
  }
  begin_if_needed();
  position_ = position;
}

std::optional<Indices> SeedableSampler::next(size_t batch_size) {
  begin_if_needed();
  const size_t count = std::min(batch_size, size() - position_);
  if (count == 0) return std::nullopt;
  Indices indices(count);
  for (size_t i = 0; i < count; ++i) indices[i] = at(position_ + i);
  position_ += count;
  return indices;
}

void SeedableSampler::save(torch::serialize::OutputArchive& archive) const {
  const auto write = [&](const char* key, uint64_t value) {
    archive.write(key, torch::tensor({static_cast<int64_t>(value)}, torch::kInt64), /*is_buffer=*/true);
  };
  write("seed", seed_);
  write("size", size());
  write("epoch", epoch());
  write("position", position_);
  write("begun", begun_ ? 1 : 0);
}

void SeedableSampler::load(torch::serialize::InputArchive& archive) {
  const auto read = [&](const char* key) { return static_cast<uint64_t>(read_integers(archive, key).at(0)); };
  const uint64_t seed = read("seed"), saved_size = read("size");
  if (seed != seed_ || saved_size != size()) {
    throw UsageError(Origin{"data"}, "the state is of a sampler with seed ", seed, " and ", saved_size,
                     " indices, this one has seed ", seed_, " and ", size(), ". Make it as it was.");
  }
  set_epoch(read("epoch"));
  begun_ = false;
  position_ = 0;
  if (read("begun") == 1) seek(read("position"));
}

SeedableRandomSampler::SeedableRandomSampler(size_t num_indices, const RandomSamplerOptions& options)
    : SeedableSampler(options.seed),
      num_indices_(num_indices),
      options_(options),
      num_samples_(options.num_samples.value_or(num_indices)) {
  if (num_indices_ == 0 && num_samples_ > 0) {
    throw UsageError(Origin{"data"}, "num_samples = ", num_samples_, " from an empty dataset.");
  }
}

void SeedableRandomSampler::begin_epoch(uint64_t epoch) {
  drawn_.clear();
  keyed_.clear();
  if (num_samples_ == 0) return;
  const size_t rounds = num_samples_ / num_indices_ + (num_samples_ % num_indices_ > 0 ? 1 : 0);
  if (options_.order == Order::kKeyed) {
    // Later rounds are keyed by the first one's bits, so that they are no other epoch's order.
    for (size_t round = 0; !options_.replacement && round < rounds; ++round) {
      keyed_.emplace_back(num_indices_, round == 0 ? seed() : keyed_bits(seed(), epoch, round), epoch);
    }
    return;
  }
  auto generator = at::detail::createCPUGenerator(seed() + epoch);
  const auto limit = static_cast<int64_t>(num_indices_);
  if (options_.replacement) {
    append(drawn_, at::randint(limit, {static_cast<int64_t>(num_samples_)}, generator, at::kLong));
    return;
  }
  drawn_.reserve(rounds * num_indices_);
  for (size_t round = 0; round < rounds; ++round) {
    append(drawn_, at::randperm(limit, generator, at::TensorOptions(at::kLong)));
  }
  drawn_.resize(num_samples_);
}

size_t SeedableRandomSampler::at(size_t position) const {
  if (options_.order == Order::kTorch) return drawn_[position];
  if (options_.replacement) return keyed_draw(num_indices_, seed(), epoch(), position);
  return keyed_[position / num_indices_][position % num_indices_];
}

SeedableWeightedSampler::SeedableWeightedSampler(std::vector<double> weights, const WeightedSamplerOptions& options)
    : SeedableSampler(options.seed),
      weights_(std::move(weights)),
      options_(options),
      num_samples_(options.num_samples.value_or(weights_.size())) {
  const Origin origin{"data"};
  size_t positive = 0;
  for (size_t i = 0; i < weights_.size(); ++i) {
    if (!(weights_[i] >= 0) || std::isinf(weights_[i])) {
      throw UsageError(origin, "weights[", i, "] = ", weights_[i], ", expected a finite number of at least 0.");
    }
    if (weights_[i] > 0) ++positive;
  }
  if (positive == 0 && num_samples_ > 0) {
    throw UsageError(origin, "none of the ", weights_.size(), " weights is above 0, so nothing can be drawn.");
  }
  if (!options_.replacement && num_samples_ > positive) {
    throw UsageError(origin, "num_samples = ", num_samples_, " without replacement, but only ", positive,
                     " weights are above 0. Draw fewer, or with replacement.");
  }
  if (options_.order == Order::kTorch) return;
  if (!options_.replacement) {
    throw UsageError(origin, "order = kKeyed draws each position by itself and so only with replacement. ",
                     "Use kTorch, or replacement = true.");
  }
  std::partial_sum(weights_.begin(), weights_.end(), weights_.begin());
}

void SeedableWeightedSampler::begin_epoch(uint64_t epoch) {
  if (options_.order == Order::kKeyed || num_samples_ == 0) return;
  drawn_.clear();
  const auto weights = at::from_blob(weights_.data(), {static_cast<int64_t>(weights_.size())}, at::kDouble);
  append(drawn_, at::multinomial(weights, static_cast<int64_t>(num_samples_), options_.replacement,
                                 at::detail::createCPUGenerator(seed() + epoch)));
}

size_t SeedableWeightedSampler::at(size_t position) const {
  if (options_.order == Order::kTorch) return drawn_[position];
  const double requested = keyed_uniform(seed(), epoch(), position) * weights_.back();
  const auto found = std::upper_bound(weights_.begin(), weights_.end(), requested);
  // Rounding may make `requested` the whole sum; the last sample with a weight is meant then.
  const auto last = std::lower_bound(weights_.begin(), weights_.end(), weights_.back());
  return static_cast<size_t>(std::min(found, last) - weights_.begin());
}

SeedableSubsetSampler::SeedableSubsetSampler(Indices indices, const SubsetSamplerOptions& options)
    : SeedableSampler(options.seed),
      indices_(std::move(indices)),
      options_(options),
      order_(indices_.size(), {.seed = options.seed, .order = options.order}) {}

void SeedableSubsetSampler::begin_epoch(uint64_t epoch) {
  if (!options_.shuffle) return;
  order_.set_epoch(epoch);
  order_.reset();
}

size_t SeedableSubsetSampler::at(size_t position) const {
  return indices_[options_.shuffle ? order_.index_at(position) : position];
}

LengthGroupedSampler::LengthGroupedSampler(std::vector<size_t> lengths, const LengthGroupedOptions& options)
    : SeedableSampler(options.seed), lengths_(std::move(lengths)) {
  if (options.batch_size == 0 || options.group_batches == 0u) {
    throw UsageError(Origin{"data"}, "batch_size = ", options.batch_size,
                     ", group_batches = ", options.group_batches.value_or(50), ", expected at least 1 of each.");
  }
  const size_t quarter = lengths_.size() / (options.batch_size * 4);
  group_size_ = options.batch_size * options.group_batches.value_or(std::max<size_t>(1, std::min<size_t>(quarter, 50)));
}

void LengthGroupedSampler::begin_epoch(uint64_t epoch) {
  drawn_ = torch_permutation(lengths_.size(), seed() + epoch);
  size_t longest = 0;
  for (size_t begin = 0; begin < drawn_.size(); begin += group_size_) {
    const size_t end = std::min(begin + group_size_, drawn_.size());
    std::stable_sort(drawn_.begin() + static_cast<std::ptrdiff_t>(begin),
                     drawn_.begin() + static_cast<std::ptrdiff_t>(end),
                     [this](size_t a, size_t b) { return lengths_[a] > lengths_[b]; });
    if (lengths_[drawn_[begin]] > lengths_[drawn_[longest]]) longest = begin;
  }
  if (!drawn_.empty()) std::swap(drawn_[0], drawn_[longest]);
}

}  // namespace hasten::data
