// One pass over a loader: plans this rank's batches, has them fetched (here or by workers), hands them out in
// order, and keeps the position that GradientState shows while a batch is in the caller's hands.
//
// The plan runs ahead of the data by indices alone, so the last batch is known to be the last without reading
// any sample ahead. A batch that is there when the loop gets the one before is sent to the device already.
// Which functions plan and fetch, and whose workers run, is map_loader.h's.
#pragma once

#include <chrono>
#include <cstddef>
#include <cstdint>
#include <deque>
#include <exception>
#include <functional>
#include <memory>
#include <optional>
#include <utility>

#include "hasten/core/error.h"
#include "hasten/data/loader/detail/staging.h"
#include "hasten/data/loader/detail/worker_pool.h"
#include "hasten/data/sampler/batch_shard.h"
#include "hasten/training/gradient_state.h"

namespace hasten::data {

/// This rank's next batch: what to fetch or, where planning means reading (streams, dispatch), what was read.
template <class Batch>
struct PlannedBatch {
  ShardedBatch shard;
  std::optional<Batch> ready = {};
};

/// The remainder at the last batch.
enum class LastRemainder {
  kIfShort,  ///< the samples of a step that is not full, else 0; what it said before with drop_last
  kAlways,   ///< the samples of the step: dispatched batches
  kAsBefore  ///< what it said before: sharded streams
};

template <class Batch>
struct PipelineStages {
  std::function<std::optional<PlannedBatch<Batch>>()> plan;
  /// Fetches it with a worker's dataset.
  std::function<Batch(size_t worker, const Indices&)> fetch;
  DeviceTransfer<Batch> placement;
  /// Told how far the epoch's order has come when a batch is given, and nothing when the pass has ended.
  std::function<void(std::optional<size_t> end)> received;
  /// Told of an error before the loop gets it.
  std::function<void(const std::exception& error)> failed;
  /// Null: fetched by the caller, when it is its turn.
  WorkerPool* workers = nullptr;
  /// Batches under way at once, 1 without workers.
  size_t max_jobs = 1;
  bool enforce_ordering = true;
  std::optional<std::chrono::milliseconds> timeout;
  std::shared_ptr<training::GradientState> gradient_state;
  /// The remainder before the last batch: the length modulo total_batch_size; -1 for drop_last.
  int64_t remainder = -1;
  /// Samples of a full step of all ranks; the last batch's remainder is 0 if it is one. 0: batches are of any
  /// size, and a step is full if no sample was given once more.
  size_t total_batch_size = 1;
  bool drop_last = false;
  LastRemainder last_remainder = LastRemainder::kIfShort;
  Origin origin{"data"};
  /// Keeps alive what the functions above use.
  std::shared_ptr<void> owner;
};

template <class Batch>
class EpochPipeline {
 public:
  explicit EpochPipeline(PipelineStages<Batch> parts) : parts_(std::move(parts)) {
    position_.remainder = parts_.remainder;
    if (parts_.gradient_state) parts_.gradient_state->enter(&position_);
  }
  EpochPipeline(const EpochPipeline&) = delete;
  EpochPipeline& operator=(const EpochPipeline&) = delete;
  ~EpochPipeline() { close(); }

  /// The next batch, or the end of the pass.
  /// Collective: no. Blocks: until it is fetched. Throws: DataError of the dataset (the pass has ended
  /// then, and all batches before were given) or of a timeout, UsageError if the loader began another pass.
  void advance() {
    if (superseded_) {
      throw UsageError(parts_.origin,
                       "this pass over the loader was ended by a newer one: a loader has one pass at a ",
                       "time. Make a second data::loader of the same dataset for a nested loop.");
    }
    batch_.reset();
    const auto asked = std::chrono::steady_clock::now();
    try {
      parts_.workers ? take_from_workers() : take_here();
      if (batch_) place();
    } catch (const std::exception& error) {
      close();
      if (parts_.failed) parts_.failed(error);
      throw;
    } catch (...) {
      close();
      throw;
    }
    if (!batch_) close();
    if (batch_ && parts_.gradient_state) {
      parts_.gradient_state->loaders().count(static_cast<int64_t>(given_.num_local_valid), std::chrono::steady_clock::now() - asked);
    }
    if (parts_.received) parts_.received(batch_ ? std::optional(given_.end) : std::nullopt);
  }

  /// Ends the pass early because the loader begins another.
  void supersede() noexcept {
    if (batch_) superseded_ = true;
    close();
  }

  bool at_end() const noexcept { return !batch_ && !superseded_; }
  Batch& batch() noexcept { return *batch_; }
  /// Samples of the order up to the end of the batch in hand, from the epoch's start.
  size_t end() const noexcept { return given_.end; }
  const training::LoaderPosition& position() const noexcept { return position_; }

 private:
  struct Slot {
    ShardedBatch planned;
    std::optional<Batch> batch;  // once done
    std::exception_ptr error;
    bool done = false;
    bool sent = false;
  };

  void close() noexcept {
    if (parts_.workers) parts_.workers->drop_queued(this);
    slots_.clear();
    if (parts_.gradient_state) parts_.gradient_state->leave(&position_);
  }

