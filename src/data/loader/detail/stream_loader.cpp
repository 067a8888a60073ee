// See stream_loader.h.
#include "hasten/data/loader/detail/stream_loader.h"

#include <algorithm>
#include <exception>
#include <numeric>
#include <string>

#include "compat/exception_message.h"
#include "data/loader/detail/batch_window.h"
#include "data/loader/detail/dispatch.h"
#include "data/loader/detail/read_ahead.h"
#include "data/loader/detail/recorded_epoch.h"
#include "data/loader/detail/verified_pass.h"
#include "hasten/core/error.h"
#include "hasten/core/log.h"

namespace hasten::data::detail {
namespace {

[[noreturn]] void throw_stream_error(const Origin& origin, size_t position) {
  std::string path;
  try {
    throw;
  } catch (const DataError& error) {
    path = error.path();
  } catch (...) {
  }
  std::throw_with_nested(DataError(origin, path, "the stream failed after ", position,
                                   " samples: ", compat::message_of_current_exception()));
}

void warn_reading_past(const Origin& origin, size_t position) {
  const Logger logger("data", {.rank = origin.rank, .world_size = origin.world_size});
  logger.warning(text("this stream cannot seek: its first ", position,
                      " samples are read once more to go on behind them. Give the dataset a seek(size_t position)."));
}

}  // namespace

/// Places in the stream, and the batches that lie there.
struct StreamLoader::Places {
  explicit Places(const BatchOperations& operations) : window(operations) {}
  size_t next = 0;
  BatchWindow window;
  AnyBatch held = {};
};

StreamLoader::StreamLoader(const torch::data::DataLoaderOptions& options, const BatchOperations& operations,
                           LoaderFacts facts, std::unique_ptr<StreamSource> stream)
    : LoaderImpl(options, operations), facts_(facts), stream_(std::move(stream)), dataset_length_(stream_->size()) {}

StreamLoader::~StreamLoader() = default;

void StreamLoader::prepare(const process::Process& process, std::shared_ptr<training::GradientState> gradient_state,
                           const LoaderOptions& own) {
  LoaderFacts facts = facts_;
  facts.batch_size = options_.batch_size;
  adopt(process, std::move(gradient_state), own, facts);
}

size_t StreamLoader::num_indices() const {
  if (!dataset_length_) throw_unknown_size(origin());
  return *dataset_length_;
}

size_t StreamLoader::size(size_t skip) const {
  const size_t full = num_indices() / options_.batch_size, rest = num_indices() % options_.batch_size;
  const size_t num_batches = full + (rest > 0 && !options_.drop_last ? 1 : 0);
  const size_t last = num_batches > full ? rest : options_.batch_size;
  const size_t size =
      dispatches() ? dispatched_length(num_batches) : shard_length(num_batches, last, shard(options_.batch_size));
  return size > skip ? size - skip : 0;
}

std::shared_ptr<EpochPipeline> StreamLoader::begin(size_t skip) {
  if (const auto older = pass_.lock()) older->supersede();
  reader_.reset();
  require_all(false);
  synchronize_generators();
  const EpochStart start = epochs_.begin();
  stream_->set_epoch(start.epoch);
  record_epoch(start.epoch);
  const size_t to_skip = start.position > 0 ? 0 : skip;
  auto pass = std::make_shared<EpochPipeline>(dispatches() ? dispatched_stages(to_skip, start.position)
                                                           : sharded_stages(to_skip, start.position));
  pass_ = pass;
  pass->advance();
  return pass;
}

LoaderState StreamLoader::state() const {
  LoaderState state = epochs_.state();
  state.num_samples = dataset_length_.value_or(0);
  return state;
}

void StreamLoader::load_state(const LoaderState& given) {
  const LoaderState state = counted_in_samples(given, options_.batch_size);
  check_state(state, {0, dataset_length_}, origin());
  epochs_.load(state);
}

void StreamLoader::rewind() {
  reader_.reset();  // before the dataset is touched: its thread reads it
  stream_->rewind();
  start_reader();
}

void StreamLoader::jump(Places& places, size_t position) {
  reader_.reset();
  stream_->seek(position, places.next);
  places.next = position;
  places.held.reset();
  start_reader();
}

void StreamLoader::start_reader() {
  reader_ = std::make_unique<ReadAhead>([this] { return stream_->read(options_.batch_size); }, options_.workers,
                                        options_.max_jobs, options_.timeout, origin());
}

// A batch of a type of one's own, in a world of one, counts as full.
size_t StreamLoader::rows_of(const AnyBatch& batch) const {
  return operations_.num_rows ? operations_.num_rows(batch) : options_.batch_size;
}

AnyBatch StreamLoader::read(Places& places) {
  try {
    return reader_->next();
  } catch (const StreamTimeout&) {
    throw;
  } catch (...) {
    throw_stream_error(origin(), places.next);
  }
}

// The next batch of the stream; with drop_last, not a short one that is the last.
AnyBatch StreamLoader::next_batch(Places& places) {
  AnyBatch batch = places.held ? std::exchange(places.held, nullptr) : read(places);
  if (batch && options_.drop_last && rows_of(batch) < options_.batch_size) {
    places.held = read(places);
    if (!places.held) return nullptr;
  }
  return batch;
}

std::optional<Indices> StreamLoader::next_places(Places& places) {
  AnyBatch batch = next_batch(places);
  if (!batch) return std::nullopt;
  Indices indices(rows_of(batch));
  std::iota(indices.begin(), indices.end(), places.next);
  places.window.add(places.next, indices.size(), std::move(batch));
  places.next += indices.size();
  return indices;
}

PipelineStages StreamLoader::sharded_stages(size_t skip, size_t position) {
  rewind();
  auto places = std::make_shared<Places>(operations_);
  const BatchShardOptions shard = this->shard(options_.batch_size);
  const bool fills = shard.even_batches && !shard.drop_last;
  places->window.keep_first(fills ? total_batch_size() : 0);
  std::vector<Indices> head;
  auto rest = std::make_shared<std::deque<Indices>>();
  if (position > 0) head = go_to(*places, position, fills ? (splits() ? 1 : world_size()) : 0, *rest);
  auto source = [this, places, rest]() -> std::optional<Indices> {
    if (rest->empty()) return next_places(*places);
    auto front = std::move(rest->front());
    rest->pop_front();
    return front;
  };
  PipelineStages stages;
  show(stages);
  stages.owner = shared_from_this();
  if (auto* recorder = training::verify_recorder()) {
    const auto pass =
        std::make_shared<VerifiedPass>(*recorder, operations_, prepared(), process_ ? process_->rank() : 0);
    pass->plan(
        stages, SharePlan(shard, pass->takes_all(), source, {position, std::move(head)}), skip,
        [places](const Indices& indices) { return places->window.pick(indices); },
        [places](size_t end) { places->window.forget_before(end); });
  } else {
    stages.plan =
        [skip, places,
         plan = BatchShard(shard, source, {position, std::move(head)})]() mutable -> std::optional<PlannedBatch> {
      std::optional<ShardedBatch> next;
      for (; (next = plan.next()) && skip > 0; --skip) places->window.forget_before(next->end);
      if (!next) return std::nullopt;
      PlannedBatch planned{std::move(*next)};
      planned.ready = places->window.pick(planned.shard.indices);
      places->window.forget_before(planned.shard.end);
      return planned;
    };
  }
  stages.remainder.total_batch_size = total_batch_size();
  stages.remainder.at_last = LastRemainder::kAsBefore;
  if (dataset_length_ && !options_.drop_last) {
    // Accelerate takes the length of a rank's evened-out part here, which full steps always divide.
    stages.remainder.before_last = world_size() > 1 ? 0 : static_cast<int64_t>(*dataset_length_ % total_batch_size());
  }
  return stages;
}

// Puts the stream to a position. Gives the epoch's first `round` batches, and in `rest` those already read that lie
// behind the position.
std::vector<Indices> StreamLoader::go_to(Places& places, size_t position, size_t round, std::deque<Indices>& rest) {
  std::vector<Indices> head;
  if (!stream_->seekable()) warn_reading_past(origin(), position);
  const auto read_on = [&] {
    auto batch = next_places(places);
    if (!batch) return false;
    const auto unseen = std::lower_bound(batch->begin(), batch->end(), position);
    if (unseen != batch->end()) rest.emplace_back(unseen, batch->end());
    if (head.size() < round) head.push_back(*batch);
    places.window.forget_before(position);
    return true;
  };
  while (head.size() < round && read_on()) {
  }
  if (stream_->seekable() && places.next < position) jump(places, position);
  while (places.next < position && read_on()) {
  }
  return head;
}

PipelineStages StreamLoader::dispatched_stages(size_t skip, size_t position) {
  auto places = std::make_shared<Places>(operations_);
  const bool reads = process_->rank() == 0;
  if (reads) rewind();
  size_t begin = 0;
  std::function<AnyBatch()> first_rows;
  if (stream_->seekable()) {
    begin = position;
    if (reads && position > 0) first_rows = jump_behind_first_rows(*places, position);
  } else if (reads && position > 0) {
    warn_reading_past(origin(), position);
  }
  auto dispatcher = this->dispatcher(
      begin, [this, places] { return next_counted(*places); }, std::move(first_rows));
  dispatcher->pass_over(skip, position);
  return dispatched(std::move(dispatcher), shared_from_this());
}

std::optional<BaseBatch> StreamLoader::next_counted(Places& places) {
  AnyBatch batch = next_batch(places);
  if (!batch) return std::nullopt;
  places.next += rows_of(batch);
  return BaseBatch{std::move(batch), places.next};
}

// Reads what may have to fill up the last step, then goes to the position.
std::function<AnyBatch()> StreamLoader::jump_behind_first_rows(Places& places, size_t position) {
  std::vector<AnyBatch> first;
  while (places.next < world_size()) {
    auto next = next_counted(places);
    if (!next) break;
    first.push_back(std::move(next->batch));
  }
  jump(places, position);
  return [first = std::move(first), of = operations_] {
    std::vector<AnyBatch> copies;
    for (const AnyBatch& batch : first) copies.push_back(of.copy(batch));
    return of.join(copies);
  };
}

}  // namespace hasten::data::detail
