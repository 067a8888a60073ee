// Random collectives over shared memory and over Gloo, with equal inputs: the results must be equal.
#pragma once

#include <ATen/Parallel.h>
#include <gtest/gtest.h>
#include <torch/types.h>

#include <cstdlib>
#include <random>
#include <thread>

#include "hasten/comm/group/group.h"

namespace hasten::comm::cross_checks {

/// One call, drawn alike on every rank.
struct RandomCall {
  int operation;
  at::ScalarType dtype;
  ReduceOp op;
  std::vector<int64_t> shape;
  bool contiguous;
  int root;
  uint64_t seed;

  RandomCall(std::mt19937_64& random, int world_size) {
    const std::vector<at::ScalarType> dtypes = {at::kFloat, at::kDouble,       at::kHalf,  at::kBFloat16,
                                                at::kByte,  at::kChar,         at::kShort, at::kInt,
                                                at::kLong,  at::kComplexFloat, at::kBool};
    operation = static_cast<int>(random() % 8);
    dtype = dtypes[random() % dtypes.size()];
    op = std::vector{ReduceOp::kSum, ReduceOp::kMin, ReduceOp::kMax, ReduceOp::kProduct}[random() % 4];
    if (dtype == at::kComplexFloat) op = ReduceOp::kSum;
    // Mostly small, now and then several chunks long; the first size can be cut into world_size parts.
    const auto rows = static_cast<int64_t>(random() % 4) * world_size;
    const auto columns = static_cast<int64_t>(random() % 10 == 0 ? random() % 200000 : random() % 300);
    shape = {rows, columns};
    contiguous = random() % 3 > 0;
    root = static_cast<int>(random() % world_size);
    seed = random();
  }
};

inline at::Tensor input_of(const RandomCall& call, int rank) {
  auto generator = at::make_generator<at::CPUGeneratorImpl>(call.seed + rank);
  const std::vector<int64_t> shape = call.contiguous ? call.shape : std::vector<int64_t>{call.shape[1], call.shape[0]};
  const at::Tensor values = at::isFloatingType(call.dtype) || at::isComplexType(call.dtype)
                                ? torch::randn(shape, generator).to(call.dtype)
                                : torch::randint(0, 3, shape, generator).to(call.dtype);
  return call.contiguous ? values : values.t();
}

/// What the call gives on this rank.
inline std::vector<at::Tensor> run(const RandomCall& call, const Group& group) {
  at::Tensor tensor = input_of(call, group.rank());
  switch (call.operation) {
    case 0:
      group.all_reduce_(tensor, call.op);
      return {tensor};
    case 1:
      group.reduce_(tensor, call.root, call.op);
      return {tensor};
    case 2:
      group.broadcast_(tensor, call.root);
      return {tensor};
    case 3:
      return group.all_gather(tensor.slice(0, 0, std::min<int64_t>(group.rank(), tensor.size(0))));
    case 4:
      return group.gather(tensor, call.root);
    case 5:
      return {group.reduce_scatter(tensor, call.op)};
    case 6: {
      std::vector<at::Tensor> parts;
      std::vector<int64_t> rows;
      for (int peer = 0; peer < group.world_size(); ++peer) {
        parts.push_back(tensor.slice(0, 0, (peer + group.rank()) % 3));
        rows.push_back(parts.back().size(0));
      }
      const at::Tensor input = at::cat(parts), output = torch::empty_like(input);
      group.all_to_all_into_(output, input, {.input = rows, .output = rows});
      auto results = group.all_to_all(parts);
      results.push_back(output);
      return results;
    }
    default: {
      const int next = (group.rank() + 1) % group.world_size(),
                last = (group.rank() + group.world_size() - 1) % group.world_size();
      if (group.world_size() == 1) return {tensor};
      at::Tensor incoming = torch::empty_like(input_of(call, last));
      group.batch_send_recv({{PointToPoint::Kind::kSend, tensor, next}, {PointToPoint::Kind::kReceive, incoming, last}})
          .wait();
      return {incoming};
    }
  }
}

inline bool equal(const at::Tensor& a, const at::Tensor& b, const RandomCall& call) {
  if (a.sizes() != b.sizes() || a.scalar_type() != b.scalar_type()) return false;
  const bool adds = call.operation == 0 || call.operation == 1 || call.operation == 5;
  if (!adds || !(at::isFloatingType(call.dtype) || at::isComplexType(call.dtype))) return torch::equal(a, b);
  // Gloo adds up in another order, and rounds half and bfloat16 after each addition.
  const double tolerance = call.dtype == at::kBFloat16 ? 0.05 : call.dtype == at::kHalf ? 0.008 : 1e-5;
  return torch::allclose(a, b, tolerance, 8 * tolerance);
}

/// Runs `num_cases` calls, a share of them with each number of ranks from 1 to 8.
inline void cross_check(int num_cases) {
  const char* given = std::getenv("HASTEN_TEST_SEED");
  const uint64_t seed = given != nullptr ? std::strtoull(given, nullptr, 10) : std::random_device()();
  std::cout << "HASTEN_TEST_SEED=" << seed << std::endl;
  for (int world_size = 1; world_size <= 8; ++world_size) {
    const Store store = Store::in_process();
    const auto one_rank = [&](int rank) {
      at::set_num_threads(1);
      const auto connect = [&](BackendKind backend, const char* name) {
        return Group::connect(store, rank, world_size,
                              {.timeout = std::chrono::seconds(60),
                               .check = false,
                               .backend = backend,
                               .address = "127.0.0.1",
                               .name = name});
      };
      const Group shared = connect(BackendKind::kSharedMemory, "shared"), gloo = connect(BackendKind::kGloo, "gloo");
      std::mt19937_64 random(seed + world_size);
      for (int i = 0; i < (num_cases + 7) / 8; ++i) {
        const RandomCall call(random, world_size);
        const auto a = run(call, shared), b = run(call, gloo);
        ASSERT_EQ(a.size(), b.size());
        for (size_t k = 0; k < a.size(); ++k) {
          ASSERT_TRUE(equal(a[k], b[k], call))
              << "case " << i << " of " << world_size << " ranks: operation " << call.operation << ", " << call.dtype
              << " [" << call.shape[0] << ", " << call.shape[1] << "], reduction " << static_cast<int>(call.op)
              << ", root " << call.root << ", contiguous " << call.contiguous;
        }
      }
    };
    std::vector<std::thread> threads;
    for (int rank = 0; rank < world_size; ++rank) threads.emplace_back(one_rank, rank);
    for (auto& thread : threads) thread.join();
    if (::testing::Test::HasFailure()) return;
  }
}

}  // namespace hasten::comm::cross_checks
