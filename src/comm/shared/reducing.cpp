// The collectives that add up; see operation.h.
//
// Large all-reduces of more than two ranks are a reduce-scatter and an all-gather, chunk by chunk: each rank
// adds up its own slice of a chunk and everybody takes the others' results, so that the work of adding is
// shared (Thakur et al., "Optimization of Collective Communication Operations in MPICH", 2005, section 4.5).
// In step t a rank adds up chunk t - 1, takes the results of chunk t - 2 and writes chunk t; one wait a step.
// Two ranks show each other whole chunks. Tensors that lie in the segment's heaps are added up where they
// are.
#include <array>

#include "comm/shared/chunks.h"
#include "comm/shared/operation.h"
#include "comm/shared/reduction.h"

namespace hasten::comm::shared {
namespace {

using Sources = std::array<const void*, kMaxRanks>;

// Below this, every rank adds up everything by itself: less to do than waiting a second time.
constexpr int64_t kSmallBytes = 32 << 10;
constexpr int64_t kSmallBytesOfAll = 128 << 10;
// What is added up in place at a time: the sources and the result stay in the nearest caches.
constexpr int64_t kBlockBytes = 32 << 10;
// A chunk that passes through the areas: short enough that those of all ranks stay in the caches.
constexpr int64_t kPassingBytes = 512 << 10;

class Reducing : public Operation {
 public:
  Reducing(const Header& header, const at::Tensor& like, ReduceOp op)
      : Operation(header), item_(like.element_size()), reduce_(reduction(like.scalar_type(), op)) {}

 protected:
  static std::byte* bytes_of(const at::Tensor& tensor) { return static_cast<std::byte*>(tensor.data_ptr()); }
  /// Chunks of elements, for areas that are shared by `parts` parts.
  Chunks chunks_of(const Steps& steps, int64_t count, int parts = 1) const {
    const int64_t most = static_cast<int64_t>(steps.layout().chunk_bytes) / parts / item_;
    return Chunks(count, most / Chunks::kAlign * Chunks::kAlign);
  }

  const int64_t item_;
  const Reduction reduce_;
};

class AllReduce : public Reducing {
 public:
  AllReduce(at::Tensor tensor, ReduceOp op, int64_t heap_offset)
      : Reducing(header_of(Kind::kAllReduce, tensor, op, -1, heap_offset + 1), tensor, op),
        tensor_(std::move(tensor)) {}

  bool is_one_step(const Steps& steps) const override { return is_small(steps); }

 protected:
  void write_first(Steps& steps) override {
    if (is_small(steps)) {
      copy_bytes(steps.mine(), data(), tensor_.nbytes());
    } else if (!in_heap()) {
      copy_in(steps, 0);
    }
  }

  void go_on(Steps& steps) override {
    if (is_small(steps)) return add_up_all(steps);
    int num_in_heaps = 0;
    for (int peer = 0; peer < steps.world_size(); ++peer) num_in_heaps += steps.header(peer).extra > 0;
    if (num_in_heaps == steps.world_size()) return add_up_in_place(steps);
    if (num_in_heaps > 0) {
      // Some have written their first chunk and some have not: all write it again.
      steps.begin();
      copy_in(steps, 0);
      steps.post();
      steps.wait();
    }
    steps.world_size() == 2 ? add_up_both(steps) : pipeline(steps);
  }

 private:
  std::byte* data() const { return bytes_of(tensor_); }
  bool in_heap() const { return header_.extra > 0; }
  bool is_small(const Steps& steps) const {
    const auto bytes = static_cast<int64_t>(tensor_.nbytes());
    return bytes <= kSmallBytes && bytes * steps.world_size() <= kSmallBytesOfAll;
  }
  Chunks chunks(const Steps& steps) const {
    const int64_t most = std::min<int64_t>(steps.layout().chunk_bytes, kPassingBytes);
    return Chunks(tensor_.numel(), most / item_ / Chunks::kAlign * Chunks::kAlign);
  }
  /// A chunk's slices, one a rank.
  static Chunks slices(const Steps& steps, int64_t size) {
    const int64_t most = (size + steps.world_size() - 1) / steps.world_size();
    return Chunks(size, (most + Chunks::kAlign - 1) / Chunks::kAlign * Chunks::kAlign);
  }
  static std::byte* results(const Steps& steps, std::byte* area) { return area + steps.layout().chunk_bytes; }

