// Dispatching: rank 0 reads the global batches, cuts each step and hands every rank its slice.
//
// For data that only one process can read, or that should be read once. Follows Accelerate's
// DataLoaderDispatcher, except that a rank is sent its own slice instead of the whole batch. An error of the
// dataset is sent as well, so that every rank's loop ends with it, and so is one of cutting a batch. Reading
// is the loader's own pass on rank 0, a batch as bytes batch_serialization.h's.
#pragma once

#include <cstddef>
#include <cstdint>
#include <exception>
#include <functional>
#include <optional>
#include <string>
#include <vector>

#include "hasten/comm/group/group.h"
#include "hasten/core/error.h"
#include "hasten/data/batch/detail/any_batch.h"
#include "hasten/data/batch/detail/batch_serialization.h"
#include "hasten/data/loader/detail/epoch_pipeline.h"

namespace hasten::data::detail {

/// Rows [begin, begin + count) of a step of `num_rows` rows that is filled up from its first step's rows.
struct RowPart {
  size_t begin = 0;
  size_t count = 0;
};
/// Which rows of a step a rank gets: ceil(num_rows / world_size) each; those behind num_rows are padding.
RowPart dispatched_part(size_t num_rows, int rank, int world_size) noexcept;

/// The header that travels before the batch.
struct DispatchHead {
  enum class Kind : uint8_t { kBatch, kEnd, kError } kind = Kind::kEnd;
  uint64_t num_samples = 0;
  uint64_t end = 0;
  std::string message = {};
};
void write_head(ParcelWriter& to, const DispatchHead& head);
DispatchHead read_head(ParcelReader& from);

class Dispatcher {
 public:
  struct Options {
    comm::Group group;
    BatchOperations operations;
    bool split_batches = false;
    bool drop_last = false;
    /// Samples of the epoch before the first that is read; only pass_over() reads it.
    size_t position = 0;
    /// The epoch's first rows, at least world_size if there are as many. They are requested at the end, on rank 0, of a
    /// pass that did not begin there. Unset: the pass began at the epoch's start.
    std::function<AnyBatch()> first_rows = {};
    Origin origin{"data"};
  };

  /// `read` gives the next batch of the base loader; it is called on rank 0 only.
  Dispatcher(Options options, ReadBase read) : options_(std::move(options)), read_(std::move(read)) {}

  /// Returns this rank's slice of the next step; nothing at the end.
  /// Collective: yes. Blocks: for rank 0 to read. Throws: DataError on every rank if the dataset, or cutting a batch,
  /// fails on rank 0; CommError.
  std::optional<PlannedBatch> next();

  /// Rank 0 reads on without handing out, until `num_steps` steps and `position` are past. An exception of `read` is
  /// stored for next(), which every rank calls.
  /// Blocks: to read.
  void pass_over(size_t num_steps, size_t position);

 private:
  struct Step {
    AnyBatch batch = {};
    AnyBatch own = {};  // rank 0's part
    size_t num_rows = 0;
    std::exception_ptr error = nullptr;
    std::string message = {};
  };
  static Step failure(const std::exception& error);
  Step next_step();
  void keep_fillers(const AnyBatch& batch, size_t num_rows);
  AnyBatch part_of(const Step& step, int rank) const;
  std::vector<at::Tensor> pack(Step& step) const;
  std::vector<at::Tensor> parcels(const Step& step) const;
  at::Tensor parcel(const Step& step, int rank) const;

  Options options_;
  ReadBase read_;
  AnyBatch padding_;
  std::optional<Step> failed_;
};

}  // namespace hasten::data::detail