  /// Plans one more batch, and sets a worker on it. False at the end of the plan.
  bool add_slot() {
    auto planned = parts_.plan();
    if (!planned) return false;
    slots_.push_back(std::make_shared<Slot>());
    slots_.back()->planned = std::move(planned->shard);
    slots_.back()->batch = std::move(planned->ready);
    if (!parts_.workers) return true;
    // The job owns all it needs: it may still run when this pass is gone.
    parts_.workers->submit(this, [slot = slots_.back(), fetch = parts_.fetch, pin = parts_.placement.pin,
                                  pool = parts_.workers](size_t worker) {
      std::optional<Batch> batch;
      std::exception_ptr error;
      try {
        batch = fetch(worker, slot->planned.indices);
        if (pin) batch = pin(*batch);
      } catch (...) {
        error = std::current_exception();
      }
      pool->finish([&] {
        slot->batch = std::move(batch);
        slot->error = error;
        slot->done = true;
      });
    });
    return true;
  }

  /// Plans until `count` batches are under way. What planning throws, the loop gets behind the batches that
  /// were planned before.
  void plan_ahead(size_t count) {
    try {
      while (!plan_error_ && slots_.size() < count && add_slot()) {
      }
    } catch (...) {
      plan_error_ = std::current_exception();
    }
    if (plan_error_ && slots_.empty() && !batch_) std::rethrow_exception(std::exchange(plan_error_, nullptr));
  }

  void take_here() {
    plan_ahead(1);
    if (slots_.empty()) return;
    auto& slot = *slots_.front();
    batch_ = slot.batch ? std::move(slot.batch) : parts_.fetch(0, slot.planned.indices);
    hand_out(slots_.begin());
    plan_ahead(1);  // after the fetch, so that draws of sampler and dataset alternate as in libtorch
    look_ahead();
  }

  void take_from_workers() {
    plan_ahead(parts_.max_jobs);
    if (slots_.empty()) return;
    auto found = slots_.begin();
    const auto ready = [&] {
      // The newest one waits for the others even without ordering: the last of the pass must come last.
      const auto last = parts_.enforce_ordering || slots_.size() == 1 ? slots_.begin() + 1 : slots_.end() - 1;
      for (found = slots_.begin(); found != last; ++found) {
        if ((*found)->done) return true;
      }
      return false;
    };
    if (!parts_.workers->wait(ready, parts_.timeout)) {
      throw DataError(parts_.origin, "", "no batch within the timeout of ", parts_.timeout->count(),
                      " ms; sample ", slots_.front()->planned.indices.front(),
                      " … is being fetched. Give a longer timeout.");
    }
    if ((*found)->error) std::rethrow_exception((*found)->error);
    batch_ = std::move((*found)->batch);
    hand_out(found);
    plan_ahead(parts_.max_jobs);
    look_ahead();
  }

  void hand_out(typename std::deque<std::shared_ptr<Slot>>::iterator slot) {
    given_ = std::move((*slot)->planned);
    sent_ = (*slot)->sent;
    slots_.erase(slot);
  }

  /// Sees to it that the batch is on the device, and starts the next one's way there.
  void place() {
    const DeviceTransfer<Batch>& placement = parts_.placement;
    if (placement.send && !sent_) batch_ = placement.send(*batch_);
    if (!placement.receive) return;
    placement.receive(*batch_);
    // Without ordering the next one is not known.
    if (slots_.empty() || !parts_.enforce_ordering) return;
    Slot& next = *slots_.front();
    const auto ready = [&] { return next.done && !next.error; };
    if (parts_.workers && !parts_.workers->wait(ready, std::chrono::milliseconds(0))) return;
    if (!next.batch) return;
    next.batch = placement.send(*next.batch);
    next.sent = true;
  }

  void look_ahead() {
    position_.end_of_dataloader = slots_.empty() && !plan_error_;
    if (!position_.end_of_dataloader) return;
    const auto num_samples = static_cast<int64_t>(given_.num_samples);
    if (parts_.last_remainder == LastRemainder::kIfShort) {
      position_.num_local_valid = static_cast<int64_t>(given_.num_local_valid);
    }
    const bool always = parts_.last_remainder == LastRemainder::kAlways;
    const bool is_short =
        !parts_.drop_last && (given_.padded || given_.num_samples < parts_.total_batch_size);
    if (always) position_.remainder = num_samples;
    if (parts_.last_remainder == LastRemainder::kIfShort && !parts_.drop_last) {
      position_.remainder = is_short ? num_samples : 0;
    }
  }

  PipelineStages<Batch> parts_;
  training::LoaderPosition position_;
  std::deque<std::shared_ptr<Slot>> slots_;
  std::optional<Batch> batch_;
  ShardedBatch given_;
  std::exception_ptr plan_error_;
  bool sent_ = false;
  bool superseded_ = false;
};

/// Input iterator over a pass; copies share it, and the last copy to go ends it.
template <class Batch>
class PassIterator {
 public:
  using iterator_category = std::input_iterator_tag;
  using value_type = Batch;
  using difference_type = std::ptrdiff_t;
  using pointer = Batch*;
  using reference = Batch&;

  /// The end.
  PassIterator() = default;
  explicit PassIterator(std::shared_ptr<EpochPipeline<Batch>> pass) : pass_(std::move(pass)) {}

  Batch& operator*() const { return pass_->batch(); }
  Batch* operator->() const { return &pass_->batch(); }
  PassIterator& operator++() {
    pass_->advance();
    return *this;
  }
  void operator++(int) { pass_->advance(); }
  /// As for torch's loaders: only "at the end or not" is worth asking.
  friend bool operator==(const PassIterator& a, const PassIterator& b) {
    return a.at_end() ? b.at_end() : a.pass_ == b.pass_;
  }

 private:
  bool at_end() const noexcept { return !pass_ || pass_->at_end(); }
  std::shared_ptr<EpochPipeline<Batch>> pass_;
};

}  // namespace hasten::data
