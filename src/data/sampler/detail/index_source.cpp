// See index_source.h.
#include "hasten/data/sampler/detail/index_source.h"

#include <algorithm>
#include <utility>

#include "hasten/core/error.h"

namespace hasten::data::detail {
namespace {

[[noreturn]] void throw_index_out_of_range(size_t index, size_t num_samples) {
  throw UsageError(Origin{"data"}, "the sampler gave index ", index, ", but the dataset has ", num_samples,
                   " samples. Make the sampler for this dataset.");
}

[[noreturn]] void throw_position_behind_end(size_t position, size_t drawn) {
  throw UsageError(Origin{"data"}, "the state is at position ", position, " of its epoch, but the sampler gives only ",
                   drawn, " indices. Load it into a loader made as the one it was taken from.");
}

}  // namespace

IndexSource::IndexSource(std::unique_ptr<AnySampler> sampler, size_t batch_size, bool drop_last,
                         std::optional<size_t> dataset_length)
    : sampler_(std::move(sampler)),
      traits_(sampler_->traits()),
      batch_size_(batch_size),
      drop_last_(drop_last),
      dataset_length_(dataset_length),
      stream_(comm::Group()) {}

IndexSource IndexSource::copy() const {
  IndexSource again = *this;
  again.sampler_ = sampler_->copy();
  if (!again.sampler_) throw InternalError(Origin{"data"}, "a sampler that cannot be copied is copied.");
  return again;
}

void IndexSource::use_seedable(std::optional<uint64_t> seed) {
  if (!traits_.replaceable) return;
  replace_ = true;
  if (seed) make_seedable(*seed);
}

std::optional<uint64_t> IndexSource::seed() const {
  if (seedable_) return seedable_->seed();
  if (const auto own = sampler_->seed()) return own;
  return replace_ ? std::nullopt : std::optional<uint64_t>(0);
}

void IndexSource::adopt_seed(std::optional<uint64_t> seed) {
  if (seed && replace_ && !seedable_) make_seedable(*seed);
}

std::optional<size_t> IndexSource::batch_size() const {
  return traits_.gives_batches ? sampler_->batch_size() : batch_size_;
}

std::vector<Indices> IndexSource::begin(const EpochStart& start, size_t round) {
  queue_.clear();
  recut_.reset();
  if (draws()) start.generator.empty() ? stream_.begin_epoch() : stream_.resume(start.generator);
  if (replace_ && !seedable_) make_seedable(stream_.seed_of_rank_0());
  if (seekable()) return begin_at(start, round);
  sampler_->set_epoch(start.epoch);
  const auto reset = [this] { sampler_->reset(); };
  traits_.draws ? stream_.run(reset) : reset();
  return start.position > 0 ? draw_again(start.position, round) : std::vector<Indices>();
}

std::optional<Indices> IndexSource::next() {
  std::optional<Indices> indices = recut_ ? next_recut() : next_whole();
  if (!indices) return indices;
  if (!traits_.gives_batches && drop_last_ && indices->size() < batch_size_) return std::nullopt;
  for (const size_t index : *indices) {
    if (dataset_length_ && index >= *dataset_length_) throw_index_out_of_range(index, *dataset_length_);
  }
  return indices;
}

void IndexSource::make_seedable(uint64_t seed) {
  seedable_.emplace(*size(), RandomSamplerOptions{.seed = seed});
}

std::optional<Indices> IndexSource::draw_some(size_t count) {
  if (seedable_) return seedable_->next(count);
  std::optional<Indices> indices;
  const auto draw = [&] { indices = sampler_->next(count); };
  traits_.draws_in_next ? stream_.run(draw) : draw();
  return indices;
}

std::optional<Indices> IndexSource::next_whole() {
  if (queue_.empty()) return draw_some(batch_size_);
  auto front = std::move(queue_.front());
  queue_.pop_front();
  return front;
}

// For samplers that can seek.
std::vector<Indices> IndexSource::begin_at(const EpochStart& start, size_t round) {
  seedable_ ? seedable_->set_epoch(start.epoch) : sampler_->set_epoch(start.epoch);
  seedable_ ? seedable_->reset() : sampler_->reset();
  std::vector<Indices> head;
  if (start.position == 0) return head;
  while (head.size() < round) {
    auto batch = seedable_ ? seedable_->next(batch_size_) : sampler_->next(batch_size_);
    if (!batch) break;
    head.push_back(std::move(*batch));
  }
  const size_t end = size().value_or(start.position);
  seedable_ ? seedable_->seek(std::min(start.position, end)) : sampler_->seek(std::min(start.position, end));
  return head;
}

// Draws up to `position`, which may lie inside a batch if the batch size was another one.
std::vector<Indices> IndexSource::draw_again(size_t position, size_t round) {
  std::vector<Indices> head;
  size_t drawn = 0;
  while (drawn < position || head.size() < round) {
    auto batch = draw_some(batch_size_);
    if (!batch) break;
    drawn += batch->size();
    if (drawn > position) {
      const size_t unseen = std::min(batch->size(), drawn - position);
      queue_.emplace_back(batch->end() - static_cast<std::ptrdiff_t>(unseen), batch->end());
      if (unseen < batch->size() && !traits_.gives_batches) recut_.emplace();
    }
    if (head.size() < round) head.push_back(std::move(*batch));
  }
  if (drawn < position) throw_position_behind_end(position, drawn);
  return head;
}

// As next_whole, in batches of batch_size whatever the pieces are.
std::optional<Indices> IndexSource::next_recut() {
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

}  // namespace hasten::data::detail
