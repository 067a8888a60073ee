// Batches and where each begins; see batch_sampler.h.
#include "hasten/data/sampler/batch_sampler.h"

#include <algorithm>
#include <utility>

#include "hasten/core/error.h"

namespace hasten::data {

BatchSampler::BatchSampler(std::vector<Indices> batches, const BatchSamplerOptions& options)
    : SeedableSampler(options.seed),
      batches_(std::move(batches)),
      options_(options),
      order_(batches_.size(), {.seed = options.seed, .order = options.order}) {
  for (size_t i = 0; i < batches_.size(); ++i) {
    if (batches_[i].empty() || batches_[i].size() > options_.batch_size.value_or(batches_[i].size())) {
      throw UsageError(Origin{"data"}, "batch ", i, " of ", batches_.size(), " holds ", batches_[i].size(),
                       " indices, expected at least 1",
                       options_.batch_size ? text(" and at most batch_size = ", *options_.batch_size) : "", ".");
    }
    num_indices_ += batches_[i].size();
    largest_ = std::max(largest_, batches_[i].size());
  }
}

size_t BatchSampler::batch_at(size_t nth) const {
  return options_.shuffle ? order_.index_at(nth) : nth;
}

void BatchSampler::begin_epoch(uint64_t epoch) {
  if (options_.shuffle) {
    order_.set_epoch(epoch);
    order_.reset();
  }
  starts_.clear();
  size_t start = 0;
  for (size_t nth = 0; nth < batches_.size(); ++nth) {
    starts_.push_back(start);
    start += batches_[batch_at(nth)].size();
  }
}

size_t BatchSampler::nth_at(size_t position) const {
  return static_cast<size_t>(std::upper_bound(starts_.begin(), starts_.end(), position) - starts_.begin()) - 1;
}

size_t BatchSampler::at(size_t position) const {
  const size_t nth = nth_at(position);
  return batches_[batch_at(nth)][position - starts_[nth]];
}

std::optional<Indices> BatchSampler::next(size_t) {
  begin_if_needed();
  if (position() == size()) return std::nullopt;
  const size_t nth = nth_at(position());
  const size_t end = nth + 1 < starts_.size() ? starts_[nth + 1] : size();
  return SeedableSampler::next(end - position());
}

}  // namespace hasten::data
