// What an order refuses; see index_source.h.
#include "hasten/data/sampler/detail/index_source.h"

namespace hasten::data::detail {

void throw_index_out_of_range(size_t index, size_t num_samples) {
  throw UsageError(Origin{"data"}, "the sampler gave index ", index, ", but the dataset has ", num_samples,
                   " samples. Make the sampler for this dataset.");
}

void throw_position_behind_end(size_t position, size_t drawn) {
  throw UsageError(Origin{"data"}, "the state is at position ", position,
                   " of its epoch, but the sampler gives only ", drawn,
                   " indices. Load it into a loader made as the one it was taken from.");
}

}  // namespace hasten::data::detail
