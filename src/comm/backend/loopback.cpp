// See loopback.h.
#include "comm/backend/loopback.h"

#include <torch/types.h>

#include "hasten/core/error.h"

namespace hasten::comm {
namespace {

class NothingToDo : public Backend::Transfer {
 public:
  bool done() override { return true; }
  void wait() override {}
};

class Loopback : public Backend {
 public:
  Loopback(int rank, int world_size) : rank_(rank), world_size_(world_size) {}

  const char* name() const override { return "loopback"; }
  c10::DeviceType device_type() const override { return c10::kCPU; }
  bool reduces(at::ScalarType) const override { return true; }
  bool keeps_nan() const override { return true; }
  bool reduce_keeps_inputs() const override { return true; }

  Started all_reduce(at::Tensor tensor, ReduceOp op) override {
    reduce_in_place(tensor, op);
    return std::make_unique<NothingToDo>();
  }
  Started reduce(at::Tensor tensor, int root, ReduceOp op) override {
    if (root == rank_) reduce_in_place(tensor, op);
    return std::make_unique<NothingToDo>();
  }
  Started broadcast(at::Tensor, int) override { return std::make_unique<NothingToDo>(); }
  Started all_gather(at::Tensor output, at::Tensor input) override {
    if (input.numel() == 0) return std::make_unique<NothingToDo>();
    const at::NoGradGuard no_grad;
    // The input may be this rank's part of the output.
    output.view({world_size_, -1}).copy_(input.reshape({1, -1}).clone().expand({world_size_, input.numel()}));
    return std::make_unique<NothingToDo>();
  }
  Started reduce_scatter(at::Tensor output, at::Tensor input, ReduceOp op) override {
    if (output.numel() == 0) return std::make_unique<NothingToDo>();
    const at::NoGradGuard no_grad;
    at::Tensor part = input.view({world_size_, -1})[rank_].clone();
    reduce_in_place(part, op);
    output.view({-1}).copy_(part);
    return std::make_unique<NothingToDo>();
  }
  Started all_to_all(at::Tensor output, std::vector<int64_t> output_counts, std::vector<at::Tensor> inputs) override {
    const at::NoGradGuard no_grad;
    const at::Tensor mine = inputs.at(static_cast<size_t>(rank_)).view({-1});
    int64_t begin = 0;
    for (const int64_t count : output_counts) {
      if (count != mine.numel()) {
        throw UsageError(Origin{"comm", rank_, world_size_}, "all_to_all before the ranks have met: a rank sends ",
                         mine.numel(), " bytes to itself and expects ", count,
                         " of another. Exchange parts of unequal sizes inside accelerator.survive.");
      }
      output.narrow(0, begin, count).copy_(mine);
      begin += count;
    }
    return std::make_unique<NothingToDo>();
  }
  Started barrier() override { return std::make_unique<NothingToDo>(); }
  Started send(at::Tensor, int to, int) override { refuse("to", to); }
  Started receive(at::Tensor, int from, int) override { refuse("from", from); }
  void close() noexcept override {}

 private:
  void reduce_in_place(at::Tensor& tensor, ReduceOp op) const {
    const at::NoGradGuard no_grad;
    if (op == ReduceOp::kSum) tensor.mul_(world_size_);
    if (op == ReduceOp::kProduct) tensor.pow_(world_size_);
    if (op == ReduceOp::kBitXor && world_size_ % 2 == 0) tensor.zero_();
  }

  [[noreturn]] void refuse(const char* direction, int peer) const {
    throw UsageError(Origin{"comm", rank_, world_size_}, "a message ", direction, " rank ", peer,
                     " before the ranks have met: under hasten launch --survive they do in accelerator.survive. "
                     "Exchange messages inside it.");
  }

  const int rank_;
  const int world_size_;
};

}  // namespace

std::unique_ptr<Backend> make_loopback(int rank, int world_size) {
  return std::make_unique<Loopback>(rank, world_size);
}

}  // namespace hasten::comm
