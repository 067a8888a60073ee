// Workers with a layer each, for tests of distributed autograd in real processes.
#pragma once

#include <gtest/gtest.h>
#include <torch/torch.h>

#include <iostream>

#include "hasten/rpc/rpc.h"
#include "support/processes.h"

#define CHECK_THAT(condition)                                            \
  do {                                                                   \
    if (!(condition)) {                                                  \
      std::cout << __LINE__ << ": " #condition " is false" << std::endl; \
      return 1;                                                          \
    }                                                                    \
  } while (false)

namespace hasten::rpc {

// Each worker has a matrix of its own, the same in every process that knows its rank.
inline at::Tensor weight_of(int rank) {
  return torch::randn({4, 4}, at::make_generator<at::CPUGeneratorImpl>(static_cast<uint64_t>(rank) + 1));
}

class Layer {
 public:
  explicit Layer(int64_t rank) : weight(weight_of(static_cast<int>(rank)).requires_grad_()) {}
  at::Tensor forward(const at::Tensor& x) { return torch::tanh(x.matmul(weight)); }
  std::vector<at::Tensor> both(const at::Tensor& x) { return {forward(x), x.matmul(weight)}; }
  at::Tensor plain(const at::Tensor& x) { return forward(x).detach(); }
  at::Tensor fail(const at::Tensor&) { throw std::runtime_error("no forward today"); }
  // x through this layer and then through another one.
  at::Tensor chain(const RRef<Layer>& next, const at::Tensor& x) { return next.sync<&Layer::forward>(forward(x)); }
  at::Tensor gradient(const AutogradContext& context) { return context.gradient(weight); }
  at::Tensor loss(const at::Tensor& x) { return forward(x).sum(); }
  RRef<at::Tensor> weight_rref() { return call().rref(weight); }
  at::Tensor value() { return weight.detach().clone(); }
  at::Tensor weight;
};

inline Functions layer_functions() {
  Functions functions;
  functions.add_class<Layer, int64_t>()
      .add<&Layer::forward>()
      .add<&Layer::both>()
      .add<&Layer::plain>()
      .add<&Layer::fail>()
      .add<&Layer::chain>();
  functions.add<&Layer::gradient>().add<&Layer::weight_rref>().add<&Layer::value>().add<&Layer::loss>();
  return functions;
}

inline double difference(const at::Tensor& a, const at::Tensor& b) {
  return a.defined() == b.defined() ? (a.defined() ? (a - b).abs().max().item<double>() : 0) : 1e9;
}

inline void expect_all_end_well(const std::vector<hasten::testing::ProcessResult>& results) {
  for (size_t rank = 0; rank < results.size(); ++rank)
    EXPECT_EQ(results[rank].exit_code, 0) << "rank " << rank << ": " << results[rank].output;
}

}  // namespace hasten::rpc
