// The global order of one loader, batch by batch: a sampler, the random numbers it draws, and how it is put
// to a position in mid-epoch. Samplers that can seek are put there at once; others draw again what came
// before.
//
// Used by map_loader.h, which spreads the batches over the ranks (batch_shard.h); not for use by itself.
#pragma once

#include <torch/data/samplers/random.h>

#include <algorithm>
#include <deque>
#include <optional>
#include <type_traits>
#include <utility>
#include <vector>

#include "hasten/core/error.h"
#include "hasten/data/sampler/batch_shard.h"
#include "hasten/data/sampler/detail/sampler_stream.h"
#include "hasten/data/sampler/samplers.h"
#include "hasten/data/sampler/detail/traits.h"

namespace hasten::data::detail {

/// Where a pass begins.
struct EpochStart {
  uint64_t epoch = 0;
  size_t position = 0;
  /// LoaderState::generator of a pass that goes on.
  std::vector<uint8_t> generator = {};
};

[[noreturn]] void throw_index_out_of_range(size_t index, size_t num_samples);
[[noreturn]] void throw_position_behind_end(size_t position, size_t drawn);

/// The indices of an epoch of one of torch's samplers, which do not tell: a copy gives all that it has.
template <class Sampler>
size_t count_indices(Sampler sampler) {
  constexpr size_t kStep = 1 << 16;
  size_t count = sampler.index();
  while (const auto some = sampler.next(kStep)) count += some->size();
  return count;
}

template <class Sampler>
class IndexSource {
  static constexpr bool kSeekable = requires(Sampler& sampler, size_t position) { sampler.seek(position); };
  static constexpr bool kBatched = gives_batches<Sampler>;
  static constexpr bool kReplaceable = std::is_same_v<Sampler, torch::data::samplers::RandomSampler>;
  static constexpr bool kHidesSize =
      kReplaceable || std::is_same_v<Sampler, torch::data::samplers::SequentialSampler>;

 public:
  IndexSource(Sampler sampler, size_t batch_size, bool drop_last, std::optional<size_t> dataset_length)
      : sampler_(std::move(sampler)),
        batch_size_(batch_size),
        drop_last_(drop_last),
        dataset_length_(dataset_length),
        stream_(comm::Group()) {
    if constexpr (kHidesSize) counted_ = count_indices(sampler_);
  }

  Sampler& sampler() noexcept { return sampler_; }
  const Sampler& sampler() const noexcept { return sampler_; }

  /// From now on all ranks of the group draw rank 0's numbers.
  void share(const comm::Group& group) { stream_ = SamplerStream(group); }

  /// torch's RandomSampler is replaced by a seeded one of the same order as accelerate's; other samplers
  /// stay. Without a seed it is that of rank 0's default generator.
  void use_seedable(std::optional<uint64_t> seed) {
    if constexpr (kReplaceable) {
      replace_ = true;
      if (seed) make_seedable(*seed);
    }
  }

  /// Whether what is drawn depends on the default generator.
  bool draws() const noexcept { return draws_random_numbers<Sampler>::value && !replace_; }
  /// Whether the ranks have something to share when an epoch begins.
  bool shares() const noexcept { return draws() || (replace_ && !seedable_); }
  /// Whether a position is reached without drawing what comes before.
  bool seekable() const noexcept { return kSeekable || replace_; }

  /// The sampler's seed, nothing if it has none or if it is not known before the first pass.
  std::optional<uint64_t> seed() const {
    if (seedable_) return seedable_->seed();
    if constexpr (requires { uint64_t{sampler_.seed()}; }) return sampler_.seed();
    return replace_ ? std::nullopt : std::optional<uint64_t>(0);
  }
  void adopt_seed(std::optional<uint64_t> seed) {
    if (seed && replace_ && !seedable_) make_seedable(*seed);
  }
  /// Indices per epoch, if known.
  std::optional<size_t> size() const { return counted_ ? counted_ : sampler_size(sampler_, dataset_length_); }
  /// Samples of a full batch; nothing for a sampler whose batches are of any size.
  std::optional<size_t> batch_size() const noexcept {
    if constexpr (kBatched) return sampler_.batch_size();
    return batch_size_;
  }
  /// LoaderState::generator of this epoch.
  std::vector<uint8_t> generator() const { return draws() ? stream_.start() : std::vector<uint8_t>(); }

