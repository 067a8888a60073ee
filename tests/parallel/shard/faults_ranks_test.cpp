// Sharding where the system refuses memory, where a rank dies, and where ranks do not step together.
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <linux/audit.h>
#include <linux/filter.h>
#include <linux/seccomp.h>
#include <sys/prctl.h>
#include <sys/resource.h>
#include <sys/syscall.h>
#include <torch/torch.h>

#include <csignal>
#include <cstddef>
#include <filesystem>
#include <fstream>
#include <future>
#include <iostream>

#include "hasten/core/env.h"
#include "hasten/core/error.h"
#include "parallel/shard/trained.h"
#include "support/folder.h"
#include "support/processes.h"

namespace hasten::parallel {
namespace {

using namespace shard_testing;
using ::testing::AllOf;
using ::testing::HasSubstr;

struct WideImpl : torch::nn::Module {
  WideImpl() { register_module("layer", layer); }
  at::Tensor forward(const at::Tensor& x) { return layer(x); }
  torch::nn::Linear layer{2048, 8192};  // 64 MiB
};
TORCH_MODULE(Wide);

// What a rank of a process case says: the words of the error, or "no error".
template <class Function>
int say_error(const Function& fn) {
  std::string words = "no error";
  try {
    process::Process process;
    fn(process);
  } catch (const UsageError& error) {
    words = std::string("UsageError: ") + error.what();
  } catch (const CommError& error) {
    words = std::string("CommError: ") + error.what();
  }
  std::cout << words << std::endl;
  return 0;
}

int64_t address_space_bytes() {
  std::ifstream file("/proc/self/statm");
  int64_t pages = 0;
  file >> pages;
  return pages * sysconf(_SC_PAGESIZE);
}

void shard_wide(process::Process& process) {
  Wide net;
  Sharding sharding(process.group(), {.stage = ShardStage::kParameters});
  const Ddp ddp(*net, process.group(), {.exchange = sharding.make_exchange(process.group())});
}

HASTEN_PROCESS_CASE(shard_with_little_memory) {
  return say_error([](process::Process& process) {
    process.group().barrier();
    if (process.rank() == 1) {
      const auto most = static_cast<rlim_t>(address_space_bytes() + 100'000'000);
      const rlimit limit{most, most};
      setrlimit(RLIMIT_AS, &limit);
    }
    shard_wide(process);
  });
}

TEST(ShardFaults, AMemoryLimitBelowTheRegionIsNamedOnAllRanks) {
  for (const auto& result : testing::run_processes(2, "shard_with_little_memory")) {
    EXPECT_THAT(result.output, AllOf(HasSubstr("UsageError"), HasSubstr("rank 1"), HasSubstr("ulimit -v"),
                                     HasSubstr("plan --memory")));
  }
}

// From here on memfd_create fails, as where a container's profile does not know it.
void refuse_memory_files() {
  sock_filter program[] = {BPF_STMT(BPF_LD | BPF_W | BPF_ABS, offsetof(seccomp_data, nr)),
                           BPF_JUMP(BPF_JMP | BPF_JEQ | BPF_K, SYS_memfd_create, 0, 1),
                           BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_ERRNO | EPERM),
                           BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_ALLOW)};
  const sock_fprog filter{std::size(program), program};
  prctl(PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0);
  prctl(PR_SET_SECCOMP, SECCOMP_MODE_FILTER, &filter);
}

HASTEN_PROCESS_CASE(shard_without_memory_files) {
  return say_error([](process::Process& process) {
    process.group().barrier();
    refuse_memory_files();
    shard_wide(process);
  });
}

TEST(ShardFaults, WhereMemoryFilesAreRefusedItIsNamedOnAllRanks) {
  for (const auto& result : testing::run_processes(2, "shard_without_memory_files")) {
    EXPECT_THAT(result.output,
                AllOf(HasSubstr("UsageError"), HasSubstr("memfd_create"), HasSubstr("without sharding")));
  }
}

HASTEN_PROCESS_CASE(shard_with_a_killed_rank) {
  const std::string where = Environment::current().text("HASTEN_TEST_KILL_IN").value_or("");
  return say_error([&](process::Process& process) {
    const bool dies = process.rank() == 1;
    Trained<testing::Mlp> t(process.group(), small_units(ShardStage::kParameters), adamw);
    train(t, "mlp", 2);
    const auto loss = t.loss("mlp", 2);
    if (dies && where == "forward") std::raise(SIGKILL);
    // The gradients of the last layer's unit are exchanged by then, those of the first are not.
    if (dies && where == "reduce") {
      t.net->first->weight.register_hook([](const at::Tensor&) { std::raise(SIGKILL); });
    }
    t.backward(loss);
    t.step();
    process.group().barrier();
  });
}

