#include "hasten/comm/c10d/group_backend.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <torch/csrc/autograd/engine.h>
#include <torch/types.h>

#include <future>
#include <latch>
#include <thread>

#include "comm/c10d/titles.h"
#include "hasten/core/error.h"
#include "support/ranks.h"

namespace hasten::comm {
namespace {

using process::Process;
using ::testing::HasSubstr;
using testing::run_ranks;
using Tensors = GroupBackend::Tensors;

constexpr int kRanks = 3;

c10::intrusive_ptr<GroupBackend> backend_of(Process& process, const std::string& name = "hasten") {
  return c10::make_intrusive<GroupBackend>(process.group(), name);
}

at::Tensor full(int64_t size, double value) {
  return torch::full({size}, value, at::kDouble);
}

TEST(GroupBackendRanks, ReducesByEachOperation) {
  run_ranks(kRanks, [](Process& process) {
    const auto backend = backend_of(process);
    const std::vector<std::pair<c10d::ReduceOp, double>> expected = {
        {c10d::ReduceOp::SUM, 6}, {c10d::ReduceOp::AVG, 2}, {c10d::ReduceOp::PRODUCT, 6},
        {c10d::ReduceOp::MIN, 1}, {c10d::ReduceOp::MAX, 3}, {c10d::makePreMulSum(0.5), 3}};
    for (const auto& [op, value] : expected) {
      Tensors tensors{full(5, process.rank() + 1)}, roots{full(5, process.rank() + 1)}, part{full(2, 0)};
      std::vector<Tensors> parts{Tensors(kRanks, full(2, process.rank() + 1))};
      c10d::AllreduceOptions all;
      c10d::ReduceOptions one;
      c10d::ReduceScatterOptions scatter;
      all.reduceOp = one.reduceOp = scatter.reduceOp = op;

      backend->allreduce(tensors, all)->wait();
      backend->reduce(roots, one)->wait();
      backend->reduce_scatter(part, parts, scatter)->wait();

      EXPECT_TRUE(torch::equal(tensors[0], full(5, value))) << static_cast<int>(op.op_);
      EXPECT_TRUE(torch::equal(roots[0], full(5, process.rank() == 0 ? value : process.rank() + 1)));
      EXPECT_TRUE(torch::equal(part[0], full(2, value)));
    }
    Tensors bits{torch::full({4}, 1 << process.rank(), at::kInt)};
    c10d::AllreduceOptions any;
    any.reduceOp = c10d::ReduceOp::BOR;
    backend->allreduce(bits, any)->wait();
    EXPECT_TRUE(torch::equal(bits[0], torch::full({4}, 7, at::kInt)));
  });
}

TEST(GroupBackendRanks, MovesListsOfTensors) {
  run_ranks(kRanks, [](Process& process) {
    const auto backend = backend_of(process);
    const int me = process.rank();
    const auto list = [] { return Tensors{full(4, 0), full(4, 0), full(4, 0)}; };
    std::vector<Tensors> gathered{list()}, at_root{me == 1 ? list() : Tensors{}};
    if (me != 1) at_root.clear();
    Tensors mine{full(4, me)}, scattered{full(4, 0)};
    std::vector<Tensors> to_scatter;
    if (me == 1) to_scatter.push_back({full(4, 10), full(4, 11), full(4, 12)});
    Tensors out = list(), in{full(4, 10 * me), full(4, 10 * me + 1), full(4, 10 * me + 2)};
    c10d::GatherOptions gather;
    c10d::ScatterOptions scatter;
    gather.rootRank = scatter.rootRank = 1;

    backend->allgather(gathered, mine, {})->wait();
    backend->gather(at_root, mine, gather)->wait();
    backend->scatter(scattered, to_scatter, scatter)->wait();
    backend->alltoall(out, in, {})->wait();

    for (int rank = 0; rank < kRanks; ++rank) {
      EXPECT_TRUE(torch::equal(gathered[0][rank], full(4, rank)));
      EXPECT_TRUE(me != 1 || torch::equal(at_root[0][rank], full(4, rank)));
      EXPECT_TRUE(torch::equal(out[rank], full(4, 10 * rank + me)));
    }
    EXPECT_TRUE(torch::equal(scattered[0], full(4, 10 + me)));
  });
}

TEST(GroupBackendRanks, AddsUpSparseTensors) {
  run_ranks(kRanks, [](Process& process) {
    const auto backend = backend_of(process);
    const auto indices = torch::tensor({{static_cast<int64_t>(process.rank()), int64_t{4}}});
    Tensors tensors{at::sparse_coo_tensor(indices, full(2, 1), {6})};

    backend->allreduce(tensors, {})->wait();

    EXPECT_TRUE(torch::equal(tensors[0].to_dense(), torch::tensor({1, 1, 1, 0, 3, 0}, at::kDouble)));
  });
}

TEST(GroupBackendRanks, LeavesVersionsOfTensorsAsTheyAre) {
  run_ranks(2, [](Process& process) {
    Tensors tensors{full(4, 1)};
    const auto before = tensors[0]._version();

    backend_of(process)->allreduce(tensors, {})->wait();

    EXPECT_EQ(tensors[0][0].item<double>(), 2);
    EXPECT_EQ(tensors[0]._version(), before);
  });
}

TEST(GroupBackendRanks, AnOperationWhoseHandleIsDroppedIsCarriedOut) {
  run_ranks(2, [](Process& process) {
    const auto backend = backend_of(process);
    // Not contiguous, so that the result is written by the last step.
    const at::Tensor whole = torch::ones({4, 4}, at::kDouble);
    Tensors tensors{whole.t().narrow(0, 0, 2)};

    backend->allreduce(tensors, {});

    while (whole[0][0].item<double>() != 2) std::this_thread::sleep_for(std::chrono::milliseconds(1));
    backend->barrier({})->wait();
    EXPECT_EQ(whole[0][3].item<double>(), 1);
  });
}

TEST(GroupBackendRanks, AFutureIsCompletedWithoutAWaitForItsOperation) {
  run_ranks(2, [](Process& process) {
    Tensors tensors{full(4, 1)};

    const auto future = backend_of(process)->allreduce(tensors, {})->getFuture();
    future->wait();

    EXPECT_EQ(future->value().toTensorVector()[0][0].item<double>(), 2);
  });
}

// As DDP waits: in a callback that it queues after it has asked for the future.
TEST(GroupBackendRanks, TheThreadOfBackwardCompletesItsFutures) {
  run_ranks(2, [](Process& process) {
    const auto backend = backend_of(process);
    const at::Tensor parameter = torch::ones({4}, torch::requires_grad());
    std::thread::id completed_in, backward_in;
    parameter.register_hook([&](const at::Tensor& gradient) {
      Tensors tensors{gradient.clone()};
      const auto future = backend->allreduce(tensors, {})->getFuture();
      future->addCallback([&](c10::ivalue::Future&) { completed_in = std::this_thread::get_id(); });
      torch::autograd::Engine::get_default_engine().queue_callback([&, future] {
        future->wait();
        backward_in = std::this_thread::get_id();
      });
      return gradient;
    });

    (parameter * 2).sum().backward();

    EXPECT_EQ(completed_in, backward_in);
  });
}

TEST(GroupBackendRanks, AWaitOfItsOwnLengthEndsAndTheOperationGoesOn) {
  std::latch timed_out(1);
  run_ranks(2,
            [&](Process& process) {
              const auto backend = backend_of(process);
              Tensors tensors{full(4, 1)};
              if (process.rank() == 1) timed_out.wait();
              const auto work = backend->allreduce(tensors, {});
              if (process.rank() == 0) {
                EXPECT_FALSE(work->isCompleted());
                EXPECT_THROW(work->wait(std::chrono::milliseconds(20)), CommError);
                timed_out.count_down();
              }

              work->wait();

              EXPECT_EQ(tensors[0][0].item<double>(), 2);
            },
            {.check = false});
}

TEST(GroupBackendRanks, AMonitoredBarrierNamesTheMissingRanks) {
  for (const bool all : {false, true}) {
    std::latch ended(1);
    run_ranks(kRanks, [&](Process& process) {
      const auto backend = backend_of(process, "gloo");
      backend->monitoredBarrier({}, all);
      c10d::BarrierOptions options;
      options.timeout = std::chrono::milliseconds(100);
      if (process.rank() > 0) return ended.wait();
      try {
        backend->monitoredBarrier(options, all);
        ADD_FAILURE() << "no rank has come";
      } catch (const CommError& error) {
        EXPECT_THAT(error.what(), HasSubstr(all ? "Ranks 1, 2 failed to pass monitoredBarrier in 100 ms"
                                                : "Rank 1 failed to pass monitoredBarrier in 100 ms"));
      }
      ended.count_down();
    });
  }
}

TEST(GroupBackendRanks, AReceiveFromAnyRankTellsItsSender) {
  run_ranks(2, [](Process& process) {
    const auto backend = backend_of(process);
    if (process.group().backend_name() == "shm+gloo") return;
    Tensors tensors{full(4, process.rank())};

    if (process.rank() == 1) {
      backend->send(tensors, 0, 3)->wait();
      return;
    }
    const auto work = backend->recvAnysource(tensors, 3);
    work->wait();

    EXPECT_EQ(work->sourceRank(), 1);
    EXPECT_EQ(tensors[0][0].item<double>(), 1);
  });
}

TEST(GroupBackendRanks, ListsThatDoNotFitAreRefused) {
  run_ranks(2, [](Process& process) {
    const auto backend = backend_of(process);
    Tensors mine{full(4, 1)};
    std::vector<Tensors> too_few{{full(4, 0)}}, other_size{{full(4, 0), full(5, 0)}};

    EXPECT_THROW(backend->allgather(too_few, mine, {}), UsageError);
    EXPECT_THROW(backend->allgather(other_size, mine, {}), UsageError);
  });
}

TEST(GroupBackendRanks, TitlesAreGloosUnderItsName) {
  EXPECT_STREQ(title_of(c10d::OpType::ALLREDUCE, "gloo"), "gloo:all_reduce");
  EXPECT_STREQ(title_of(c10d::OpType::ALLREDUCE, "hasten"), "hasten:all_reduce");
}

}  // namespace
}  // namespace hasten::comm