  void add_up_all(Steps& steps) {
    Sources sources;
    for (int peer = 0; peer < steps.world_size(); ++peer) sources[peer] = steps.area(peer, steps.half());
    reduce_(data(), sources.data(), steps.world_size(), tensor_.numel());
  }

  void pipeline(Steps& steps) {
    const Chunks all = chunks(steps);
    for (int64_t i = 0; i < all.count(); ++i) {
      const uint32_t half = steps.half();
      steps.begin();
      add_up_slice(steps, i, half);
      if (i > 0) take_results(steps, i - 1, half);
      if (i + 1 < all.count()) copy_in(steps, i + 1);
      steps.post();
      steps.wait();
    }
    take_results(steps, all.count() - 1, steps.half());
  }

  // Two ranks: each adds up everything by itself. As many bytes pass between the cores as with slices, and
  // half the waiting is saved.
  void add_up_both(Steps& steps) {
    const Chunks all = chunks(steps);
    const int rank = steps.rank();
    const auto add_up = [&](int64_t i) {
      std::byte* mine = data() + all.begin(i) * item_;
      Sources sources;
      sources[rank] = mine;
      sources[1 - rank] = steps.area(1 - rank, steps.half());
      reduce_(mine, sources.data(), 2, all.size(i));
    };
    chunk_by_chunk(steps, all.count(), add_up, [&](int64_t i) { copy_in(steps, i); });
  }

  void copy_in(Steps& steps, int64_t i) const {
    const Chunks all = chunks(steps), cut = slices(steps, all.size(i));
    if (steps.world_size() == 2) {
      copy_bytes(steps.mine(), data() + all.begin(i) * item_, all.size(i) * item_);
      return;
    }
    for (int peer = 0; peer < steps.world_size(); ++peer) {
      if (peer == steps.rank()) continue;
      copy_bytes(steps.mine() + cut.begin(peer) * item_, data() + (all.begin(i) + cut.begin(peer)) * item_,
                 cut.size(peer) * item_);
    }
  }

  void add_up_slice(Steps& steps, int64_t i, uint32_t half) const {
    const Chunks all = chunks(steps), cut = slices(steps, all.size(i));
    const int rank = steps.rank();
    const int64_t size = cut.size(rank);
    std::byte* mine = data() + (all.begin(i) + cut.begin(rank)) * item_;
    Sources sources;
    for (int peer = 0; peer < steps.world_size(); ++peer) {
      sources[peer] = peer == rank ? mine : steps.area(peer, half) + cut.begin(rank) * item_;
    }
    reduce_(mine, sources.data(), steps.world_size(), size);
    copy_bytes(results(steps, steps.mine()), mine, size * item_);
  }

  void take_results(const Steps& steps, int64_t i, uint32_t half) const {
    const Chunks all = chunks(steps), cut = slices(steps, all.size(i));
    for (int peer = 0; peer < steps.world_size(); ++peer) {
      if (peer == steps.rank()) continue;
      copy_bytes(data() + (all.begin(i) + cut.begin(peer)) * item_,
                 steps.area(peer, half) + steps.layout().chunk_bytes, cut.size(peer) * item_);
    }
  }

  // Each rank adds up its slice, reading from and writing to everybody's tensor.
  void add_up_in_place(Steps& steps) const {
    const int world = steps.world_size(), rank = steps.rank();
    std::array<std::byte*, kMaxRanks> tensors;
    for (int peer = 0; peer < world; ++peer) tensors[peer] = steps.heap(peer) + steps.header(peer).extra - 1;
    const Chunks cut = slices(steps, tensor_.numel());
    const int64_t end = cut.begin(rank) + cut.size(rank);
    for (int64_t begin = cut.begin(rank); begin < end; begin += kBlockBytes / item_) {
      const int64_t size = std::min(kBlockBytes / item_, end - begin);
      Sources sources;
      for (int peer = 0; peer < world; ++peer) sources[peer] = tensors[peer] + begin * item_;
      std::byte* mine = tensors[rank] + begin * item_;
      reduce_(mine, sources.data(), world, size);
      for (int peer = 0; peer < world; ++peer) {
        if (peer != rank) copy_bytes(tensors[peer] + begin * item_, mine, size * item_);
      }
    }
    steps.begin();
    steps.post();
    steps.wait();
  }

