// The collectives that move bytes as they are; see operation.h. Those that add up are in reductions.cpp.
#include "comm/shared/algorithms/operation.h"

#include <algorithm>
#include <numeric>

#include "comm/shared/memory/chunks.h"
#include "comm/shared/memory/pipeline.h"
#include "comm/shared/memory/slot_writer.h"
#include "hasten/core/text.h"

namespace hasten::comm::shared {

void Operation::contribute(PhaseProtocol& steps) {
  steps.begin();
  steps.set_header(header_);
  write_first(steps);
  steps.post();
}

void Operation::complete(PhaseProtocol& steps) {
  steps.wait();
  steps.check_headers();
  go_on(steps);
}

namespace {

class Barrier : public Operation {
 public:
  Barrier() : Operation(header_of(OpType::kBarrier, 0)) {}
  bool is_one_step(const PhaseProtocol&) const override { return true; }

 protected:
  void write_first(PhaseProtocol&) override {}
  void go_on(PhaseProtocol&) override {}
};

// Data that does not fit in one step passes in chunks through the areas of its owners, each cut into slots.
constexpr int64_t kLag = 8;

// Rounded up to cache lines.
int64_t whole_lines(int64_t num_bytes) {
  constexpr auto kLine = static_cast<int64_t>(Layout::kLine);
  return (num_bytes + kLine - 1) / kLine * kLine;
}

int64_t slot_bytes(const PhaseProtocol& steps) {
  return static_cast<int64_t>(2 * steps.layout().chunk_bytes) / (2 * kLag);
}

class Broadcast : public Operation {
 public:
  Broadcast(at::Tensor bytes, int root)
      : Operation(header_of(OpType::kBroadcast, bytes.numel(), root)), bytes_(std::move(bytes)), root_(root) {}
  bool is_one_step(const PhaseProtocol& steps) const override { return bytes_.nbytes() <= steps.layout().chunk_bytes; }

 protected:
  void write_first(PhaseProtocol& steps) override {
    const bool is_root = steps.rank() == root_;
    if (is_one_step(steps) && is_root) copy_bytes(steps.mine(), data(), bytes_.numel());
  }

  void go_on(PhaseProtocol& steps) override {
    const bool is_root = steps.rank() == root_;
    if (is_one_step(steps)) {
      if (!is_root) copy_bytes(data(), steps.area(root_, steps.half()), bytes_.numel());
      return;
    }
    const Chunks all(bytes_.numel(), slot_bytes(steps));
    Pipeline pipeline(steps, all.count(), kLag);
    const auto slot = [&](int64_t i) { return steps.whole_area(root_) + pipeline.slot(i) * all.most(); };
    SlotWriter writer(bytes_.numel());
    const auto hand_over = [&](int64_t i) {
      if (!is_root) return;
      pipeline.wait_for_slot(i);
      writer.copy(slot(i), data() + all.begin(i), all.size(i));
    };
    const auto take = [&](int64_t i) {
      if (is_root) return;
      pipeline.wait_for(root_, i);
      copy_out(data() + all.begin(i), slot(i), all.size(i), bytes_.numel());
    };
    pipeline.run(hand_over, take);
  }

 private:
  std::byte* data() const { return static_cast<std::byte*>(bytes_.data_ptr()); }

  at::Tensor bytes_;
  int root_;
};

class AllGather : public Operation {
 public:
  AllGather(at::Tensor output, at::Tensor input)
      : Operation(header_of(OpType::kAllGather, input.numel())), output_(std::move(output)), input_(std::move(input)) {}
  bool is_one_step(const PhaseProtocol& steps) const override { return input_.nbytes() <= steps.layout().chunk_bytes; }

 protected:
  void write_first(PhaseProtocol& steps) override {
    if (is_one_step(steps)) copy_bytes(steps.mine(), input(), input_.numel());
  }

  void go_on(PhaseProtocol& steps) override {
    if (!is_one_step(steps)) return through_slots(steps);
    for (int peer = 0; peer < steps.world_size(); ++peer) {
      const std::byte* from = peer == steps.rank() ? input() : steps.area(peer, steps.half());
      copy_out(part_of(peer), from, input_.numel(), output_.numel());
    }
  }

