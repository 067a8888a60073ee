// The collectives that move bytes as they are; see operation.h. Those that add up are in reducing.cpp.
#include "comm/shared/operation.h"

#include <algorithm>
#include <numeric>

#include "comm/shared/chunks.h"
#include "comm/shared/pipeline.h"
#include "comm/shared/slot_writer.h"
#include "hasten/core/text.h"

namespace hasten::comm::shared {

void Operation::contribute(Steps& steps) {
  steps.begin();
  steps.set_header(header_);
  write_first(steps);
  steps.post();
}

void Operation::complete(Steps& steps) {
  steps.wait();
  steps.check_headers();
  go_on(steps);
}

namespace {

class Barrier : public Operation {
 public:
  Barrier() : Operation(header_of(Kind::kBarrier, 0)) {}
  bool is_one_step(const Steps&) const override { return true; }

 protected:
  void write_first(Steps&) override {}
  void go_on(Steps&) override {}
};

// Chunks of what does not go in one step pass through the areas of those who have it, each cut into slots.
constexpr int64_t kLag = 8;

int64_t slot_bytes(const Steps& steps) {
  return static_cast<int64_t>(2 * steps.layout().chunk_bytes) / (2 * kLag);
}

class Broadcast : public Operation {
 public:
  Broadcast(at::Tensor bytes, int root)
      : Operation(header_of(Kind::kBroadcast, bytes.numel(), root)), bytes_(std::move(bytes)), root_(root) {}
  bool is_one_step(const Steps& steps) const override {
    return bytes_.nbytes() <= steps.layout().chunk_bytes;
  }

 protected:
  void write_first(Steps& steps) override {
    const bool is_root = steps.rank() == root_;
    if (is_one_step(steps) && is_root) copy_bytes(steps.mine(), data(), bytes_.numel());
  }

  void go_on(Steps& steps) override {
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
      writer.write(all.size(i),
                   [&, from = data() + all.begin(i)](int64_t begin, int64_t size, bool past_caches) {
                     if (past_caches) return copy_past_caches(slot(i) + begin, from + begin, size);
                     copy_bytes(slot(i) + begin, from + begin, size);
                   });
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
      : Operation(header_of(Kind::kAllGather, input.numel())),
        output_(std::move(output)),
        input_(std::move(input)) {}
  bool is_one_step(const Steps& steps) const override {
    return input_.nbytes() <= steps.layout().chunk_bytes;
  }

 protected:
  void write_first(Steps& steps) override {
    if (is_one_step(steps)) copy_bytes(steps.mine(), input(), input_.numel());
  }

  void go_on(Steps& steps) override {
    if (!is_one_step(steps)) return through_slots(steps);
    for (int peer = 0; peer < steps.world_size(); ++peer) {
      const std::byte* from = peer == steps.rank() ? input() : steps.area(peer, steps.half());
      copy_out(part_of(peer), from, input_.numel(), output_.numel());
    }
  }

 private:
  const std::byte* input() const { return static_cast<const std::byte*>(input_.data_ptr()); }
  std::byte* part_of(int rank) const {
    return static_cast<std::byte*>(output_.data_ptr()) + rank * input_.numel();
  }

  void through_slots(Steps& steps) const {
    const Chunks all(input_.numel(), slot_bytes(steps));
    Pipeline pipeline(steps, all.count(), kLag);
    const auto slot = [&](int rank, int64_t i) {
      return steps.whole_area(rank) + pipeline.slot(i) * all.most();
    };
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

// The first step holds what each rank gives to and takes from each other; then everybody knows how many
// chunks the longest part takes, and writes one of each part a step.
class AllToAll : public Operation {
 public:
  AllToAll(at::Tensor output, at::Tensor input, std::vector<int64_t> take, std::vector<int64_t> give)
      : Operation(header_of(Kind::kAllToAll, 0)),
        output_(std::move(output)),
        input_(std::move(input)),
        take_(std::move(take)),
        give_(std::move(give)) {}
  bool is_one_step(const Steps&) const override { return false; }

 protected:
  void write_first(Steps& steps) override {
    auto* counts = reinterpret_cast<int64_t*>(steps.mine());
    std::copy(give_.begin(), give_.end(), counts);
    std::copy(take_.begin(), take_.end(), counts + give_.size());
  }

  void go_on(Steps& steps) override {
    const int world = steps.world_size(), rank = steps.rank();
    const Chunks all(longest(steps), static_cast<int64_t>(steps.layout().chunk_bytes) / world / 64 * 64);
    copy_bytes(output() + begin_of(take_, rank), input() + begin_of(give_, rank), give_[rank]);
    for (int64_t i = 0; i < all.count(); ++i) {
      steps.begin();
      for (int peer = 0; peer < world; ++peer) {
        if (peer == rank) continue;
        copy_bytes(steps.mine() + peer * all.most(), input() + begin_of(give_, peer) + all.begin(i),
                   all.size_within(i, give_[peer]));
      }
      steps.post();
      steps.wait();
      for (int peer = 0; peer < world; ++peer) {
        if (peer == rank) continue;
        copy_out(output() + begin_of(take_, peer) + all.begin(i),
                 steps.area(peer, steps.half()) + rank * all.most(), all.size_within(i, take_[peer]),
                 output_.numel());
      }
    }
  }

 private:
  std::byte* output() const { return static_cast<std::byte*>(output_.data_ptr()); }
  const std::byte* input() const { return static_cast<const std::byte*>(input_.data_ptr()); }
  static int64_t begin_of(const std::vector<int64_t>& counts, int rank) {
    return std::accumulate(counts.begin(), counts.begin() + rank, int64_t{0});
  }

  /// The longest part between two different ranks; everybody compares every pair, so that all throw or none.
  static int64_t longest(const Steps& steps) {
    const int world = steps.world_size();
    int64_t most = 0;
    for (int from = 0; from < world; ++from) {
      const auto* gives = reinterpret_cast<const int64_t*>(steps.area(from, steps.half()));
      for (int to = 0; to < world; ++to) {
        const auto* takes = reinterpret_cast<const int64_t*>(steps.area(to, steps.half())) + world;
        if (gives[to] != takes[from]) {
          throw Backend::Mismatch(text("rank ", from, " gives ", gives[to], " bytes to rank ", to,
                                       ", which takes ", takes[from],
                                       ". Both sides must name the same count"));
        }
        if (from != to) most = std::max(most, gives[to]);
      }
    }
    return most;
  }

  at::Tensor output_;
  at::Tensor input_;
  std::vector<int64_t> take_;
  std::vector<int64_t> give_;
};

}  // namespace

std::unique_ptr<Operation> broadcast(at::Tensor bytes, int root) {
  return std::make_unique<Broadcast>(std::move(bytes), root);
}

std::unique_ptr<Operation> all_gather(at::Tensor output, at::Tensor input) {
  return std::make_unique<AllGather>(std::move(output), std::move(input));
}

std::unique_ptr<Operation> all_to_all(at::Tensor output, at::Tensor input, std::vector<int64_t> output_counts,
                                      std::vector<int64_t> input_counts) {
  return std::make_unique<AllToAll>(std::move(output), std::move(input), std::move(output_counts),
                                    std::move(input_counts));
}

std::unique_ptr<Operation> barrier() {
  return std::make_unique<Barrier>();
}

}  // namespace hasten::comm::shared
