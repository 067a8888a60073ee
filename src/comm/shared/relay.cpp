// See relay.h.
//
// The ranks' counters (steps.h) say how far each is: with step s0 the operation began, with s0 + i + 1 a rank
// has handed chunk i over and taken chunk i - lag - 1, and with the last step it has taken everything.
#include "comm/shared/relay.h"

#include "comm/shared/chunks.h"
#include "comm/shared/copying.h"

namespace hasten::comm::shared {
namespace {

// Long enough to be worth a wait, short enough for a core's own caches.
constexpr int64_t kSlotBytes = 64 << 10;
constexpr int64_t kLeastBytes = 8 << 10;

/// How many chunks a rank may be ahead of the last one: each has something to do, and ranks that share a core
/// do much at a time. There are twice as many slots, since what is taken is handed back as late.
int64_t lag_of(int world_size) {
  return std::max(16, 2 * world_size);
}

class Relay {
 public:
  Relay(Steps& steps, const Folding& fold, int64_t item, int64_t count, const std::byte* input,
        const Share& share)
      : steps_(steps),
        fold_(fold),
        item_(item),
        input_(input),
        share_(share),
        chunks_(count, chunk_size(count)),
        lag_(lag_of(steps.world_size())),
        start_(steps.step()),
        end_(start_ + static_cast<uint32_t>(chunks_.count()) + 1) {}

  void run() {
    for (int64_t i = 0; i < chunks_.count() + lag_; ++i) {
      if (i < chunks_.count()) {
        hand_over(i);
        steps_.post_next();
      }
      if (i >= lag_) take(i - lag_);
    }
    steps_.post_next();
  }

 private:
  int64_t chunk_size(int64_t count) const {
    const int64_t bytes = count * fold_.partial_bytes / lag_of(steps_.world_size());
    return std::clamp(bytes, kLeastBytes, kSlotBytes) / fold_.partial_bytes / Chunks::kAlign * Chunks::kAlign;
  }

  bool is_first() const { return steps_.rank() == 0; }
  bool is_last() const { return steps_.rank() == steps_.world_size() - 1; }
  std::byte* slot(int64_t i) const { return steps_.areas() + i % (2 * lag_) * kSlotBytes; }
  uint32_t handed_over(int64_t i) const { return start_ + static_cast<uint32_t>(i) + 1; }
  uint32_t taken(int64_t i) const { return handed_over(i + lag_ + 1); }

  void hand_over(int64_t i) {
    const std::byte* mine = input_ + chunks_.begin(i) * item_;
    if (is_first()) {
      if (i >= 2 * lag_) {
        for (int peer = 1; peer < steps_.world_size(); ++peer) wait_for(peer, taken(i - 2 * lag_));
      }
      return fold_.first(slot(i), mine, chunks_.size(i));
    }
    wait_for(steps_.rank() - 1, handed_over(i));
    if (!is_last()) return fold_.next(slot(i), mine, chunks_.size(i));

    // Where this rank takes the chunk as well, it goes to its place at once.
    std::byte* result = is_mine(i) ? share_.to + (chunks_.begin(i) - share_.begin) * item_ : scratch();
    fold_.last(result, slot(i), mine, steps_.world_size(), chunks_.size(i));
    if (!is_mine(i) || !share_.alone) copy_bytes(slot(i), result, chunks_.size(i) * item_);
  }

  void take(int64_t i) const {
    if (is_last() && is_mine(i)) return;
    const int64_t begin = std::max(share_.begin, chunks_.begin(i));
    const int64_t end = std::min(share_.end, chunks_.begin(i) + chunks_.size(i));
    if (begin >= end) return;
    wait_for(steps_.world_size() - 1, handed_over(i));
    copy_bytes(share_.to + (begin - share_.begin) * item_, slot(i) + (begin - chunks_.begin(i)) * item_,
               (end - begin) * item_);
  }

  /// Whether this rank takes the whole chunk.
  bool is_mine(int64_t i) const {
    return share_.begin <= chunks_.begin(i) && chunks_.begin(i) + chunks_.size(i) <= share_.end;
  }
  void wait_for(int peer, uint32_t step) const { steps_.wait_for(peer, step, end_); }
  std::byte* scratch() {
    scratch_.resize(kSlotBytes);
    return scratch_.data();
  }

  Steps& steps_;
  const Folding& fold_;
  const int64_t item_;
  const std::byte* input_;
  const Share share_;
  const Chunks chunks_;
  const int64_t lag_;
  const uint32_t start_, end_;
  std::vector<std::byte> scratch_;
};

}  // namespace

void relay(Steps& steps, const Folding& fold, int64_t item, int64_t count, const std::byte* input,
           const Share& share) {
  Relay(steps, fold, item, count, input, share).run();
}

size_t relay_bytes(int world_size) {
  return static_cast<size_t>(2 * lag_of(world_size) * kSlotBytes);
}

}  // namespace hasten::comm::shared
