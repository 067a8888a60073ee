// Broken files, full disks, failing reads, killed writers, threads and forks: errors that say so, and right values
// elsewhere.
#include <gtest/gtest.h>
#include <linux/filter.h>
#include <linux/seccomp.h>
#include <sys/prctl.h>
#include <sys/resource.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <torch/torch.h>
#include <unistd.h>

#include <atomic>
#include <csignal>
#include <cstddef>
#include <filesystem>
#include <fstream>
#include <thread>

#include "hasten/core/error.h"
#include "hasten/files/folders/offload_folder.h"
#include "hasten/offload/hooks/hook_site.h"
#include "offload/stack_net.h"
#include "support/sanitizers.h"

namespace hasten::offload {
namespace {

namespace fs = std::filesystem;

class OffloadFaults : public StackInFile {
 protected:
  // Whether nothing of the net was loaded.
  static bool is_untouched(Stack& net) { return empty_tensors(*net).size() == net->parameters().size(); }
  std::string words_of_loading(Stack& net, const std::string& from) const {
    return testing::words_of<DataError>([&] { load_checkpoint_in_model(*net, path(from)); });
  }
};

TEST_F(OffloadFaults, ATruncatedFileIsRefusedBeforeAnyTensorChanges) {
  auto net = empty_weights([] { return Stack(); });
  for (const uint64_t bytes : {uint64_t{0}, uint64_t{5}, uint64_t{300}, fs::file_size(path("model.safetensors")) - 1}) {
    fs::copy_file(path("model.safetensors"), path("cut.safetensors"), fs::copy_options::overwrite_existing);
    fs::resize_file(path("cut.safetensors"), bytes);

    const auto words = words_of_loading(net, "cut.safetensors");

    EXPECT_NE(words.find("cut.safetensors"), std::string::npos) << bytes << ": " << words;
    EXPECT_TRUE(is_untouched(net)) << bytes;
  }
}

TEST_F(OffloadFaults, AMissingShardIsRefusedBeforeAnyTensorChanges) {
  fs::create_directories(path("shards"));
  fs::copy_file(path("model.safetensors"), path("shards/one.safetensors"));
  std::ofstream(path("shards/model.safetensors.index.json"))
      << R"({"weight_map": {"layers.0.weight": "one.safetensors", "layers.1.weight": "two.safetensors"}})";
  auto net = empty_weights([] { return Stack(); });

  EXPECT_NE(words_of_loading(net, "shards").find("two.safetensors"), std::string::npos);
  EXPECT_TRUE(is_untouched(net));
}

TEST_F(OffloadFaults, AnotherKindOfNumbersIsRefusedBeforeAnyTensorChanges) {
  Stack integers;
  {
    const torch::NoGradGuard no_grad;
    auto& weight = integers->layers[3]->as<torch::nn::Linear>()->weight;
    set_tensor(weight, torch::zeros({192, 192}, torch::kLong));
  }
  save_weights(*integers, path("integers.safetensors"));
  auto net = empty_weights([] { return Stack(); });

  const auto words = words_of_loading(net, "integers.safetensors");

  EXPECT_NE(words.find("'layers.3.weight' is int64 in the file and float32 in the module"), std::string::npos) << words;
  EXPECT_TRUE(is_untouched(net));
}

TEST_F(OffloadFaults, AFileCutWhileStreamedIsAnErrorAtTheOperator) {
  const torch::NoGradGuard no_grad;
  const auto model = load(limited());
  EXPECT_TRUE(testing::same_values(model->forward(x_), wanted_));
  fs::resize_file(path("model.safetensors"), fs::file_size(path("model.safetensors")) - 100);

  // Not by the handle: the read of a unit compares the file.
  EXPECT_NE(testing::words_of<DataError>([&] { model->forward(x_); }).find("was written to while the model used it"),
            std::string::npos);
}

TEST_F(OffloadFaults, AFileReplacedByRenameKeepsItsOldValuesWhileStreamed) {
  const torch::NoGradGuard no_grad;
  const auto model = load(limited());
  save_weights(*Stack(), path("new"));
  fs::rename(path("new"), path("model.safetensors"));

  for (int pass = 0; pass < 3; ++pass) EXPECT_TRUE(testing::same_values(model->forward(x_), wanted_));
  EXPECT_GT(model.stream_counts().drops, 0);
}

TEST_F(OffloadFaults, AFullDiskIsAnErrorAndTheFolderCountsAsEmpty) {
  rlimit before{};
  getrlimit(RLIMIT_FSIZE, &before);
  const auto old_handler = std::signal(SIGXFSZ, SIG_IGN);
  rlimit small = before;
  small.rlim_cur = 100'000;  // below the 147 KB of a weight
  setrlimit(RLIMIT_FSIZE, &small);
  const auto words = testing::words_of<DataError>([&] { disk_offload(net_, path("folder")); });
  setrlimit(RLIMIT_FSIZE, &before);
  std::signal(SIGXFSZ, old_handler);

  EXPECT_NE(words.find("layers.0.weight"), std::string::npos) << words;
  EXPECT_FALSE(files::is_offload_folder(path("folder")));
  const torch::NoGradGuard no_grad;
  EXPECT_TRUE(testing::same_values(disk_offload(net_, path("folder"))(x_), wanted_))
      << "the same folder works once there is space";
}

TEST_F(OffloadFaults, AWriterThatIsKilledLeavesAFolderThatCountsAsEmpty) {
  const std::vector<float> values(1 << 16, 1.0F);
  const pid_t writer = fork();
  if (writer == 0) {
    // More than the parent lets it write; the index would come last.
    std::vector<files::TensorInfo> infos;
    for (int i = 0; i < 100'000; ++i) {
      infos.push_back({"layers." + std::to_string(i), files::Dtype::kFloat32, {1 << 16}});
      files::write_offload_weight(path("folder"), infos.back(), values.data());
    }
    files::merge_offload_index(path("folder"), infos);
    _exit(0);
  }
  while (!fs::exists(path("folder/layers.3.dat"))) std::this_thread::yield();
  kill(writer, SIGKILL);
  int status = 0;
  waitpid(writer, &status, 0);

  EXPECT_TRUE(WIFSIGNALED(status));
  EXPECT_FALSE(files::is_offload_folder(path("folder")));
  const torch::NoGradGuard no_grad;
  EXPECT_TRUE(testing::same_values(disk_offload(net_, path("folder"))(x_), wanted_));
}

TEST_F(OffloadFaults, AnExceptionInForwardLeavesTheNextPassRight) {
  const torch::NoGradGuard no_grad;
  const auto model = load(limited());
  EXPECT_TRUE(testing::same_values(model(x_), wanted_));
  {
    const auto failing = on_use(*model->layers[3], [] { throw std::runtime_error("a fault in the middle"); });
    EXPECT_THROW(model(x_), std::runtime_error);
  }

  for (int pass = 0; pass < 2; ++pass) EXPECT_TRUE(testing::same_values(model(x_), wanted_));
}

TEST_F(OffloadFaults, TwoThreadsRunAStreamedModel) {
  const auto model = load(limited());
  std::vector<std::thread> threads;
  std::atomic<int> right = 0;
  for (int i = 0; i < 2; ++i) {
    threads.emplace_back([&] {
      const torch::NoGradGuard no_grad;
      for (int pass = 0; pass < 10; ++pass) right += testing::same_values(model->forward(x_), wanted_) ? 1 : 0;
    });
  }
  for (auto& thread : threads) thread.join();

  EXPECT_EQ(right, 20);
}

// A process of its own: it forks, fails reads by a system call filter, or ends by a signal.
class OffloadFaultsDeathTest : public OffloadFaults {
 protected:
  OffloadFaultsDeathTest() { GTEST_FLAG_SET(death_test_style, "threadsafe"); }

