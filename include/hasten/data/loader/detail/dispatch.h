// Dispatching: rank 0 reads the global batches, cuts each step and hands every rank its slice.
//
// For data that only one process can read, or that should be read once. Follows Accelerate's
// DataLoaderDispatcher, except that a rank is sent its own slice instead of the whole batch. An error of the
// dataset is sent as well, so that every rank's loop ends with it, and so is one of cutting a batch. Reading
// is the loader's own pass on rank 0, a batch as bytes batch_serialization.h's.
#pragma once

#include <algorithm>
#include <concepts>
#include <cstddef>
#include <exception>
#include <functional>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "hasten/comm/group/group.h"
#include "hasten/core/error.h"
#include "hasten/data/batch/detail/batch_rows.h"
#include "hasten/data/batch/detail/batch_serialization.h"
#include "hasten/data/loader/detail/epoch_pipeline.h"

namespace hasten::data {

/// Whether a batch of this type can be sent to another rank.
template <class Batch>
inline constexpr bool can_be_dispatched = can_be_placed<Batch> && std::default_initializable<Batch>;

namespace detail {

/// Rows [begin, begin + count) of a step of `num_rows` rows that is filled up from its first step's rows.
struct RowPart {
  size_t begin = 0;
  size_t count = 0;
};
/// Which rows of a step a rank gets: ceil(num_rows / world_size) each; those behind num_rows are padding.
RowPart dispatched_part(size_t num_rows, int rank, int world_size) noexcept;

/// What travels before the batch.
struct DispatchHead {
  enum class Kind : uint8_t { kBatch, kEnd, kError } kind = Kind::kEnd;
  uint64_t num_samples = 0;
  uint64_t end = 0;
  std::string words = {};
};
void write_head(ParcelWriter& to, const DispatchHead& head);
DispatchHead read_head(ParcelReader& from);

/// A batch of the base loader, and the samples of the order up to its end, from the epoch's start.
template <class Batch>
struct BaseBatch {
  Batch batch;
  size_t end = 0;
};

template <class Batch>
class Dispatcher {
 public:
  struct Options {
    comm::Group group;
    bool split_batches = false;
    bool drop_last = false;
    /// Samples of the epoch before the first that is read; only pass_over() asks.
    size_t position = 0;
    /// The epoch's first rows, at least world_size if there are as many; asked for at the end, on rank 0, of
    /// a pass that did not begin there. Unset: the pass began at the epoch's start.
    std::function<Batch()> first_rows = {};
    Origin origin{"data"};
  };

  /// `read` gives the next batch of the base loader; it is called on rank 0 only.
  Dispatcher(Options options, std::function<std::optional<BaseBatch<Batch>>()> read)
      : options_(std::move(options)), read_(std::move(read)) {}

  /// This rank's slice of the next step; nothing at the end.
  /// Collective: yes. Blocks: for rank 0 to read. Throws: DataError on every rank if the dataset, or cutting
  /// a batch, fails on rank 0; CommError.
  std::optional<PlannedBatch<Batch>> next() {
    const comm::Group& group = options_.group;
    Step step;
    std::vector<at::Tensor> parts;
    if (group.rank() == 0) {
      step = next_step();
      parts = pack(step);
    }
    const at::Tensor mine = group.scatter(parts, 0);
    if (step.error) std::rethrow_exception(step.error);
    ParcelReader reader(mine);
    const DispatchHead head = read_head(reader);
    if (head.kind == DispatchHead::Kind::kError) {
      throw DataError(options_.origin, "", "rank 0, which reads for all, failed: ", head.words);
    }
    if (head.kind == DispatchHead::Kind::kEnd) return std::nullopt;
    PlannedBatch<Batch> planned{
        {.num_samples = static_cast<size_t>(head.num_samples),
         .num_local_valid = static_cast<size_t>(head.num_samples) / static_cast<size_t>(group.world_size()),
         .end = static_cast<size_t>(head.end)}};
    if (group.rank() == 0) {
      planned.ready = std::move(step.own);
    } else {
      read(reader, planned.ready.emplace());
    }
    return planned;
  }

