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

// From here on a system call has another end, in all threads: SECCOMP_RET_ERRNO | EPERM as where a container's profile
// does not know it, or SECCOMP_RET_KILL_PROCESS.
void filter_call(uint32_t number, uint32_t end) {
  sock_filter program[] = {BPF_STMT(BPF_LD | BPF_W | BPF_ABS, offsetof(seccomp_data, nr)),
                           BPF_JUMP(BPF_JMP | BPF_JEQ | BPF_K, number, 0, 1), BPF_STMT(BPF_RET | BPF_K, end),
                           BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_ALLOW)};
  const sock_fprog filter{std::size(program), program};
  prctl(PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0);
  if (syscall(SYS_seccomp, SECCOMP_SET_MODE_FILTER, SECCOMP_FILTER_FLAG_TSYNC, &filter) != 0) std::raise(SIGABRT);
}

HASTEN_PROCESS_CASE(shard_without_memory_files) {
  return say_error([](process::Process& process) {
    process.group().barrier();
    filter_call(SYS_memfd_create, SECCOMP_RET_ERRNO | EPERM);
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

HASTEN_PROCESS_CASE(shard_with_a_death_in_a_tile_write) {
  const std::string folder = Environment::current().text("HASTEN_TEST_FOLDER").value_or("");
  return say_error([&](process::Process& process) {
    auto options = small_units(ShardStage::kParameters);
    options.optimizer_offload = {.device = OffloadDevice::kFile, .path = folder, .tile_numel = 64};
    Trained<testing::Mlp> t(process.group(), options, adamw);
    train(t, "mlp", 2);
    t.backward(t.loss("mlp", 2));
    if (process.rank() == 1) filter_call(SYS_pwrite64, SECCOMP_RET_KILL_PROCESS);
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

HASTEN_PROCESS_CASE(shard_without_io_uring) {
  const std::string folder = Environment::current().text("HASTEN_TEST_FOLDER").value_or("");
  return say_error([&](process::Process& process) {
    filter_call(SYS_io_uring_setup, SECCOMP_RET_KILL_PROCESS);
    auto options = small_units(ShardStage::kParameters);
    options.optimizer_offload = {.device = OffloadDevice::kFile, .path = folder, .tile_numel = 64};
    Trained<testing::Mlp> t(process.group(), options, adamw);
    train(t, "mlp", 3);
    process.group().barrier();
  });
}

TEST_F(ShardFaultsInFolder, StateInFilesNeedsNoIoUring) {
  for (const auto& result :
       testing::run_processes(2, "shard_without_io_uring", {{"HASTEN_TEST_FOLDER", path("state")}})) {
    EXPECT_EQ(result.exit_code, 0);
    EXPECT_THAT(result.output, HasSubstr("no error"));
  }
}

TEST(ShardFaults, AFolderThatTakesNoFileOfParametersIsNamedOnAllRanks) {
  for (const char* folder : {"/dev/full", "/dev/null/x"}) {
    const auto words = run_ranks_collecting(2, [&](auto& process) {
      auto options = small_units(ShardStage::kParameters);
      options.parameter_offload = {.device = OffloadDevice::kFile, .path = folder};
      const Trained<testing::Mlp> t(process.group(), options, adamw);
    });
    for (const auto& each : words) EXPECT_THAT(each, HasSubstr(folder));
  }
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
