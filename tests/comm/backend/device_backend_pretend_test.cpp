// Groups over tensors of GPUs, with a double of NCCL that finishes late: order of streams, empty parts, messages,
// errors.
#include "comm/backend/device_backend.h"

#include <gtest/gtest.h>

#include "hasten/core/error.h"
#include "support/device.h"
#include "support/nccl_double.h"
#include "support/ranks.h"

namespace hasten::comm {
namespace {

using testing::run_ranks;

c10::Device gpu_of(const process::Process& process) {
  return {c10::kCUDA, static_cast<c10::DeviceIndex>(process.rank())};
}

// Runs as ranks with a GPU each; the rank's is the thread's current device.
void run_on_gpus(int world_size, const std::function<void(const Group&, c10::Device)>& fn, bool check = true) {
  const testing::UsesNcclDouble with_double;
  run_ranks(world_size,
            [&](process::Process& process) {
              const c10::Device device = gpu_of(process);
              const c10::DeviceGuard guard(device);
              fn(process.group(), device);
            },
            {.check = check});
}

TEST(DeviceBackend, CollectivesOnGpusGiveWhatTheyShould) {
  run_on_gpus(3, [](const Group& group, c10::Device device) {
    const int rank = group.rank();
    auto sum = torch::full({5}, rank + 1.0, device), mean = sum.clone(), most = sum.clone();
    group.all_reduce_(sum);
    group.all_reduce_(mean, ReduceOp::kMean);
    group.all_reduce_(most, ReduceOp::kMax);
    EXPECT_TRUE(sum.cpu().eq(6).all().item<bool>());
    EXPECT_TRUE(mean.cpu().eq(2).all().item<bool>());
    EXPECT_TRUE(most.cpu().eq(3).all().item<bool>());

    const auto all = group.all_gather(torch::full({rank + 1, 2}, 1.0 * rank, device));
    EXPECT_EQ(all[2].sizes(), (std::vector<int64_t>{3, 2}));
    EXPECT_TRUE(all[2].cpu().eq(2).all().item<bool>());
    const auto part = group.reduce_scatter(torch::ones({6}, device));
    EXPECT_TRUE(part.cpu().equal(torch::full({2}, 3.F)));
    auto from_1 = torch::full({4}, 1.0 * rank, device);
    group.broadcast_(from_1, 1);
    EXPECT_TRUE(from_1.cpu().eq(1).all().item<bool>());
    EXPECT_EQ(group.backend_name(), "nccl double");
  });
}

TEST(DeviceBackend, AResultIsThereOnlyOnceItsWorkWasWaitedFor) {
  run_on_gpus(2, [](const Group& group, c10::Device device) {
    const auto output = torch::zeros({4}, device), input = torch::ones({2}, device);
    auto work = group.all_gather_into_async_(output, input);
    EXPECT_EQ(output.sum().item<float>(), 0);
    work.wait();
    EXPECT_EQ(output.sum().item<float>(), 4);
  });
}

TEST(DeviceBackend, WaitingForAWorkDoesNotLetTheHostWait) {
  run_on_gpus(
      2,
      [](const Group& group, c10::Device device) {
        auto sum = torch::ones({4}, device);
        group.all_reduce_(sum);
        group.barrier();
        if (group.rank() == 0) {
          EXPECT_EQ(testing::waits_of([&] { group.all_reduce_(sum); }), 0);
        } else {
          group.all_reduce_(sum);
        }
        group.barrier();
      },
      /*check=*/false);
}

TEST(DeviceBackend, PartsOfNoElementsTravel) {
  run_on_gpus(2, [](const Group& group, c10::Device device) {
    const auto all = group.all_gather(torch::ones({group.rank() == 0 ? 0 : 3, 2}, device));
    EXPECT_EQ(all[0].sizes(), (std::vector<int64_t>{0, 2}));
    EXPECT_EQ(all[1].sizes(), (std::vector<int64_t>{3, 2}));
    const auto parts = group.all_to_all({torch::ones({0, 3}, device), torch::ones({group.rank(), 3}, device)});
    EXPECT_EQ(parts[0].sizes(), (std::vector<int64_t>{group.rank() == 0 ? 0 : 0, 3}));
    auto nothing = torch::ones({0}, device);
    group.all_reduce_(nothing);
    group.broadcast_(nothing, 0);
    EXPECT_TRUE(group.gather(nothing, 0).size() == (group.rank() == 0 ? 2u : 0u));
  });
}

// Each rank sends first. Over NCCL a message holds the stream until the other side has come to it.
TEST(DeviceBackend, ABatchOfLargeMessagesBothWaysEnds) {
  for (const bool check : {true, false}) {
    run_on_gpus(
        2,
        [](const Group& group, c10::Device device) {
          const int other = 1 - group.rank();
          const auto mine = torch::full({1 << 20}, 1.0 * group.rank(), device);
          const auto theirs = torch::zeros({1 << 20}, device);
          auto work = group.batch_send_recv(
              {{PointToPoint::Kind::kSend, mine, other}, {PointToPoint::Kind::kReceive, theirs, other}});
          work.wait();
          EXPECT_TRUE(theirs.cpu().eq(other).all().item<bool>());
        },
        check);
  }
}

TEST(DeviceBackend, ABatchOfMessagesOfBothDevicesArrives) {
  run_on_gpus(2, [](const Group& group, c10::Device device) {
    const int other = 1 - group.rank();
    const auto there = torch::zeros({3}, device), here = torch::zeros({3}), nothing = torch::zeros({0}, device);
    group
        .batch_send_recv({{PointToPoint::Kind::kSend, torch::ones({3}), other},
                          {PointToPoint::Kind::kReceive, there, other},
                          {PointToPoint::Kind::kSend, torch::full({3}, 2.F, device), other},
                          {PointToPoint::Kind::kReceive, here, other},
                          {PointToPoint::Kind::kSend, nothing, other},
                          {PointToPoint::Kind::kReceive, nothing, other}})
        .wait();
    EXPECT_TRUE(here.equal(torch::ones({3})));
    EXPECT_TRUE(there.cpu().equal(torch::full({3}, 2.F)));
  });
}

TEST(DeviceBackend, ABatchWhoseSidesDifferIsRefused) {
  run_on_gpus(2, [](const Group& group, c10::Device device) {
    const int other = 1 - group.rank();
    const auto batch = [&](int64_t size) {
      (void)group.batch_send_recv({{PointToPoint::Kind::kSend, torch::ones({3}, device), other},
                                   {PointToPoint::Kind::kReceive, torch::ones({size}, device), other}});
    };
    EXPECT_THROW(batch(4), CommError);
  });
}

TEST(DeviceBackend, ATagOfAMessageOnAGpuIsRefused) {
  run_on_gpus(2, [](const Group& group, c10::Device device) {
    EXPECT_THROW((void)group.send_async(torch::ones({3}, device), 1 - group.rank(), 5), UsageError);
    EXPECT_THROW((void)group.receive_async_(torch::ones({3}, device), 1 - group.rank(), 5), UsageError);
    // With tag 0 it arrives.
    const auto tensor = torch::full({3}, 1.0 * group.rank(), device);
    if (group.rank() == 0) group.send(tensor, 1);
    if (group.rank() == 1) group.receive_(tensor, 0);
    EXPECT_TRUE(tensor.cpu().eq(0).all().item<bool>());
  });
}

TEST(DeviceBackend, TwoRanksOnOneGpuAreRefusedWithARankAndARemedy) {
  const testing::UsesNcclDouble with_double;
  const auto errors = testing::run_ranks_collecting(2, [](process::Process& process) {
    auto tensor = torch::ones({3}, testing::kGpu);
    process.group().all_reduce_(tensor);
  });
  for (const auto& words : errors) {
    EXPECT_NE(words.find("rank"), std::string::npos) << words;
    EXPECT_NE(words.find("two ranks use one GPU"), std::string::npos) << words;
    EXPECT_NE(words.find("HASTEN_BACKEND=gloo"), std::string::npos) << words;
  }
}

TEST(DeviceBackend, AGroupOfTheCpuHasNone) {
  const testing::UsesNcclDouble with_double;
  run_ranks(2, [](process::Process& process) {
    auto tensor = torch::ones({3});
    process.group().all_reduce_(tensor);
    EXPECT_EQ(process.group().backend_name(), "shm");
  });
}

TEST(DeviceBackend, WithTheCpusBackendByNameTensorsOfGpusTakeIt) {
  const testing::UsesNcclDouble with_double;
  run_ranks(2,
            [](process::Process& process) {
              auto tensor = torch::ones({3}, gpu_of(process));
              process.group().all_reduce_(tensor);
              EXPECT_TRUE(tensor.cpu().eq(2).all().item<bool>());
              EXPECT_EQ(process.group().backend_name(), "gloo");
            },
            {.adjust = [](int, GroupOptions& options) { options.backend = BackendKind::kGloo; }});
}

// What a GPU waits for has no thread of the host that would see the peer's end.
TEST(DeviceBackend, AfterAPeersFailureTheNextOperationThrowsItsWords) {
  const testing::UsesNcclDouble with_double;
  const auto errors = testing::run_ranks_collecting(2, [](process::Process& process) {
    auto tensor = torch::ones({3}, gpu_of(process));
    process.group().all_reduce_(tensor);
    if (process.rank() == 1) throw std::runtime_error("the disk is full");
    while (true) process.group().all_reduce_(tensor);
  });
  EXPECT_NE(errors[0].find("the disk is full"), std::string::npos) << errors[0];
}

}  // namespace
}  // namespace hasten::comm