// Deaths in a step are tests/accelerator/shard_ranks_test.cpp's.
TEST(ShardFaults, ARankThatIsKilledIsNamedByTheOthers) {
  for (const char* where : {"forward", "reduce"}) {
    const auto results = testing::run_processes(3, "shard_with_a_killed_rank", {{"HASTEN_TEST_KILL_IN", where}});

    EXPECT_EQ(results[1].exit_code, 128 + SIGKILL);
    for (const int rank : {0, 2}) {
      EXPECT_THAT(results[static_cast<size_t>(rank)].output, AllOf(HasSubstr("CommError"), HasSubstr("rank 1")))
          << where;
    }
  }
}

// From here on the first write to a file at an offset, by any thread, ends the process.
void die_in_a_tile_write() {
  sock_filter program[] = {BPF_STMT(BPF_LD | BPF_W | BPF_ABS, offsetof(seccomp_data, nr)),
                           BPF_JUMP(BPF_JMP | BPF_JEQ | BPF_K, SYS_pwrite64, 0, 1),
                           BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_KILL_PROCESS),
                           BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_ALLOW)};
  const sock_fprog filter{std::size(program), program};
  prctl(PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0);
  if (syscall(SYS_seccomp, SECCOMP_SET_MODE_FILTER, SECCOMP_FILTER_FLAG_TSYNC, &filter) != 0) std::raise(SIGABRT);
}

HASTEN_PROCESS_CASE(shard_with_a_death_in_a_tile_write) {
  const std::string folder = Environment::current().text("HASTEN_TEST_FOLDER").value_or("");
  return say_error([&](process::Process& process) {
    auto options = small_units(ShardStage::kParameters);
    options.optimizer_offload = {.device = OffloadDevice::kFile, .path = folder, .tile_numel = 64};
    Trained<testing::Mlp> t(process.group(), options, adamw);
    train(t, "mlp", 2);
    t.backward(t.loss("mlp", 2));
    if (process.rank() == 1) die_in_a_tile_write();
    t.step();
    process.group().barrier();
  });
}

class ShardFaultsInFolder : public testing::InFolder {};

TEST_F(ShardFaultsInFolder, ADeathInATileWriteLeavesNothingAndIsNamed) {
  const auto results =
      testing::run_processes(3, "shard_with_a_death_in_a_tile_write", {{"HASTEN_TEST_FOLDER", path("state")}});

  EXPECT_EQ(results[1].exit_code, 128 + SIGSYS) << results[1].output;
  for (const int rank : {0, 2}) {
    EXPECT_THAT(results[static_cast<size_t>(rank)].output, AllOf(HasSubstr("CommError"), HasSubstr("rank 1")));
  }
  EXPECT_TRUE(std::filesystem::is_empty(path("state")));
}

TEST(ShardFaults, ARankThatDoesNotStepIsNamedAfterTheTimeout) {
  std::promise<void> failed;
  const auto others_failed = failed.get_future().share();
  const auto words =
      run_ranks_collecting(2,
                           [&](auto& process) {
                             Trained<testing::Mlp> t(process.group(), small_units(ShardStage::kParameters), adamw);
                             train(t, "mlp", 1);
                             t.backward(t.loss("mlp", 1));
                             if (process.rank() == 1) return others_failed.wait();
                             const std::shared_ptr<void> tell(nullptr, [&](void*) { failed.set_value(); });
                             t.step();
                           },
                           {.timeout = std::chrono::seconds(2)});

  EXPECT_THAT(words[0], HasSubstr("rank 1"));
}

int64_t num_descriptors() {
  const std::filesystem::directory_iterator all("/proc/self/fd");
  return std::distance(begin(all), end(all));
}

TEST(ShardFaults, ManyModelsLeaveNoDescriptorBehind) {
  run_ranks(2, [](auto& process) {
    const auto cycle = [&](int number) {
      Trained<testing::Mlp> t(process.group(), small_units(kStages[static_cast<size_t>(number) % 3]), adamw);
      if (number % 5 == 0) train(t, "mlp", 1);
      process.group().barrier();
    };
    for (int i = 0; i < 3; ++i) cycle(i);
    process.group().barrier();
    const auto before = num_descriptors();
    process.group().barrier();
    for (int i = 0; i < 60; ++i) cycle(i);
    process.group().barrier();

    EXPECT_LT(num_descriptors(), before + 10);  // a leak of one a model would be 60
    process.group().barrier();
  });
}

}  // namespace
}  // namespace hasten::parallel
