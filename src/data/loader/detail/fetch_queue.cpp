// See fetch_queue.h.
#include "data/loader/detail/fetch_queue.h"

#include <utility>

namespace hasten::data::detail {

void FetchQueue::add(ShardedBatch planned, AnyBatch ready) {
  slots_.push_back(std::make_shared<Slot>(Slot{.planned = std::move(planned), .batch = std::move(ready)}));
  if (!workers_) return;
  workers_->submit(this, [slot = slots_.back(), job = job_, pool = workers_](size_t worker) {
    AnyBatch batch;
    std::exception_ptr error;
    try {
      batch = (*job)(worker, slot->planned.indices);
    } catch (...) {
      error = std::current_exception();
    }
    pool->finish([&] {
      slot->batch = std::move(batch);
      slot->error = error;
      slot->done = true;
    });
  });
}

FetchQueue::Entry FetchQueue::take_front() noexcept {
  Entry entry = std::move(slots_.front());
  slots_.pop_front();
  return entry;
}

FetchQueue::Entry FetchQueue::take_done(bool in_order, std::optional<std::chrono::milliseconds> timeout) {
  auto found = slots_.begin();
  const auto ready = [&] {
    const auto last = in_order || slots_.size() == 1 ? slots_.begin() + 1 : slots_.end() - 1;
    for (found = slots_.begin(); found != last; ++found) {
      if ((*found)->done) return true;
    }
    return false;
  };
  if (!workers_->wait(ready, timeout)) return nullptr;
  Entry entry = std::move(*found);
  slots_.erase(found);
  return entry;
}

bool FetchQueue::front_is_there() {
  if (slots_.empty()) return false;
  const Slot& first = *slots_.front();
  const auto ready = [&] { return first.done && !first.error; };
  if (workers_ && !workers_->wait(ready, std::chrono::milliseconds(0))) return false;
  return first.batch != nullptr;
}

void FetchQueue::clear() noexcept {
  if (workers_) workers_->drop_queued(this);
  slots_.clear();
}

}  // namespace hasten::data::detail
