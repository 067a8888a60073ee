// See epoch_pipeline.h.
#include "hasten/data/loader/detail/epoch_pipeline.h"

#include "data/dataset/pinned_rows.h"
#include "data/loader/detail/fetch_queue.h"
#include "data/loader/detail/recorded_epoch.h"
#include "hasten/flight/recorder.h"

namespace hasten::data::detail {
namespace {

// The work of a worker: it fetches batches and pins them.
FetchQueue::Job job_of(const PipelineStages& stages) {
  return [fetch = stages.fetch.fetch, pin = stages.transfer.pin](size_t worker, const Indices& indices) {
    const PinnedRows rows(pin != nullptr);
    AnyBatch batch = fetch(worker, indices);
    return pin ? pin(batch) : batch;
  };
}

}  // namespace

EpochPipeline::EpochPipeline(PipelineStages stages)
    : stages_(std::move(stages)), queue_(std::make_unique<FetchQueue>(stages_.fetch.workers, job_of(stages_))) {
  position_.remainder = stages_.remainder.before_last;
  if (stages_.gradient_state) stages_.gradient_state->enter(&position_);
}

EpochPipeline::~EpochPipeline() {
  close();
}

void EpochPipeline::advance() {
  if (superseded_) {
    throw UsageError(stages_.origin, "this pass over the loader was ended by a newer one: a loader has one pass at a ",
                     "time. Make a second data::loader of the same dataset for a nested loop.");
  }
  batch_.reset();
  const flight::PhaseScope phase("data");
  const auto requested_at = std::chrono::steady_clock::now();
  try {
    stages_.fetch.workers ? take_from_workers() : take_here();
    if (batch_) transfer();
  } catch (const std::exception& error) {
    close();
    if (stages_.failed) stages_.failed(error);
    throw;
  } catch (...) {
    close();
    throw;
  }
  if (!batch_) close();
  if (batch_) record_batch();
  if (batch_ && stages_.gradient_state) {
    stages_.gradient_state->loaders().count(static_cast<int64_t>(given_.num_local_valid),
                                            std::chrono::steady_clock::now() - requested_at);
  }
  if (stages_.received) stages_.received(batch_ ? std::optional(given_.end) : std::nullopt);
}

void EpochPipeline::supersede() noexcept {
  if (batch_) superseded_ = true;
  close();
}

void EpochPipeline::close() noexcept {
  queue_->clear();
  if (stages_.gradient_state) stages_.gradient_state->leave(&position_);
}

// Plans one more batch, and sets a worker on it. False at the end of the plan.
bool EpochPipeline::plan_one() {
  auto planned = stages_.plan();
  if (!planned) return false;
  queue_->add(std::move(planned->shard), std::move(planned->ready));
  return true;
}

// Plans until `count` batches are under way. The loop gets an exception of planning behind the batches that were
// planned before.
void EpochPipeline::plan_ahead(size_t count) {
  try {
    while (!plan_error_ && queue_->size() < count && plan_one()) {
    }
  } catch (...) {
    plan_error_ = std::current_exception();
  }
  if (plan_error_ && queue_->empty() && !batch_) std::rethrow_exception(std::exchange(plan_error_, nullptr));
}

void EpochPipeline::take_here() {
  plan_ahead(1);
  if (queue_->empty()) return;
  const auto slot = queue_->take_front();
  const PinnedRows rows(stages_.transfer.pin != nullptr);
  batch_ = slot->batch ? std::move(slot->batch) : stages_.fetch.fetch(0, slot->planned.indices);
  given_ = std::move(slot->planned);
  sent_ = slot->sent;
  plan_ahead(1);  // after the fetch, so that draws of sampler and dataset alternate as in libtorch
  look_ahead();
}

void EpochPipeline::take_from_workers() {
  const FetchStage& fetch = stages_.fetch;
  plan_ahead(fetch.max_jobs);
  if (queue_->empty()) return;
  const auto slot = queue_->take_done(fetch.enforce_ordering, fetch.timeout);
  if (!slot) {
    throw DataError(stages_.origin, "", "no batch within the timeout of ", fetch.timeout->count(), " ms; sample ",
                    queue_->front().planned.indices.front(), " … is being fetched. Give a longer timeout.");
  }
  if (slot->error) std::rethrow_exception(slot->error);
  batch_ = std::move(slot->batch);
  given_ = std::move(slot->planned);
  sent_ = slot->sent;
  plan_ahead(fetch.max_jobs);
  look_ahead();
}

// Moves the batch to the device if needed, and starts the copy of the next one.
void EpochPipeline::transfer() {
  const TransferStage& stage = stages_.transfer;
  if (stage.send && !sent_) batch_ = stage.send(batch_);
  if (!stage.receive) return;
  stage.receive(batch_);
  // Without ordering the next one is not known.
  if (!stages_.fetch.enforce_ordering || !queue_->front_is_there()) return;
  FetchQueue::Slot& next = queue_->front();
  next.batch = stage.send(next.batch);
  next.sent = true;
}

void EpochPipeline::look_ahead() {
  position_.end_of_dataloader = queue_->empty() && !plan_error_;
  if (!position_.end_of_dataloader) return;
  const RemainderRule& rule = stages_.remainder;
  const auto num_samples = static_cast<int64_t>(given_.num_samples);
  if (rule.at_last == LastRemainder::kAlways) position_.remainder = num_samples;
  if (rule.at_last != LastRemainder::kIfShort) return;
  position_.num_local_valid = static_cast<int64_t>(given_.num_local_valid);
  const bool is_short = given_.padded || given_.num_samples < rule.total_batch_size;
  if (!rule.drop_last) position_.remainder = is_short ? num_samples : 0;
}

void throw_behind_last_batch(const EpochPipeline* pass) {
  throw UsageError(pass == nullptr ? Origin{"data"} : pass->origin(),
                   "the loop goes on behind the loader's last batch. End it at end(), or call begin() for another pass "
                   "over the data.");
}

}  // namespace hasten::data::detail
