// AnySampler: a sampler whose type only the loader's handle knows. IndexSource (index_source.h) draws an
// epoch's order from it.
#pragma once

#include <torch/data/samplers/random.h>
#include <torch/data/samplers/sequential.h>

#include <cstddef>
#include <cstdint>
#include <memory>
#include <optional>
#include <type_traits>
#include <utility>

#include "hasten/data/sampler/batch_shard.h"
#include "hasten/data/sampler/detail/traits.h"

namespace hasten::data::detail {

/// The answers of traits.h for one type of sampler.
struct SamplerTraits {
  /// It has seek(position).
  bool seekable = false;
  /// Its batches are of its own making.
  bool gives_batches = false;
  /// torch's RandomSampler, which a seeded one may stand for.
  bool replaceable = false;
  bool draws = true;
  bool draws_in_next = true;
};

class AnySampler {
 public:
  virtual ~AnySampler() = default;
  virtual SamplerTraits traits() const noexcept = 0;
  virtual std::optional<Indices> next(size_t count) = 0;
  virtual void reset() = 0;
  /// Nothing for a sampler without epochs.
  virtual void set_epoch(uint64_t epoch) = 0;
  /// For seekable samplers, as all that follows for those that give batches.
  virtual void seek(size_t position) = 0;
  virtual std::optional<uint64_t> seed() const = 0;
  /// As sampler_size; torch's own samplers are counted.
  virtual std::optional<size_t> size(std::optional<size_t> dataset_length) const = 0;
  virtual std::optional<size_t> batch_size() const = 0;
  virtual size_t num_batches() const = 0;
  virtual size_t batch_length(size_t batch) const = 0;
  virtual size_t largest_batch() const = 0;
  /// Null for a sampler that cannot be copied.
  virtual std::unique_ptr<AnySampler> copy() const = 0;
};

/// Returns the indices of an epoch of one of torch's samplers, which do not show them: a copy gives all that it has.
template <class Sampler>
size_t count_indices(Sampler sampler) {
  constexpr size_t kStep = 1 << 16;
  size_t count = sampler.index();
  while (const auto some = sampler.next(kStep)) count += some->size();
  return count;
}

template <class Sampler>
class SamplerOf final : public AnySampler {
  static constexpr bool kSeekable = requires(Sampler& sampler, size_t position) { sampler.seek(position); };
  static constexpr bool kReplaceable = std::is_same_v<Sampler, torch::data::samplers::RandomSampler>;
  static constexpr bool kHidesSize = kReplaceable || std::is_same_v<Sampler, torch::data::samplers::SequentialSampler>;

 public:
  explicit SamplerOf(Sampler sampler) : sampler_(std::move(sampler)) {
    if constexpr (kHidesSize) counted_ = count_indices(sampler_);
  }
  Sampler& sampler() noexcept { return sampler_; }

  SamplerTraits traits() const noexcept override {
    return {.seekable = kSeekable,
            .gives_batches = gives_batches<Sampler>,
            .replaceable = kReplaceable,
            .draws = draws_random_numbers<Sampler>::value,
            .draws_in_next = data::draws_in_next<Sampler>::value};
  }
  std::optional<Indices> next(size_t count) override { return sampler_.next(count); }
  void reset() override { sampler_.reset(); }
  void set_epoch(uint64_t epoch) override {
    if constexpr (requires { sampler_.set_epoch(epoch); }) sampler_.set_epoch(epoch);
  }
  void seek(size_t position) override {
    if constexpr (kSeekable) sampler_.seek(position);
  }
  std::optional<uint64_t> seed() const override {
    if constexpr (requires { uint64_t{sampler_.seed()}; }) return sampler_.seed();
    return std::nullopt;
  }
  std::optional<size_t> size(std::optional<size_t> dataset_length) const override {
    return counted_ ? counted_ : sampler_size(sampler_, dataset_length);
  }
  std::optional<size_t> batch_size() const override {
    if constexpr (gives_batches<Sampler>) return sampler_.batch_size();
    return std::nullopt;
  }
  size_t num_batches() const override {
    if constexpr (gives_batches<Sampler>) return sampler_.num_batches();
    return 0;
  }
  size_t batch_length(size_t batch) const override {
    if constexpr (gives_batches<Sampler>) return sampler_.batch_length(batch);
    return 0;
  }
  size_t largest_batch() const override {
    if constexpr (gives_batches<Sampler>) return sampler_.largest_batch();
    return 0;
  }
  std::unique_ptr<AnySampler> copy() const override {
    if constexpr (std::is_copy_constructible_v<Sampler>) return std::make_unique<SamplerOf>(*this);
    return nullptr;
  }

 private:
  Sampler sampler_;
  std::optional<size_t> counted_;  // of torch's samplers
};

}  // namespace hasten::data::detail
