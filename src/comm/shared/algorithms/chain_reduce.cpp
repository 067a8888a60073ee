// See chain_reduce.h.
#include "comm/shared/algorithms/chain_reduce.h"

#include "comm/shared/memory/chunks.h"
#include "comm/shared/memory/copying.h"
#include "comm/shared/memory/pipeline.h"

namespace hasten::comm::shared {
namespace {

// Long enough to be worth a wait, short enough for a core's own caches.
constexpr int64_t kSlotBytes = 64 << 10;
constexpr int64_t kLeastBytes = 8 << 10;

// Ranks that share a core each do as much as they can before the next one's turn. In a long relay the ranks of another
// core wait for the last of them, and would then do the same. So their turns are shorter.
constexpr int64_t kTurn = 8;
constexpr int64_t kLongRelay = 64;

/// Each rank has something to do, and ranks that share a core do much at a time.
int64_t lag_of(int world_size) {
  return std::max(16, 2 * world_size);
}

class ChainReduce {
 public:
  ChainReduce(PhaseProtocol& steps, const Folding& fold, int64_t item, int64_t count, const std::byte* input,
              const Share& share)
      : steps_(steps),
        fold_(fold),
        item_(item),
        input_(input),
        share_(share),
        chunks_(count, chunk_size(count)),
        pipeline_(steps, chunks_.count(), lag_of(steps.world_size())) {}

  void run() {
    pipeline_.run([this](int64_t i) { hand_over(i); }, [this](int64_t i) { take(i); });
  }

 private:
  int64_t chunk_size(int64_t count) const {
    const int64_t bytes = count * fold_.partial_bytes / lag_of(steps_.world_size());
    return std::clamp(bytes, kLeastBytes, kSlotBytes) / fold_.partial_bytes / Chunks::kAlign * Chunks::kAlign;
  }

  bool is_first() const { return steps_.rank() == 0; }
  bool is_last() const { return steps_.rank() == steps_.world_size() - 1; }
  std::byte* slot(int64_t i) const { return steps_.whole_area(0) + pipeline_.slot(i) * kSlotBytes; }

  void hand_over(int64_t i) {
    if (chunks_.count() > kLongRelay && i % kTurn == kTurn - 1) steps_.yield();
    const std::byte* mine = input_ + chunks_.begin(i) * item_;
    if (is_first()) {
      pipeline_.wait_for_slot(i);
      return fold_.first(slot(i), mine, chunks_.size(i));
    }
    pipeline_.wait_for(steps_.rank() - 1, i);
    if (!is_last()) return fold_.next(slot(i), mine, chunks_.size(i));

    // Where this rank takes the chunk as well, it goes to its place at once.
    std::byte* result = is_mine(i) ? share_.to + (chunks_.begin(i) - share_.begin) * item_ : scratch();
    const bool others_take_it = !is_mine(i) || !share_.alone;
    const int64_t size = chunks_.size(i), block = kBlockBytes / item_;
    for (int64_t begin = 0; begin < size; begin += block) {
      const int64_t count = std::min(block, size - begin);
      std::byte* out = result + begin * item_;
      fold_.last(out, slot(i) + begin * fold_.partial_bytes, mine + begin * item_, steps_.world_size(), count);
      // Over partial sums that have been read: an item is no larger than one of those.
      if (others_take_it) copy_bytes(slot(i) + begin * item_, out, count * item_);
    }
  }

  void take(int64_t i) const {
    if (is_last() && is_mine(i)) return;
    const int64_t begin = std::max(share_.begin, chunks_.begin(i));
    const int64_t end = std::min(share_.end, chunks_.begin(i) + chunks_.size(i));
    if (begin >= end) return;
    pipeline_.wait_for(steps_.world_size() - 1, i);
    copy_bytes(share_.to + (begin - share_.begin) * item_, slot(i) + (begin - chunks_.begin(i)) * item_,
               (end - begin) * item_);
  }

  /// Returns true if this rank takes the whole chunk.
  bool is_mine(int64_t i) const {
    return share_.begin <= chunks_.begin(i) && chunks_.begin(i) + chunks_.size(i) <= share_.end;
  }
  std::byte* scratch() {
    scratch_.resize(kSlotBytes);
    return scratch_.data();
  }

  PhaseProtocol& steps_;
  const Folding& fold_;
  const int64_t item_;
  const std::byte* input_;
  const Share share_;
  const Chunks chunks_;
  Pipeline pipeline_;
  std::vector<std::byte> scratch_;
};

}  // namespace

void chain_reduce(PhaseProtocol& steps, const Folding& fold, int64_t item, int64_t count, const std::byte* input,
                  const Share& share) {
  ChainReduce(steps, fold, item, count, input, share).run();
}

size_t chain_reduce_bytes(int world_size) {
  return static_cast<size_t>(2 * lag_of(world_size) * kSlotBytes);
}

}  // namespace hasten::comm::shared