 private:
  const std::byte* input() const { return static_cast<const std::byte*>(input_.data_ptr()); }
  std::byte* part_of(int rank) const { return static_cast<std::byte*>(output_.data_ptr()) + rank * input_.numel(); }

  void through_slots(PhaseProtocol& steps) const {
    const Chunks all(input_.numel(), slot_bytes(steps));
    Pipeline pipeline(steps, all.count(), kLag);
    const auto slot = [&](int rank, int64_t i) { return steps.whole_area(rank) + pipeline.slot(i) * all.most(); };
    SlotWriter writer(output_.numel());
    const auto hand_over = [&](int64_t i) {
      pipeline.wait_for_slot(i);
      std::byte* to = part_of(steps.rank()) + all.begin(i);
      const std::byte* from = input() + all.begin(i);
      writer.write(all.size(i), [&](int64_t begin, int64_t size, bool past_caches) {
        std::byte* shown = slot(steps.rank(), i) + begin;
        if (past_caches) copy_past_caches(shown, from + begin, size);
        copy_out(to + begin, from + begin, size, output_.numel(), past_caches ? nullptr : shown);
      });
    };
    const auto take = [&](int64_t i) {
      // Each begins with the next rank, so that not all read the same memory.
      for (int distance = 1; distance < steps.world_size(); ++distance) {
        const int peer = (steps.rank() + distance) % steps.world_size();
        pipeline.wait_for(peer, i);
        copy_out(part_of(peer) + all.begin(i), slot(peer, i), all.size(i), output_.numel());
      }
    };
    pipeline.run(hand_over, take);
  }

  at::Tensor output_;
  at::Tensor input_;
};

// The first step holds the sizes of each rank's parts for each other, and all its parts if they fit. Otherwise they
// pass through the slots as one stream a rank. The stream has the next rank's part first, then the part of the rank
// after that, and so on. So at any time each rank is written to by another.
class AllToAll : public Operation {
 public:
  AllToAll(at::Tensor output, std::vector<int64_t> output_counts, std::vector<at::Tensor> inputs)
      : Operation(header_of(OpType::kAllToAll, 0)),
        output_(std::move(output)),
        take_(std::move(output_counts)),
        inputs_(std::move(inputs)) {
    for (const at::Tensor& input : inputs_) give_.push_back(input.numel());
  }
  bool is_one_step(const PhaseProtocol&) const override { return false; }

 protected:
  void write_first(PhaseProtocol& steps) override {
    auto* counts = reinterpret_cast<int64_t*>(steps.mine());
    std::copy(give_.begin(), give_.end(), counts);
    std::copy(take_.begin(), take_.end(), counts + give_.size());
    if (stream_bytes(steps.rank(), give_.data()) > room(steps)) return;
    const auto copy = [to = steps.mine() + counts_bytes()](const std::byte* from, int64_t at, int64_t size) {
      copy_bytes(to + at, from, size);
    };
    each_part(steps.rank(), 0, room(steps), copy);
  }

  void go_on(PhaseProtocol& steps) override {
    compare(steps);
    const int rank = steps.rank();
    copy_out(output_of(rank), input_of(rank), give_[rank], output_.numel());
    int64_t longest = 0;
    for (int peer = 0; peer < world(); ++peer) {
      longest = std::max(longest, stream_bytes(peer, gives(steps, peer)));
    }
    if (longest > room(steps)) return through_slots(steps, longest);
    for (int peer = 0; peer < world(); ++peer) {
      if (peer == rank) continue;
      const std::byte* stream = steps.area(peer, steps.half()) + counts_bytes();
      copy_bytes(output_of(peer), stream + begin_of(peer, rank, gives(steps, peer)), take_[peer]);
    }
  }

 private:
  int world() const { return static_cast<int>(give_.size()); }
  const std::byte* input_of(int peer) const { return static_cast<const std::byte*>(inputs_[peer].data_ptr()); }
  std::byte* output_of(int peer) const {
    return static_cast<std::byte*>(output_.data_ptr()) +
           std::accumulate(take_.begin(), take_.begin() + peer, int64_t{0});
  }

  int64_t counts_bytes() const { return whole_lines(2 * world() * static_cast<int64_t>(sizeof(int64_t))); }
  int64_t room(const PhaseProtocol& steps) const {
    return static_cast<int64_t>(steps.layout().chunk_bytes) - counts_bytes();
  }
  static const int64_t* gives(const PhaseProtocol& steps, int rank) {
    return reinterpret_cast<const int64_t*>(steps.area(rank, steps.half()));
  }