  /// Begins an epoch. If it begins behind its start, gives the first `round` batches, which fill up the end.
  std::vector<Indices> begin(const EpochStart& start, size_t round) {
    queue_.clear();
    recut_.reset();
    if (draws()) start.generator.empty() ? stream_.begin_epoch() : stream_.resume(start.generator);
    if (replace_) {
      if (!seedable_) make_seedable(stream_.seed_of_rank_0());
      return begin_seekable(*seedable_, start, round);
    }
    if constexpr (requires { sampler_.set_epoch(start.epoch); }) sampler_.set_epoch(start.epoch);
    if constexpr (kSeekable) {
      return begin_seekable(sampler_, start, round);
    } else {
      draw<draws_random_numbers<Sampler>::value>([this] { sampler_.reset(); });
      return start.position > 0 ? draw_again(start.position, round) : std::vector<Indices>();
    }
  }

  /// The next global batch; nothing at the end. The short last batch is left out with drop_last.
  std::optional<Indices> next() {
    std::optional<Indices> indices = recut_ ? next_recut() : next_whole();
    if (!indices) return indices;
    if (!kBatched && drop_last_ && indices->size() < batch_size_) return std::nullopt;
    for (const size_t index : *indices) {
      if (dataset_length_ && index >= *dataset_length_) throw_index_out_of_range(index, *dataset_length_);
    }
    return indices;
  }

 private:
  void make_seedable(uint64_t seed) { seedable_.emplace(*counted_, RandomSamplerOptions{.seed = seed}); }

  template <bool kMayDraw, class Fn>
  void draw(Fn&& fn) {
    if constexpr (kMayDraw) {
      stream_.run(fn);
    } else {
      fn();
    }
  }

  std::optional<Indices> draw_some(size_t count) {
    if (seedable_) return seedable_->next(count);
    std::optional<Indices> indices;
    draw<draws_in_next<Sampler>::value>([&] { indices = sampler_.next(count); });
    return indices;
  }

  std::optional<Indices> next_whole() {
    if (queue_.empty()) return draw_some(batch_size_);
    auto front = std::move(queue_.front());
    queue_.pop_front();
    return front;
  }

  template <class Seekable>
  std::vector<Indices> begin_seekable(Seekable& sampler, const EpochStart& start, size_t round) {
    sampler.set_epoch(start.epoch);
    sampler.reset();
    std::vector<Indices> head;
    if (start.position == 0) return head;
    while (head.size() < round) {
      auto batch = sampler.next(batch_size_);
      if (!batch) break;
      head.push_back(std::move(*batch));
    }
    sampler.seek(std::min<size_t>(start.position, sampler.size()));
    return head;
  }

  /// Draws up to `position`, which may lie inside a batch if the batch size was another one.
  std::vector<Indices> draw_again(size_t position, size_t round) {
    std::vector<Indices> head;
    size_t drawn = 0;
    while (drawn < position || head.size() < round) {
      auto batch = draw_some(batch_size_);
      if (!batch) break;
      drawn += batch->size();
      if (drawn > position) {
        const size_t unseen = std::min(batch->size(), drawn - position);
        queue_.emplace_back(batch->end() - static_cast<std::ptrdiff_t>(unseen), batch->end());
        if (unseen < batch->size() && !kBatched) recut_.emplace();
      }
      if (head.size() < round) head.push_back(std::move(*batch));
    }
    if (drawn < position) throw_position_behind_end(position, drawn);
    return head;
  }

  /// As next_whole, in batches of batch_size whatever the pieces are.
  std::optional<Indices> next_recut() {
    while (recut_->size() < batch_size_) {
      auto piece = next_whole();
      if (!piece) break;
      recut_->insert(recut_->end(), piece->begin(), piece->end());
    }
    if (recut_->empty()) return std::nullopt;
    const auto end = recut_->begin() + static_cast<std::ptrdiff_t>(std::min(batch_size_, recut_->size()));
    Indices batch(recut_->begin(), end);
    recut_->erase(recut_->begin(), end);
    return batch;
  }

  Sampler sampler_;
  size_t batch_size_;
  bool drop_last_;
  std::optional<size_t> dataset_length_;
  std::optional<size_t> counted_;  // of torch's samplers
  SamplerStream stream_;
  bool replace_ = false;
  std::optional<SeedableRandomSampler> seedable_;
  std::deque<Indices> queue_;
  std::optional<std::deque<size_t>> recut_;
};

}  // namespace hasten::data::detail