  /// Rank 0 reads on without handing out, until `num_steps` steps and `position` are past.
  /// What `read` throws is kept for next(), which every rank calls.
  /// Collective: no. Blocks: to read. Throws: nothing.
  void pass_over(size_t num_steps, size_t position) {
    if (options_.group.rank() != 0) return;
    for (; num_steps > 0 || options_.position<position; num_steps -= num_steps> 0 ? 1 : 0) {
      Step step = next_step();
      if (step.error) failed_ = std::move(step);
      if (failed_ || !step.batch) return;
    }
  }

 private:
  struct Step {
    std::optional<Batch> batch = {};
    std::optional<Batch> own = {};  // rank 0's part
    size_t num_rows = 0;
    std::exception_ptr error = nullptr;
    std::string words = {};
  };

  static Step failure(const std::exception& error) {
    return {.error = std::current_exception(), .words = error.what()};
  }

  Step next_step() {
    Step step;
    if (failed_) return *failed_;
    try {
      std::vector<Batch> batches;
      size_t end = 0;
      const size_t wanted = options_.split_batches ? 1 : static_cast<size_t>(options_.group.world_size());
      while (batches.size() < wanted) {
        auto batch = read_();
        if (!batch) break;
        batches.push_back(std::move(batch->batch));
        end = batch->end;
      }
      if (batches.empty() || (options_.drop_last && batches.size() < wanted)) return step;
      step.batch = join_rows(std::move(batches));
      step.num_rows = num_rows(*step.batch);
      options_.position = end;
      keep_fillers(*step.batch, step.num_rows);
    } catch (const std::exception& error) {
      step = failure(error);
    }
    return step;
  }

  /// The first step's rows fill up the last one, if that is not divided by the world size.
  void keep_fillers(const Batch& batch, size_t num_rows) {
    const auto world_size = static_cast<size_t>(options_.group.world_size());
    if (options_.drop_last) return;
    if (!padding_ && !options_.first_rows) padding_ = slice_rows(batch, 0, std::min(world_size, num_rows));
    if (!padding_ && num_rows % world_size != 0) {
      Batch first = options_.first_rows();
      padding_ = slice_rows(first, 0, std::min(world_size, data::num_rows(first)));
    }
  }

  Batch part_of(const Step& step, int rank) const {
    const RowPart part = dispatched_part(step.num_rows, rank, options_.group.world_size());
    const size_t end = part.begin + part.count;
    if (end <= step.num_rows || !padding_) {
      return slice_rows(*step.batch, std::min(part.begin, step.num_rows), std::min(end, step.num_rows));
    }
    std::vector<Batch> pieces;
    if (part.begin < step.num_rows) pieces.push_back(slice_rows(*step.batch, part.begin, step.num_rows));
    const size_t num_padding = num_rows(*padding_);
    for (size_t row = std::max(part.begin, step.num_rows); row < end; ++row) {
      const size_t padding = (row - step.num_rows) % num_padding;
      pieces.push_back(slice_rows(*padding_, padding, padding + 1));
    }
    return join_rows(std::move(pieces));
  }

  /// The parts for the ranks. A batch that cannot be cut is a failure of the step on all ranks.
  std::vector<at::Tensor> pack(Step& step) const {
    try {
      if (step.batch) step.own = part_of(step, 0);
      return parcels(step);
    } catch (const std::exception& error) {
      step = failure(error);
      return parcels(step);
    }
  }

  std::vector<at::Tensor> parcels(const Step& step) const {
    std::vector<at::Tensor> all;
    for (int rank = 0; rank < options_.group.world_size(); ++rank) all.push_back(parcel(step, rank));
    return all;
  }

  at::Tensor parcel(const Step& step, int rank) const {
    ParcelWriter to;
    if (step.error) {
      write_head(to, {.kind = DispatchHead::Kind::kError, .words = step.words});
    } else if (!step.batch) {
      write_head(to, {});
    } else {
      write_head(
          to, {.kind = DispatchHead::Kind::kBatch, .num_samples = step.num_rows, .end = options_.position});
      if (rank > 0) {
        Batch part = part_of(step, rank);
        write(to, part);
      }
    }
    return to.finish();
  }

  Options options_;
  std::function<std::optional<BaseBatch<Batch>>()> read_;
  std::optional<Batch> padding_;
  std::optional<Step> failed_;
};

}  // namespace detail

}  // namespace hasten::data
