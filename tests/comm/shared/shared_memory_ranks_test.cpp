// The shared memory backend, through Group. What every backend does is in group_ranks_test.cpp, which is run
// on this one and on Gloo.
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <torch/types.h>
#include <unistd.h>

#include <csignal>
#include <filesystem>
#include <latch>

#include "comm/on_shared_memory.h"
#include "hasten/comm/group/group.h"
#include "hasten/core/error.h"
#include "hasten/process/rank_info.h"
#include "support/processes.h"

namespace hasten::comm {
namespace {

using process::Process;
using ::testing::AllOf;
using ::testing::Each;
using ::testing::HasSubstr;
using testing::Processes;
using testing::run_ranks;
using testing::run_ranks_collecting;

TEST(SharedMemoryRanks, IsChosenWhereAllRanksAreOnOneHost) {
  run_ranks(
      3, [](Process& process) { EXPECT_EQ(process.group().backend_name(), "shm"); },
      {.adjust = [](int, GroupOptions& options) { options.backend = BackendKind::kAuto, options.host = "here"; }});
}

TEST(SharedMemoryRanks, IsNotChosenBetweenHosts) {
  run_ranks(2,
            [](Process& process) {
              EXPECT_EQ(process.group().backend_name(), "gloo");
              process.group().barrier();
            },
            {.adjust = [](int rank, GroupOptions& options) { options.host = text("host", rank); }});
}

TEST(SharedMemoryRanks, AskedForBetweenHostsIsRefusedOnEveryRank) {
  const auto words = run_ranks_collecting(2, [](Process&) {}, {.adjust = [](int rank, GroupOptions& options) {
                                            options.backend = BackendKind::kSharedMemory;
                                            options.host = text("host", rank);
                                          }});

  EXPECT_THAT(words, Each(HasSubstr("rank 0 and rank 1 are not known to be on one host")));
}

TEST(SharedMemoryRanks, TooLittleMemoryIsRefusedByName) {
  const auto words = run_ranks_collecting(
      2, [](Process&) {}, {.adjust = [](int, GroupOptions& options) { options.shared_bytes = kMegabyte; }});

  EXPECT_THAT(words, Each(HasSubstr("at least")));
}

TEST(SharedMemoryRanks, LargeReductionsAreEqualBitForBitOnEveryRankAndInEveryRun) {
  for (const auto dtype : {at::kFloat, at::kBFloat16}) {
    std::vector<at::Tensor> results(6);
    for (int run = 0; run < 2; ++run) {
      run_ranks(
          3,
          [&](Process& process) {
            at::Tensor tensor =
                torch::randn({700001}, at::make_generator<at::CPUGeneratorImpl>(process.rank())).to(dtype);
            process.group().all_reduce_(tensor);
            results[run * 3 + process.rank()] = tensor;
          },
          kShared);
    }
    for (const auto& result : results) EXPECT_TRUE(torch::equal(result, results[0]));
  }
}

// The sum or mean of what the ranks bring, in the order of the ranks; bfloat16 rounded once.
at::Tensor added_up(const std::vector<at::Tensor>& inputs, ReduceOp op) {
  const auto dtype = inputs[0].scalar_type();
  at::Tensor sum = inputs[0].to(dtype == at::kBFloat16 ? at::kFloat : dtype);
  for (size_t i = 1; i < inputs.size(); ++i) sum = sum + inputs[i].to(sum.scalar_type());
  return (op == ReduceOp::kMean ? sum / static_cast<double>(inputs.size()) : sum).to(dtype);
}

// Sizes: a single chunk, chunks of unequal length, parts that begin inside a chunk, more chunks than slots.
TEST(SharedMemoryRanks, LargeSumsAreThoseOfTheRanksInTheirOrder) {
  for (const int world_size : {2, 3, 5}) {
    for (const int64_t part : {20'000, 333'333, 700'001}) {
      run_ranks(
          world_size,
          [&](Process& process) {
            const Group& group = process.group();
            for (const auto dtype : {at::kFloat, at::kBFloat16, at::kChar}) {
              std::vector<at::Tensor> inputs;
              for (int rank = 0; rank < world_size; ++rank) {
                const auto generator = at::make_generator<at::CPUGeneratorImpl>(rank + 1);
                inputs.push_back((torch::randn({part * world_size}, generator) * 20).to(dtype));
              }
              const at::Tensor mine = inputs[group.rank()];
              for (const auto op : {ReduceOp::kSum, ReduceOp::kMean}) {
                if (op == ReduceOp::kMean && dtype == at::kChar) continue;
                const at::Tensor wanted = added_up(inputs, op), before = mine.clone();
                const at::Tensor everywhere = mine.clone();
                group.all_reduce_(everywhere, op);
                ASSERT_TRUE(torch::equal(everywhere, wanted)) << dtype << ' ' << part;
                for (int root = 0; root < world_size; ++root) {
                  const at::Tensor there = mine.clone();
                  group.reduce_(there, root, op);
                  ASSERT_TRUE(torch::equal(there, root == group.rank() ? wanted : mine)) << dtype << ' ' << root;
                }
                const at::Tensor scattered = group.reduce_scatter(mine, op);
                ASSERT_TRUE(torch::equal(scattered, wanted.narrow(0, group.rank() * part, part)));
                ASSERT_TRUE(torch::equal(mine, before));
              }
            }
          },
          kShared);
    }
  }
}

TEST(SharedMemoryRanks, MeansOfHalfDoNotOverflowOnTheWay) {
  run_ranks(
      2,
      [](Process& process) {
        const Group& group = process.group();
        const at::Tensor mine = torch::full({4}, 40000, at::kHalf), wanted = mine.clone();
        EXPECT_TRUE(torch::equal(group.reduce_scatter(mine, ReduceOp::kMean), wanted.narrow(0, 0, 2)));
        group.reduce_(mine, 1, ReduceOp::kMean);
        group.all_reduce_(mine, ReduceOp::kMean);
        EXPECT_TRUE(torch::equal(mine, wanted));
        const at::Tensor small = torch::full({4}, 300, at::kFloat8_e4m3fn);
        group.all_reduce_(small, ReduceOp::kMean);
        EXPECT_EQ(small.to(at::kFloat)[0].item<float>(),
                  torch::full({1}, 300, at::kFloat8_e4m3fn).to(at::kFloat).item<float>());
      },
      kShared);
}

// Sizes: one step, the first above it, more chunks than slots; ends and parts that begin within a line.
TEST(SharedMemoryRanks, LargeTensorsArriveWhole) {
  for (const int world_size : {2, 3, 5}) {
    for (const int64_t size : {kMegabyte, kMegabyte + 1, 3 * kMegabyte + 77, 5 * kMegabyte + 1}) {
      run_ranks(
          world_size,
          [&](Process& process) {
            const Group& group = process.group();
            const at::Tensor whole = torch::empty({world_size * size}, at::kByte);
            for (int round = 0; round < 2; ++round) {
              group.all_gather_into_(whole, bytes_from(group.rank(), round, size));
              const at::Tensor word = bytes_from(group.rank(), round + 10, size);
              group.broadcast_(word, round);

              for (int rank = 0; rank < world_size; ++rank) {
                const at::Tensor part = whole.narrow(0, rank * size, size);
                ASSERT_TRUE(torch::equal(part, bytes_from(rank, round, size))) << size << ' ' << rank;
              }
              ASSERT_TRUE(torch::equal(word, bytes_from(round, round + 10, size))) << size << ' ' << round;
            }
          },
          kShared);
    }
  }
}

// Nothing, less than a line, what fits the first step and what does not; so streams of unequal length.
TEST(SharedMemoryRanks, LargePartsOfAnAllToAllArriveWhole) {
  const std::vector<int64_t> sizes = {0, 33, 3 * kMegabyte + 77, 400 << 10, 5 * kMegabyte + 1};
  for (const int world_size : {2, 3, 5}) {
    run_ranks(
        world_size,
        [&](Process& process) {
          const int me = process.rank();
          for (int round = 0; round < 4; ++round) {
            const auto part = [&](int from, int to) {
              return bytes_from(from, 10 * round + to, sizes[(from + 2 * to + round) % sizes.size()]);
            };
            std::vector<at::Tensor> parts;
            for (int to = 0; to < world_size; ++to) parts.push_back(part(me, to));
            const auto received = process.group().all_to_all(parts);
            for (int from = 0; from < world_size; ++from) {
              ASSERT_TRUE(torch::equal(received[from], part(from, me))) << round << ' ' << from << ' ' << me;
            }
            const int root = round % world_size;
            ASSERT_TRUE(torch::equal(process.group().scatter(parts, root), part(root, me))) << round;
            const auto gathered = process.group().gather(part(me, 0), root);
            for (size_t from = 0; from < gathered.size(); ++from) {
              ASSERT_TRUE(torch::equal(gathered[from], part(static_cast<int>(from), 0))) << round;
            }
          }
        },
        kShared);
  }
}

TEST(SharedMemoryRanks, ManyOperationsUnderWayEndInAnyOrder) {
  run_ranks(
      3,
      [](Process& process) {
        const std::vector<int64_t> sizes = {3, 400000, 1, 50000, 7, 1000000, 64};
        std::vector<at::Tensor> tensors;
        std::vector<Work<>> works;
        for (const int64_t size : sizes) {
          tensors.push_back(torch::full({size}, process.rank() + 1.0));
          works.push_back(process.group().all_reduce_async_(tensors.back()));
        }

        for (size_t i = works.size(); i-- > 0;) works[i].wait();

        for (const auto& tensor : tensors) EXPECT_TRUE(torch::equal(tensor, torch::full_like(tensor, 6)));
      },
      kShared);
}

// Rank 0 starts an operation and then does nothing until rank 1 has its result.
void starts_and_sleeps(int64_t count) {
  std::latch rank_1_is_done(1);
  run_ranks(
      2,
      [&](Process& process) {
        at::Tensor tensor = torch::ones({count});
        auto work = process.group().all_reduce_async_(tensor);
        if (process.rank() == 0) rank_1_is_done.wait();
        work.wait();
        if (process.rank() == 1) rank_1_is_done.count_down();
        EXPECT_EQ(tensor[count - 1].item<float>(), 2);
      },
      kShared);
}

TEST(SharedMemoryRanks, OperationsGoOnWhileTheirStarterDoesSomethingElse) {
  starts_and_sleeps(10);
  starts_and_sleeps(3000000);
}

TEST(SharedMemoryRanks, AMismatchIsFoundWithoutACheckAndTheGroupGoesOn) {
  run_ranks(
      3,
      [](Process& process) {
        at::Tensor tensor = torch::ones({process.rank() == 2 ? 8 : 4});
        try {
          process.group().all_reduce_(tensor);
          ADD_FAILURE() << "no error";
        } catch (const CommError& error) {
          EXPECT_THAT(error.what(), HasSubstr("rank 0 calls all_reduce(sum) of 4 Float ("));
          EXPECT_THAT(error.what(), HasSubstr("rank 2 calls all_reduce(sum) of 8 Float ("));
        }
        EXPECT_EQ(tensor.sum().item<double>(), tensor.numel());
        at::Tensor next = torch::ones({2});
        process.group().all_reduce_(next);
        EXPECT_EQ(next[0].item<double>(), 3);
      },
      kShared);
}

TEST(SharedMemoryRanks, PartsThatOneGivesAndAnotherDoesNotTakeAreFoundWithoutACheck) {
  run_ranks(
      2,
      [](Process& process) {
        at::Tensor output = torch::zeros({process.rank() == 1 ? 4 : 2});
        EXPECT_THAT([&] { process.group().all_to_all_into_(output, torch::ones({2})); },
                    ::testing::ThrowsMessage<CommError>(HasSubstr("rank 0 gives 4 bytes to rank 1, which takes 8")));
        EXPECT_EQ(output.sum().item<double>(), 0);
        output = torch::zeros({2});
        process.group().all_to_all_into_(output, torch::full({2}, process.rank()).to(at::kFloat));
        EXPECT_TRUE(torch::equal(output, torch::tensor({0.0F, 1.0F})));
      },
      kShared);
}

TEST(SharedMemoryRanks, ATimeoutNamesWhoHasNotCome) {
  const auto words = run_ranks_collecting(
      3,
      [](Process& process) {
        if (process.rank() != 1) process.group().barrier();
      },
      on_shared_memory(std::chrono::milliseconds(300)));

  EXPECT_THAT(words[0], AllOf(HasSubstr("barrier ("), HasSubstr("was not completed"), HasSubstr("rank 1")));
}

TEST(SharedMemoryRanks, BuffersAreReducedInPlaceLikeOtherTensors) {
  for (const int world_size : {2, 3}) {
    run_ranks(
        world_size,
        [&](Process& process) {
          const Group& group = process.group();
          for (const int64_t count : {5, 20000, 900001}) {
            at::Tensor buffer = group.buffer(count);
            buffer.copy_(torch::arange(count) + process.rank());
            // One rank's tensor is no buffer: then nobody's is used in place.
            at::Tensor mixed = process.rank() == 0 ? torch::ones({count}) : group.buffer(count).fill_(1);

            group.all_reduce_(buffer);
            group.all_reduce_(mixed);
            group.all_reduce_(buffer.narrow(0, 1, count - 1));

            const at::Tensor sum = torch::arange(count) * world_size + world_size * (world_size - 1) / 2;
            EXPECT_EQ(buffer[0].item<float>(), sum[0].item<float>());
            EXPECT_TRUE(
                torch::equal(buffer.narrow(0, 1, count - 1), sum.narrow(0, 1, count - 1).to(at::kFloat) * world_size));
            EXPECT_TRUE(torch::equal(mixed, torch::full({count}, world_size)));

            at::Tensor mean = group.buffer(count).copy_(torch::arange(count) + process.rank());
            at::Tensor plain = mean.clone();
            group.all_reduce_(mean, ReduceOp::kMean);
            group.all_reduce_(plain, ReduceOp::kMean);
            EXPECT_TRUE(torch::allclose(mean, torch::arange(count) + 0.5 * (world_size - 1)));
            EXPECT_TRUE(torch::equal(mean, plain));
          }
        },
        kShared);
  }
}

TEST(SharedMemoryRanks, ABufferOutlivesItsGroupAndIsPlainMemoryWhereNoneIsLeft) {
  std::vector<at::Tensor> kept(2);
  run_ranks(
      2,
      [&](Process& process) {
        kept[process.rank()] = process.group().buffer(4, at::kLong).fill_(process.rank());
        at::Tensor large = process.group().buffer(100 * kMegabyte / 4);
        large.fill_(1);
        process.group().all_reduce_(large);
        EXPECT_EQ(large[100 * kMegabyte / 4 - 1].item<float>(), 2);
      },
      kShared);

  EXPECT_EQ(kept[1].sum().item<int64_t>(), 4);
}

TEST(SharedMemoryRanks, GroupsBesideEachOtherDoNotMeet) {
  run_ranks(
      4,
      [](Process& process) {
        const int rank = process.rank();
        const auto even = process.group().subgroup({0, 2}), odd = process.group().subgroup({3, 1});
        const Group& mine = rank % 2 == 0 ? *even : *odd;
        EXPECT_EQ(mine.backend_name(), "shm");
        for (int round = 0; round < 20; ++round) {
          at::Tensor part = torch::full({100 * round + 1}, rank), whole = torch::ones({10000 * round + 1});
          auto under_way = process.group().all_reduce_async_(whole);
          mine.all_reduce_(part);
          under_way.wait();
          EXPECT_EQ(part[0].item<float>(), rank % 2 == 0 ? 2 : 4);
          EXPECT_EQ(whole.sum().item<float>(), 4 * whole.numel());
        }
      },
      kShared);
}

TEST(SharedMemoryRanks, SixtyFourRanksShareAFewCores) {
  run_ranks(
      64,
      [](Process& process) {
        for (const int64_t count : {1, 1000, 200000}) {
          at::Tensor tensor = torch::full({count}, process.rank());
          process.group().all_reduce_(tensor);
          EXPECT_EQ(tensor[count - 1].item<int64_t>(), 64 * 63 / 2);
        }
        const auto all = process.group().all_gather(torch::full({3}, process.rank()));
        EXPECT_EQ(all[63][2].item<int64_t>(), 63);
      },
      on_shared_memory(std::chrono::seconds(100)));
}

// ---- Processes.

// Processes that want segments of different sizes.
Group connect_with_unequal_memory(BackendKind backend) {
  const auto identity = process::read_rank_info(Environment::current());
  const auto store = Store::tcp({.port = identity.master_port, .server = identity.rank == 0});
  return Group::connect(store, identity.rank, identity.world_size,
                        {.backend = backend, .shared_bytes = (identity.rank + 8) * kMegabyte, .address = "127.0.0.1"});
}

HASTEN_PROCESS_CASE(shm_cannot_be_shared) {
  const Group group = connect_with_unequal_memory(BackendKind::kAuto);
  group.barrier();
  std::cout << "over " << group.backend_name() << std::endl;
  return 0;
}

TEST(SharedMemoryRanks, WhereMemoryCannotBeSharedAllUseGlooAndRankZeroSaysWhy) {
  const auto results = testing::run_processes(3, "shm_cannot_be_shared");

  for (const auto& result : results) EXPECT_THAT(result.output, HasSubstr("over gloo"));
  EXPECT_THAT(results[0].output, HasSubstr("give every rank the same shared_bytes"));
}

HASTEN_PROCESS_CASE(shm_cannot_be_shared_by_name) {
  connect_with_unequal_memory(BackendKind::kSharedMemory);
  return 0;
}

TEST(SharedMemoryRanks, WhereMemoryCannotBeSharedAskingForItIsAnErrorOnEveryRank) {
  const auto results = testing::run_processes(2, "shm_cannot_be_shared_by_name");

  for (const auto& result : results)
    EXPECT_THAT(result.output, HasSubstr("backend shm was asked for, but memory cannot"));
}

constexpr uid_t kNobody = 65534;

HASTEN_PROCESS_CASE(shm_of_another_user) {
  const auto identity = process::read_rank_info(Environment::current());
  if (identity.rank == 1 && setuid(kNobody) != 0) return 1;
  const auto store = Store::tcp({.port = identity.master_port, .server = identity.rank == 0});
  const Group group = Group::connect(store, identity.rank, identity.world_size, {.address = "127.0.0.1"});
  group.barrier();
  std::cout << "over " << group.backend_name() << std::endl;
  return 0;
}

TEST(SharedMemoryRanks, AProcessOfAnotherUserCannotAttach) {
  if (geteuid() != 0) GTEST_SKIP() << "only root can become another user";

  const auto results = testing::run_processes(2, "shm_of_another_user");

  for (const auto& result : results) EXPECT_THAT(result.output, HasSubstr("over gloo"));
  EXPECT_THAT(results[0].output, HasSubstr("a descriptor was not handed over"));
}

int exchange_until_killed() {
  Process process({.check = false});
  if (process.group().backend_name() != "shm") return 3;
  try {
    for (int step = 0;; ++step) {
      at::Tensor tensor = torch::ones({step % 2 == 0 ? 10 : 1000000});
      process.group().all_reduce_(tensor);
      if (step == 3) std::cout << "running" << std::endl;
    }
  } catch (const CommError& error) {
    std::cout << error.what() << std::endl;
    return 4;
  }
}
HASTEN_PROCESS_CASE(shm_exchange_until_killed) {
  return exchange_until_killed();
}

TEST(SharedMemoryRanks, TheOthersNameAProcessThatWasKilled) {
  for (const int victim : {0, 2, 4}) {
    Processes processes(5, "shm_exchange_until_killed");
    for (int rank = 0; rank < 5; ++rank) ASSERT_TRUE(processes.wait_for_output(rank, "running"));

    processes.signal(victim, SIGKILL);
    const auto results = processes.wait(std::chrono::seconds(10));

    EXPECT_EQ(results[victim].exit_code, 128 + SIGKILL);
    for (int rank = 0; rank < 5; ++rank) {
      if (rank == victim) continue;
      EXPECT_EQ(results[rank].exit_code, 4) << results[rank].output;
      EXPECT_THAT(results[rank].output, HasSubstr(text("the process of rank ", victim, " has ended")));
    }
  }
}

HASTEN_PROCESS_CASE(shm_exchange_until_late) {
  const auto identity = process::read_rank_info(Environment::current());
  const auto store = Store::tcp({.port = identity.master_port, .server = identity.rank == 0});
  const Group group = Group::connect(store, identity.rank, identity.world_size,
                                     {.timeout = std::chrono::seconds(1),
                                      .check = false,
                                      .backend = BackendKind::kSharedMemory,
                                      .address = "127.0.0.1"});
  try {
    for (int step = 0;; ++step) {
      group.all_reduce_(torch::ones({10'000'000}));
      if (step == 3) std::cout << "running" << std::endl;
    }
  } catch (const CommError& error) {
    std::cout << error.what() << std::endl;
    // The store is rank 0's, and who sees a rank leave asks there why: all stay until the test ends them.
    for (;;) pause();
  }
}

TEST(SharedMemoryRanks, ATimeoutInALargeSumNamesWhoHasStopped) {
  Processes processes(4, "shm_exchange_until_late");
  for (int rank = 0; rank < 4; ++rank) ASSERT_TRUE(processes.wait_for_output(rank, "running"));

  processes.signal(2, SIGSTOP);
  for (const int rank : {0, 1, 3}) ASSERT_TRUE(processes.wait_for_output(rank, "not there yet: rank 2"));
  for (int rank = 0; rank < 4; ++rank) processes.signal(rank, SIGKILL);

  EXPECT_EQ(processes.wait(std::chrono::seconds(10))[2].exit_code, 128 + SIGKILL);
}

HASTEN_PROCESS_CASE(shm_words) {
  const Process process({.check = false});
  if (process.rank() == 2) throw std::runtime_error("no more data");
  process.group().all_reduce_(torch::ones({10}));
  return 0;
}

TEST(SharedMemoryRanks, TheOthersHearTheLastWordsOfARankThatThrows) {
  const auto results = testing::run_processes(3, "shm_words");

  for (const int rank : {0, 1}) EXPECT_THAT(results[rank].output, HasSubstr("rank 2 failed: no more data"));
}

int num_open_files() {
  const std::filesystem::directory_iterator folder("/proc/self/fd");
  return static_cast<int>(std::distance(begin(folder), end(folder)));
}

TEST(SharedMemoryRanks, NothingIsLeftOfGroupsThatHaveEnded) {
  const auto once = [](bool fails) {
    run_ranks_collecting(
        3,
        [&](Process& process) {
          process.group().all_reduce_(torch::ones({fails ? 10 : 200000}));
          if (fails && process.rank() == 1) throw std::runtime_error("on purpose");
          process.group().barrier();
        },
        kShared);
  };
  once(false), once(true);
  const int before = num_open_files();

  const char* scale = std::getenv("HASTEN_TEST_SCALE");
  const int rounds = 25 * (scale != nullptr ? std::atoi(scale) : 1);
  for (int round = 0; round < rounds; ++round) once(false), once(true);

  EXPECT_EQ(num_open_files(), before);
  for (const auto& entry : std::filesystem::directory_iterator("/dev/shm")) {
    EXPECT_THAT(entry.path().filename().string(), ::testing::Not(HasSubstr("hasten")));
  }
}

}  // namespace
}  // namespace hasten::comm
