// See dispatch.h.
#include "data/loader/detail/dispatch.h"

#include "hasten/comm/types/purpose.h"

#include <algorithm>
#include <utility>

namespace hasten::data::detail {

RowPart dispatched_part(size_t num_rows, int rank, int world_size) noexcept {
  const auto world = static_cast<size_t>(world_size);
  const size_t count = (num_rows + world - 1) / world;
  return {count * static_cast<size_t>(rank), count};
}

void write_head(ParcelWriter& to, const DispatchHead& head) {
  to.number(head.kind);
  to.number(head.num_samples);
  to.number(head.end);
  to.string(head.message);
}

DispatchHead read_head(ParcelReader& from) {
  DispatchHead head;
  head.kind = from.number<DispatchHead::Kind>();
  head.num_samples = from.number<uint64_t>();
  head.end = from.number<uint64_t>();
  head.message = from.string();
  return head;
}

std::optional<PlannedBatch> Dispatcher::next() {
  const comm::Group& group = options_.group;
  Step step;
  std::vector<at::Tensor> parts;
  if (group.rank() == 0) {
    step = next_step();
    parts = pack(step);
  }
  const comm::Purpose purpose("a batch from rank 0");
  const at::Tensor mine = group.scatter(parts, 0);
  if (step.error) std::rethrow_exception(step.error);
  ParcelReader reader(mine);
  const DispatchHead head = read_head(reader);
  if (head.kind == DispatchHead::Kind::kError) {
    throw DataError(options_.origin, "", "rank 0, which reads for all, failed: ", head.message);
  }
  if (head.kind == DispatchHead::Kind::kEnd) return std::nullopt;
  PlannedBatch planned{
      {.num_samples = static_cast<size_t>(head.num_samples),
       .num_local_valid = static_cast<size_t>(head.num_samples) / static_cast<size_t>(group.world_size()),
       .end = static_cast<size_t>(head.end)}};
  planned.ready = group.rank() == 0 ? std::move(step.own) : options_.operations.read(reader);
  return planned;
}

void Dispatcher::pass_over(size_t num_steps, size_t position) {
  if (options_.group.rank() != 0) return;
  while (num_steps > 0 || options_.position < position) {
    Step step = next_step();
    if (step.error) failed_ = std::move(step);
    if (failed_ || !step.batch) return;
    if (num_steps > 0) --num_steps;
  }
}

Dispatcher::Step Dispatcher::failure(const std::exception& error) {
  return {.error = std::current_exception(), .message = error.what()};
}

Dispatcher::Step Dispatcher::next_step() {
  Step step;
  if (failed_) return *failed_;
  try {
    std::vector<AnyBatch> batches;
    size_t end = 0;
    const size_t requested = options_.split_batches ? 1 : static_cast<size_t>(options_.group.world_size());
    while (batches.size() < requested) {
      auto batch = read_();
      if (!batch) break;
      batches.push_back(std::move(batch->batch));
      end = batch->end;
    }
    if (batches.empty() || (options_.drop_last && batches.size() < requested)) return step;
    step.batch = options_.operations.join(batches);
    step.num_rows = options_.operations.num_rows(step.batch);
    options_.position = end;
    keep_fillers(step.batch, step.num_rows);
  } catch (const std::exception& error) {
    step = failure(error);
  }
  return step;
}

// The first step's rows fill up the last one, if that is not divided by the world size.
void Dispatcher::keep_fillers(const AnyBatch& batch, size_t num_rows) {
  const auto world_size = static_cast<size_t>(options_.group.world_size());
  if (options_.drop_last || padding_) return;
  if (!options_.first_rows) {
    padding_ = options_.operations.slice(batch, 0, std::min(world_size, num_rows));
  } else if (num_rows % world_size != 0) {
    const AnyBatch first = options_.first_rows();
    padding_ = options_.operations.slice(first, 0, std::min(world_size, options_.operations.num_rows(first)));
  }
}

AnyBatch Dispatcher::part_of(const Step& step, int rank) const {
  const BatchOperations& of = options_.operations;
  const RowPart part = dispatched_part(step.num_rows, rank, options_.group.world_size());
  const size_t end = part.begin + part.count;
  if (end <= step.num_rows || !padding_) {
    return of.slice(step.batch, std::min(part.begin, step.num_rows), std::min(end, step.num_rows));
  }
  std::vector<AnyBatch> pieces;
  if (part.begin < step.num_rows) pieces.push_back(of.slice(step.batch, part.begin, step.num_rows));
  const size_t num_padding = of.num_rows(padding_);
  for (size_t row = std::max(part.begin, step.num_rows); row < end; ++row) {
    const size_t padding = (row - step.num_rows) % num_padding;
    pieces.push_back(of.slice(padding_, padding, padding + 1));
  }
  return of.join(pieces);
}

// The parts for the ranks. A batch that cannot be cut is a failure of the step on all ranks.
std::vector<at::Tensor> Dispatcher::pack(Step& step) const {
  try {
    if (step.batch) step.own = part_of(step, 0);
    return parcels(step);
  } catch (const std::exception& error) {
    step = failure(error);
    return parcels(step);
  }
}

std::vector<at::Tensor> Dispatcher::parcels(const Step& step) const {
  std::vector<at::Tensor> all;
  for (int rank = 0; rank < options_.group.world_size(); ++rank) all.push_back(parcel(step, rank));
  return all;
}

at::Tensor Dispatcher::parcel(const Step& step, int rank) const {
  ParcelWriter to;
  if (step.error) {
    write_head(to, {.kind = DispatchHead::Kind::kError, .message = step.message});
  } else if (!step.batch) {
    write_head(to, {});
  } else {
    write_head(to, {.kind = DispatchHead::Kind::kBatch, .num_samples = step.num_rows, .end = options_.position});
    if (rank > 0) options_.operations.write(to, part_of(step, rank));
  }
  return to.finish();
}

}  // namespace hasten::data::detail