  /// Where the part for `to` begins in the stream of `from`, which gives `counts`. Parts begin with a line.
  int64_t begin_of(int from, int to, const int64_t* counts) const {
    int64_t begin = 0;
    for (int peer = (from + 1) % world(); peer != to; peer = (peer + 1) % world()) {
      begin += whole_lines(counts[peer]);
    }
    return begin;
  }
  int64_t stream_bytes(int from, const int64_t* counts) const { return begin_of(from, from, counts); }

  /// Calls copy(from, at, size) for each piece of this rank's parts that lies between `begin` and `end` of its stream.
  /// `at` counts from `begin`.
  template <class Copy>
  void each_part(int rank, int64_t begin, int64_t end, const Copy& copy) const {
    int64_t part = 0;
    for (int peer = (rank + 1) % world(); peer != rank; peer = (peer + 1) % world()) {
      const int64_t first = std::max(begin, part), last = std::min(end, part + give_[peer]);
      if (first < last) copy(input_of(peer) + (first - part), first - begin, last - first);
      part += whole_lines(give_[peer]);
    }
  }

  /// Every rank compares every pair, so that all throw or none.
  void compare(const PhaseProtocol& steps) const {
    for (int from = 0; from < world(); ++from) {
      for (int to = 0; to < world(); ++to) {
        const int64_t given = gives(steps, from)[to], taken = (gives(steps, to) + world())[from];
        if (given == taken) continue;
        throw Backend::Mismatch(text("rank ", from, " gives ", given, " bytes to rank ", to, ", which takes ", taken,
                                     ". Both sides must name the same count"));
      }
    }
  }

  void through_slots(PhaseProtocol& steps, int64_t longest) const {
    const int rank = steps.rank();
    std::vector<int64_t> begins;
    for (int peer = 0; peer < world(); ++peer) {
      begins.push_back(begin_of(peer, rank, gives(steps, peer)));
    }
    // The slots lie where the counts do: no rank writes before all have read them.
    steps.begin();
    steps.post();
    steps.wait();

    const Chunks all(longest, slot_bytes(steps));
    Pipeline pipeline(steps, all.count(), kLag);
    const auto slot = [&](int of, int64_t i) { return steps.whole_area(of) + pipeline.slot(i) * all.most(); };
    SlotWriter writer(stream_bytes(rank, give_.data()));
    const auto hand_over = [&](int64_t i) {
      const auto copy = [&](const std::byte* from, int64_t at, int64_t size) {
        pipeline.wait_for_slot(i);
        writer.copy(slot(rank, i) + at, from, size);
      };
      each_part(rank, all.begin(i), all.begin(i) + all.most(), copy);
    };
    const auto take = [&](int64_t i) {
      for (int distance = 1; distance < world(); ++distance) {
        const int peer = (rank + world() - distance) % world();
        const int64_t part = begins[peer];
        const int64_t begin = std::max(part, all.begin(i));
        const int64_t end = std::min(part + take_[peer], all.begin(i) + all.most());
        if (begin >= end) continue;
        pipeline.wait_for(peer, i);
        copy_out(output_of(peer) + (begin - part), slot(peer, i) + (begin - all.begin(i)), end - begin,
                 output_.numel());
      }
    };
    pipeline.run(hand_over, take);
  }

  at::Tensor output_;
  std::vector<int64_t> take_;
  std::vector<at::Tensor> inputs_;
  std::vector<int64_t> give_;
};

}  // namespace

std::unique_ptr<Operation> broadcast(at::Tensor bytes, int root) {
  return std::make_unique<Broadcast>(std::move(bytes), root);
}

std::unique_ptr<Operation> all_gather(at::Tensor output, at::Tensor input) {
  return std::make_unique<AllGather>(std::move(output), std::move(input));
}

std::unique_ptr<Operation> all_to_all(at::Tensor output, std::vector<int64_t> output_counts,
                                      std::vector<at::Tensor> inputs) {
  return std::make_unique<AllToAll>(std::move(output), std::move(output_counts), std::move(inputs));
}

std::unique_ptr<Operation> barrier() {
  return std::make_unique<Barrier>();
}

}  // namespace hasten::comm::shared
