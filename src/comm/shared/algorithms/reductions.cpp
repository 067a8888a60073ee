// The collectives that add up; see operation.h.
//
// Small ones take one step: every rank adds up what all have shown, or the root, or each its part. Large ones are
// relays (chain_reduce.h). Tensors that lie in the segment's heaps are added up in place, by the ranks that are there
// (docs/decisions/0024-who-is-there-does-the-others-shares.md).
#include <array>

#include "comm/backend/reduction.h"
#include "comm/shared/algorithms/chain_reduce.h"
#include "comm/shared/algorithms/operation.h"
#include "comm/shared/memory/chunks.h"

namespace hasten::comm::shared {
namespace {

using Sources = std::array<const void*, kMaxRanks>;

// Below this, every rank adds up everything by itself: less to do than waiting a second time.
constexpr int64_t kSmallBytes = 32 << 10;
constexpr int64_t kSmallBytesOfAll = 128 << 10;
// Part of a share that is taken at a time: little enough that the last ones end together.
constexpr int64_t kPartsOfAShare = 16;
constexpr int64_t kLeastPartBytes = 8 << 10;

class Reducing : public Operation {
 public:
  Reducing(const Header& header, const at::Tensor& like, ReduceOp op)
      : Operation(header), item_(like.element_size()), routines_(routines(like.scalar_type(), op)) {}

 protected:
  static std::byte* bytes_of(const at::Tensor& tensor) { return static_cast<std::byte*>(tensor.data_ptr()); }

  void add_up(std::byte* to, const Sources& sources, int num_sources, int64_t count) const {
    routines_.reduce(to, sources.data(), num_sources, count);
  }
  void chain_reduce(PhaseProtocol& steps, const at::Tensor& input, const Share& share) const {
    shared::chain_reduce(steps, routines_.fold, item_, input.numel(), bytes_of(input), share);
  }

  const int64_t item_;

 private:
  const Routines routines_;
};

class AllReduce : public Reducing {
 public:
  AllReduce(at::Tensor tensor, ReduceOp op, int64_t heap_offset)
      : Reducing(header_of(OpType::kAllReduce, tensor, op, -1, heap_offset + 1), tensor, op),
        tensor_(std::move(tensor)) {}

  bool is_one_step(const PhaseProtocol& steps) const override {
    const auto bytes = static_cast<int64_t>(tensor_.nbytes());
    return bytes <= kSmallBytes && bytes * steps.world_size() <= kSmallBytesOfAll;
  }

 protected:
  void write_first(PhaseProtocol& steps) override {
    if (is_one_step(steps)) copy_bytes(steps.mine(), data(), tensor_.nbytes());
  }

  void go_on(PhaseProtocol& steps) override {
    if (is_one_step(steps)) return add_up_all(steps);
    int num_in_heaps = 0;
    for (int peer = 0; peer < steps.world_size(); ++peer) num_in_heaps += steps.header(peer).extra > 0;
    if (num_in_heaps == steps.world_size()) return add_up_in_place(steps);
    chain_reduce(steps, tensor_, {.begin = 0, .end = tensor_.numel(), .to = data()});
  }

 private:
  std::byte* data() const { return bytes_of(tensor_); }

  void add_up_all(const PhaseProtocol& steps) const {
    Sources sources;
    for (int peer = 0; peer < steps.world_size(); ++peer) sources[peer] = steps.area(peer, steps.half());
    add_up(data(), sources, steps.world_size(), tensor_.numel());
  }

  // Each rank adds up its share, reading from and writing to all ranks' tensors. Then it adds up the remaining shares
  // of ranks that have not come yet: in a step of training one comes later than the others.
  void add_up_in_place(PhaseProtocol& steps) const {
    const int world = steps.world_size(), rank = steps.rank();
    std::array<std::byte*, kMaxRanks> tensors;
    for (int peer = 0; peer < world; ++peer) tensors[peer] = steps.heap(peer) + steps.header(peer).extra - 1;
    const Chunks shares(tensor_.numel(), aligned(tensor_.numel() / world + 1));
    for (int i = 0; i < world; ++i) {
      const int owner = (rank + i) % world;
      const int64_t part_size = std::max(shares.size(owner) / kPartsOfAShare + 1, kLeastPartBytes / item_);
      const Chunks parts(shares.size(owner), aligned(part_size));
      for (int64_t part = 0; (part = steps.claim(owner)) < parts.count();) {
        add_up_in_place(tensors, steps, shares.begin(owner) + parts.begin(part), parts.size(part));
      }
    }
    steps.begin();
    steps.post();
    steps.wait();
  }

