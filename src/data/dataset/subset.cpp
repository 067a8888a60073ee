// How a dataset is split; see subset.h.
#include "hasten/data/dataset/subset.h"

#include <ATen/ATen.h>
#include <ATen/CPUGeneratorImpl.h>

#include <cmath>

#include "data/origin.h"

namespace hasten::data {

std::vector<size_t> split_lengths(size_t size, const std::vector<double>& fractions) {
  double sum = 0;
  for (const double fraction : fractions) {
    if (!(fraction >= 0 && fraction <= 1)) {
      throw UsageError(kOrigin, "the split's fractions are ", join(fractions),
                       ", expected numbers from 0 to 1. For lengths give whole numbers.");
    }
    sum += fraction;
  }
  if (std::abs(sum - 1) > 1e-9) {
    throw UsageError(kOrigin, "the split's fractions ", join(fractions), " sum to ", sum,
                     ", expected 1. Add one for the rest.");
  }
  std::vector<size_t> lengths;
  size_t given = 0;
  for (const double fraction : fractions) {
    lengths.push_back(static_cast<size_t>(std::floor(static_cast<double>(size) * fraction)));
    given += lengths.back();
  }
  for (size_t part = 0; given < size; ++given, ++part) ++lengths[part % lengths.size()];
  return lengths;
}

std::vector<std::vector<size_t>> split_indices(size_t size, const std::vector<size_t>& lengths, uint64_t seed) {
  size_t sum = 0;
  bool fits = true;
  for (const size_t length : lengths) {
    fits = fits && length <= size - sum;
    sum += fits ? length : 0;
  }
  if (!fits || sum != size) {
    throw UsageError(kOrigin, "the split's lengths are ", join(lengths), ", but the dataset has ", size,
                     " samples. Give lengths that sum to that.");
  }
  const at::Tensor order = at::randperm(static_cast<int64_t>(size), at::detail::createCPUGenerator(seed),
                                        at::TensorOptions().dtype(at::kLong));
  const int64_t* from = order.const_data_ptr<int64_t>();
  std::vector<std::vector<size_t>> parts;
  for (const size_t length : lengths) {
    parts.emplace_back(from, from + length);
    from += length;
  }
  return parts;
}

void detail::check_subset(const std::vector<size_t>& indices, size_t size) {
  for (size_t position = 0; position < indices.size(); ++position) {
    if (indices[position] >= size) {
      throw UsageError(kOrigin, "position ", position, " of the subset asks for sample ", indices[position],
                       ", but the dataset has ", size, " samples. Make the indices for this dataset.");
    }
  }
}

void detail::throw_split_of_unknown_size() {
  throw UsageError(kOrigin, "random_split of a dataset that does not know its size. Give a Subset its ",
                   "indices instead.");
}

void detail::throw_negative_length(long long length) {
  throw UsageError(kOrigin, "a part of the split has the length ", length, ", expected 0 or more.");
}

}  // namespace hasten::data