  at::Tensor tensor_;
};

class Reduce : public Reducing {
 public:
  Reduce(at::Tensor tensor, int root, ReduceOp op)
      : Reducing(header_of(Kind::kReduce, tensor, op, root), tensor, op),
        tensor_(std::move(tensor)),
        root_(root) {}
  bool is_one_step(const Steps& steps) const override {
    return chunks_of(steps, tensor_.numel()).count() <= 1;
  }

 protected:
  void write_first(Steps& steps) override { write(steps, 0); }

  void go_on(Steps& steps) override {
    const Chunks all = chunks_of(steps, tensor_.numel());
    const auto read = [&](int64_t i) {
      if (steps.rank() == root_) {
        std::byte* mine = bytes_of(tensor_) + all.begin(i) * item_;
        Sources sources;
        for (int peer = 0; peer < steps.world_size(); ++peer) {
          sources[peer] = peer == root_ ? mine : steps.area(peer, steps.half());
        }
        reduce_(mine, sources.data(), steps.world_size(), all.size(i));
      }
    };
    chunk_by_chunk(steps, all.count(), read, [&](int64_t i) { write(steps, i); });
  }

 private:
  void write(Steps& steps, int64_t i) const {
    if (steps.rank() == root_) return;
    const Chunks all = chunks_of(steps, tensor_.numel());
    copy_bytes(steps.mine(), bytes_of(tensor_) + all.begin(i) * item_, all.size(i) * item_);
  }

  at::Tensor tensor_;
  int root_;
};

class ReduceScatter : public Reducing {
 public:
  ReduceScatter(at::Tensor output, at::Tensor input, ReduceOp op)
      : Reducing(header_of(Kind::kReduceScatter, output, op), output, op),
        output_(std::move(output)),
        input_(std::move(input)) {}
  bool is_one_step(const Steps& steps) const override { return chunks(steps).count() <= 1; }

 protected:
  void write_first(Steps& steps) override { write(steps, 0); }

  void go_on(Steps& steps) override {
    const Chunks all = chunks(steps);
    const int rank = steps.rank();
    const auto read = [&](int64_t i) {
      Sources sources;
      for (int peer = 0; peer < steps.world_size(); ++peer) {
        sources[peer] = peer == rank ? part(rank) + all.begin(i) * item_
                                     : steps.area(peer, steps.half()) + rank * all.most() * item_;
      }
      reduce_(bytes_of(output_) + all.begin(i) * item_, sources.data(), steps.world_size(), all.size(i));
    };
    chunk_by_chunk(steps, all.count(), read, [&](int64_t i) { write(steps, i); });
  }

 private:
  Chunks chunks(const Steps& steps) const { return chunks_of(steps, output_.numel(), steps.world_size()); }
  const std::byte* part(int rank) const { return bytes_of(input_) + rank * output_.numel() * item_; }
  void write(Steps& steps, int64_t i) const {
    const Chunks all = chunks(steps);
    for (int peer = 0; peer < steps.world_size(); ++peer) {
      if (peer == steps.rank()) continue;
      copy_bytes(steps.mine() + peer * all.most() * item_, part(peer) + all.begin(i) * item_,
                 all.size(i) * item_);
    }
  }

  at::Tensor output_;
  at::Tensor input_;
};

}  // namespace

std::unique_ptr<Operation> all_reduce(at::Tensor tensor, ReduceOp op, int64_t heap_offset) {
  return std::make_unique<AllReduce>(std::move(tensor), op, heap_offset);
}

std::unique_ptr<Operation> reduce(at::Tensor tensor, int root, ReduceOp op) {
  return std::make_unique<Reduce>(std::move(tensor), root, op);
}

std::unique_ptr<Operation> reduce_scatter(at::Tensor output, at::Tensor input, ReduceOp op) {
  return std::make_unique<ReduceScatter>(std::move(output), std::move(input), op);
}

}  // namespace hasten::comm::shared