  void add_up_in_place(const std::array<std::byte*, kMaxRanks>& tensors, const PhaseProtocol& steps, int64_t begin,
                       int64_t count) const {
    const int world = steps.world_size(), rank = steps.rank();
    for (const int64_t end = begin + count; begin < end; begin += kBlockBytes / item_) {
      const int64_t size = std::min(kBlockBytes / item_, end - begin);
      Sources sources;
      for (int peer = 0; peer < world; ++peer) sources[peer] = tensors[peer] + begin * item_;
      std::byte* mine = tensors[rank] + begin * item_;
      add_up(mine, sources, world, size);
      for (int peer = 0; peer < world; ++peer) {
        if (peer != rank) copy_bytes(tensors[peer] + begin * item_, mine, size * item_);
      }
    }
  }

  static int64_t aligned(int64_t count) { return (count + Chunks::kAlign - 1) / Chunks::kAlign * Chunks::kAlign; }

  at::Tensor tensor_;
};

class Reduce : public Reducing {
 public:
  Reduce(at::Tensor tensor, int root, ReduceOp op)
      : Reducing(header_of(OpType::kReduce, tensor, op, root), tensor, op), tensor_(std::move(tensor)), root_(root) {}
  bool is_one_step(const PhaseProtocol& steps) const override { return tensor_.nbytes() <= steps.layout().chunk_bytes; }

 protected:
  void write_first(PhaseProtocol& steps) override {
    const bool is_root = steps.rank() == root_;
    if (is_one_step(steps) && !is_root) copy_bytes(steps.mine(), bytes_of(tensor_), tensor_.nbytes());
  }

  void go_on(PhaseProtocol& steps) override {
    const bool is_root = steps.rank() == root_;
    if (!is_one_step(steps)) {
      const int64_t end = is_root ? tensor_.numel() : 0;
      return chain_reduce(steps, tensor_, {.begin = 0, .end = end, .to = bytes_of(tensor_), .alone = true});
    }
    if (!is_root) return;
    Sources sources;
    for (int peer = 0; peer < steps.world_size(); ++peer) sources[peer] = steps.area(peer, steps.half());
    sources[root_] = bytes_of(tensor_);
    add_up(bytes_of(tensor_), sources, steps.world_size(), tensor_.numel());
  }

 private:
  at::Tensor tensor_;
  int root_;
};

class ReduceScatter : public Reducing {
 public:
  ReduceScatter(at::Tensor output, at::Tensor input, ReduceOp op)
      : Reducing(header_of(OpType::kReduceScatter, output, op), output, op),
        output_(std::move(output)),
        input_(std::move(input)) {}
  bool is_one_step(const PhaseProtocol& steps) const override { return input_.nbytes() <= steps.layout().chunk_bytes; }

 protected:
  void write_first(PhaseProtocol& steps) override {
    if (is_one_step(steps)) copy_bytes(steps.mine(), bytes_of(input_), input_.nbytes());
  }

  void go_on(PhaseProtocol& steps) override {
    const int64_t size = output_.numel(), begin = steps.rank() * size;
    if (!is_one_step(steps)) {
      const Share share{.begin = begin, .end = begin + size, .to = bytes_of(output_), .alone = true};
      return chain_reduce(steps, input_, share);
    }
    Sources sources;
    for (int peer = 0; peer < steps.world_size(); ++peer) {
      sources[peer] = steps.area(peer, steps.half()) + begin * item_;
    }
    add_up(bytes_of(output_), sources, steps.world_size(), size);
  }

 private:
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