  // Ends this process, without the fixture's destructor.
  [[noreturn]] void end(bool good) const {
    fs::remove_all(folder_);
    _exit(good ? 0 : 1);
  }
};

TEST_F(OffloadFaultsDeathTest, AForkedChildRunsAStreamedModel) {
  const auto run = [&] {
    torch::set_num_threads(1);
    const torch::NoGradGuard no_grad;
    const auto model = load(limited());
    const bool before = model(x_).equal(wanted_);
    const pid_t child = fork();
    if (child == 0) _exit(model(x_).equal(wanted_) && model(x_).equal(wanted_) ? 7 : 1);
    int status = 0;
    waitpid(child, &status, 0);
    end(before && WIFEXITED(status) && WEXITSTATUS(status) == 7 && model(x_).equal(wanted_));
  };
  EXPECT_EXIT(run(), ::testing::ExitedWithCode(0), "");
}

// All later preads of this thread, and of threads that it starts, fail with EIO.
void fail_reads() {
  sock_filter program[] = {BPF_STMT(BPF_LD | BPF_W | BPF_ABS, offsetof(seccomp_data, nr)),
                           BPF_JUMP(BPF_JMP | BPF_JEQ | BPF_K, __NR_pread64, 0, 1),
                           BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_ERRNO | EIO),
                           BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_ALLOW)};
  const sock_fprog filter{4, program};
  prctl(PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0);
  if (prctl(PR_SET_SECCOMP, SECCOMP_MODE_FILTER, &filter) != 0) std::perror("no filter");
}

TEST_F(OffloadFaultsDeathTest, AReadErrorOfTheDiskIsADataErrorAtTheOperator) {
  const auto run = [&] {
    torch::set_num_threads(1);
    const torch::NoGradGuard no_grad;
    auto options = limited();
    options.page_cache = PageCache::kDrop;  // so that the units are read anew
    const auto model = load(options);
    fail_reads();
    const auto words = testing::words_of<DataError>([&] { model->forward(x_); });
    std::fprintf(stderr, "%s\n", words.c_str());
    end(true);
  };
  EXPECT_EXIT(run(), ::testing::ExitedWithCode(0), "cannot read .*model.safetensors at .*Input/output error");
}

TEST_F(OffloadFaultsDeathTest, APointerThatWritesToAStreamedWeightEndsWithItsName) {
  const auto run = [&] {
    const torch::NoGradGuard no_grad;
    const auto model = load(limited());
    fs::remove_all(folder_);
    const_cast<float*>(model->layers[4]->as<torch::nn::Linear>()->weight.const_data_ptr<float>())[5000] = 1;
  };
  EXPECT_EXIT(run(), testing::ended_by(SIGSEGV), "layers.4.weight");
}

TEST_F(OffloadFaultsDeathTest, AFileCutWhileAnOperatorUsesItEndsTheProcessBySigbus) {
  const auto run = [&] {
    torch::set_num_threads(1);
    const torch::NoGradGuard no_grad;
    const auto model = load({.device_map = "auto"});
    fs::resize_file(path("model.safetensors"), 5000);
    fs::remove_all(folder_);
    model->forward(x_);  // not by the handle, which looks first
  };
  EXPECT_EXIT(run(), testing::ended_by(SIGBUS), "");
}

}  // namespace
}  // namespace hasten::offload
