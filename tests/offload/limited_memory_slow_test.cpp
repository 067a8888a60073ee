// A model of 1 GB runs within 600 MB: this process's memory and the model's part of the page cache, together.
//
// A control group charges both. The first test needs no control group: it samples the process's resident memory, and
// asks mincore which pages of the file the kernel holds. The second runs a process in a real one, where root may make
// it.
#include <fcntl.h>
#include <gtest/gtest.h>
#include <sys/mman.h>
#include <torch/torch.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <thread>
#include <utility>
#include <vector>

#include "hasten/files/safetensors/safetensors_header.h"
#include "hasten/offload/load/dispatch.h"
#include "support/folder.h"
#include "support/processes.h"

namespace hasten::offload {
namespace {

constexpr int64_t kWidth = 2048, kLayers = 60, kLimit = 600'000'000;

struct TallStackImpl : torch::nn::Module {
  TallStackImpl() {
    layers = register_module("layers", torch::nn::ModuleList());
    for (int64_t i = 0; i < kLayers; ++i)
      layers->push_back(torch::nn::Linear(torch::nn::LinearOptions(kWidth, kWidth).bias(false)));
  }
  at::Tensor forward(const at::Tensor& input) {
    at::Tensor x = input;
    for (const auto& layer : *layers) x = torch::relu(layer->as<torch::nn::Linear>()->forward(x));
    return x;
  }
  torch::nn::ModuleList layers{nullptr};
};
TORCH_MODULE(TallStack);

// The file's pages in the page cache, in bytes.
class CachedBytes {
 public:
  explicit CachedBytes(const std::string& path)
      : file_(open(path.c_str(), O_RDONLY | O_CLOEXEC)), size_(static_cast<size_t>(lseek(file_, 0, SEEK_END))) {
    data_ = mmap(nullptr, size_, PROT_READ, MAP_SHARED, file_, 0);
    pages_.resize(size_ / page_ + 1);
  }
  ~CachedBytes() {
    munmap(data_, size_);
    close(file_);
  }
  int64_t now() {
    if (mincore(data_, size_, pages_.data()) != 0) return -1;
    return static_cast<int64_t>(page_) *
           std::count_if(pages_.begin(), pages_.end(), [](unsigned char page) { return (page & 1) != 0; });
  }
  void drop() const {
    fdatasync(file_);
    posix_fadvise(file_, 0, 0, POSIX_FADV_DONTNEED);
  }

 private:
  int file_;
  size_t size_, page_ = static_cast<size_t>(sysconf(_SC_PAGESIZE));
  void* data_ = nullptr;
  std::vector<unsigned char> pages_;
};

int64_t status_bytes(const std::string& name) {
  std::ifstream status("/proc/self/status");
  for (std::string line; std::getline(status, line);) {
    if (line.starts_with(name + ":")) return std::stoll(line.substr(name.size() + 1)) * 1024;
  }
  return -1;
}

// The largest sum of anonymous memory, libraries as they were at the start, and cached pages of the model.
class Peak {
 public:
  explicit Peak(CachedBytes& cached)
      : base_(status_bytes("RssFile")), thread_([&] {
          while (!ends_) {
            peak_ = std::max(peak_.load(), status_bytes("RssAnon") + base_ + cached.now());
            std::this_thread::yield();
          }
        }) {}
  int64_t finish() {
    ends_ = true;
    thread_.join();
    return peak_;
  }

 private:
  int64_t base_;
  std::atomic<int64_t> peak_ = 0;
  std::atomic<bool> ends_ = false;
  std::thread thread_;
};

// A control group with a memory limit, of version 1 or 2; gone with its processes' end.
class ControlGroup {
 public:
  ControlGroup() {
    const std::string name = "hasten_test_" + std::to_string(getpid());
    for (const char* base : {"/sys/fs/cgroup/memory/", "/sys/fs/cgroup/"}) {
      std::error_code error;
      std::filesystem::create_directory(base + name, error);
      if (error) continue;
      folder_ = base + name;
      for (const char* limit : {"memory.limit_in_bytes", "memory.max"}) {
        if (std::filesystem::exists(file(limit))) limit_ = limit;
      }
      if (!limit_.empty()) return;
      std::filesystem::remove(folder_, error);  // not a control group, or one without the controller
      folder_.clear();
    }
  }
  ~ControlGroup() {
    if (!folder_.empty()) rmdir(folder_.c_str());
  }
  ControlGroup(const ControlGroup&) = delete;
  ControlGroup& operator=(const ControlGroup&) = delete;

  bool exists() const { return !folder_.empty(); }
  std::string file(const std::string& name) const { return folder_ + "/" + name; }
  std::string limit_file() const { return file(limit_); }
  int64_t peak() const {
    for (const char* name : {"memory.max_usage_in_bytes", "memory.peak"}) {
      std::ifstream stream(file(name));
      int64_t bytes = 0;
      if (stream >> bytes) return bytes;
    }
    return -1;
  }

 private:
  std::string folder_, limit_;
};

// The input of write_model_and_answer(), and what the model makes of it.
std::pair<at::Tensor, at::Tensor> answer_in(const std::string& folder) {
  std::pair<at::Tensor, at::Tensor> answer;
  torch::load(answer.first, folder + "/x.pt");
  torch::load(answer.second, folder + "/expected.pt");
  return answer;
}

// Enters the group and runs the model with the limits that hasten finds by itself.
HASTEN_PROCESS_CASE(offload_in_a_control_group) {
  const torch::NoGradGuard no_grad;
  torch::set_num_threads(1);
  const std::string folder = std::getenv("HASTEN_TEST_FOLDER");
  const auto [x, expected] = answer_in(folder);
  // What the process holds already is charged to the group that it comes from.
  std::ofstream(std::getenv("HASTEN_TEST_LIMIT_FILE")) << kLimit - status_bytes("RssAnon");
  std::ofstream(std::getenv("HASTEN_TEST_GROUP_FILE")) << getpid();
  const auto model =
      load_checkpoint_and_dispatch(empty_weights([] { return TallStack(); }), folder + "/model.safetensors",
                                   {.device_map = "auto", .no_split_module_classes = {"Linear"}});
  for (int pass = 0; pass < 3; ++pass) {
    if (!model(x).equal(expected)) return 3;
  }
  std::cout << "units read " << model.stream_counts().reads << std::endl;
  return model.stream_counts().reads > kLayers ? 0 : 4;
}

// One of several ranks of a host: prints what the model adds to its own memory.
HASTEN_PROCESS_CASE(offload_beside_other_ranks) {
  const torch::NoGradGuard no_grad;
  torch::set_num_threads(1);
  const std::string folder = std::getenv("HASTEN_TEST_FOLDER");
  const auto [x, expected] = answer_in(folder);
  torch::nn::functional::linear(x, torch::ones({kWidth, kWidth}));  // libtorch's own buffers
  const int64_t before = status_bytes("RssAnon");
  const auto model = load_checkpoint_and_dispatch(
      empty_weights([] { return TallStack(); }), folder + "/model.safetensors", {.device_map = DeviceMap{{"", "cpu"}}});
  for (int pass = 0; pass < 2; ++pass) {
    if (!model(x).equal(expected)) return 3;
  }
  std::cout << "private " << status_bytes("RssAnon") - before << std::endl;
  return 0;
}

class LimitedMemory : public testing::InFolder {
 protected:
  // Writes the model, an input and what the model makes of it, for processes to read.
  void write_model_and_answer() const {
    const torch::NoGradGuard no_grad;
    torch::set_num_threads(1);
    torch::manual_seed(0);
    const at::Tensor first = torch::randn({kWidth, kWidth}) * 0.03, x = torch::randn({1, kWidth});
    write_model(first);
    at::Tensor expected = x;
    for (int64_t i = 0; i < kLayers; ++i)
      expected = torch::relu(torch::nn::functional::linear(expected, layer(first, i).contiguous()));
    torch::save(x, path("x.pt"));
    torch::save(expected, path("expected.pt"));
  }

  // Layer i is a rotation of one random matrix.
  static at::Tensor layer(const at::Tensor& first, int64_t i) { return first.roll(i * 7, 0); }

  void write_model(const at::Tensor& first) const {
    std::vector<files::TensorInfo> infos;
    for (int64_t i = 0; i < kLayers; ++i)
      infos.push_back({"layers." + std::to_string(i) + ".weight", files::Dtype::kFloat32, {kWidth, kWidth}});
    const auto layout = files::lay_out_safetensors(infos, {});
    std::ofstream file(path("model.safetensors"), std::ios::binary);
    file << layout.head;
    for (int64_t i = 0; i < kLayers; ++i) {
      const at::Tensor values = layer(first, i).contiguous();
      file.seekp(static_cast<std::streamoff>(layout.offsets[static_cast<size_t>(i)]));
      file.write(static_cast<const char*>(values.const_data_ptr()), static_cast<std::streamsize>(values.nbytes()));
    }
  }
};

TEST_F(LimitedMemory, AModelOfOneGigabyteRunsWithin600Megabytes) {
  const torch::NoGradGuard no_grad;
  write_model_and_answer();
  const auto [x, expected] = answer_in(path(""));
  CachedBytes cached(path("model.safetensors"));
  cached.drop();
  ASSERT_LT(cached.now(), 50'000'000) << "the file system does not drop its cache";

  // What this process has already is taken off the limit, as max_memory() does in a control group.
  const int64_t weights = kLimit - status_bytes("VmRSS");
  Peak peak(cached);
  const auto model = load_checkpoint_and_dispatch(empty_weights([] { return TallStack(); }), path("model.safetensors"),
                                                  {.device_map = "auto",
                                                   .max_memory = {{"cpu", weights}},
                                                   .no_split_module_classes = {"Linear"},
                                                   .page_cache = PageCache::kDrop});
  for (int pass = 0; pass < 3; ++pass) EXPECT_TRUE(model(x).equal(expected)) << pass;
  const int64_t most = peak.finish();

  std::cout << "model 1.007 GB, limit 600 MB, peak " << most / 1000 << " KB; units read " << model.stream_counts().reads
            << std::endl;
  EXPECT_LE(most, kLimit + kLimit / 100) << "1 %: what the process itself has taken since";
  EXPECT_GT(most, kLimit / 2) << "the limit is to be used";
  EXPECT_GT(model.stream_counts().drops, 0);
  undispatch(model.module());
  EXPECT_TRUE(model->forward(x).equal(expected));
  EXPECT_GT(cached.now(), kLimit) << "without streaming the model takes more than the limit";
}

TEST_F(LimitedMemory, AModelOfOneGigabyteRunsInAControlGroupOf600Megabytes) {
  const ControlGroup group;
  if (!group.exists()) GTEST_SKIP() << "no control group can be made here";
  write_model_and_answer();
  CachedBytes(path("model.safetensors")).drop();  // so that its pages are charged to the group

  const auto results = testing::run_processes(1, "offload_in_a_control_group",
                                              {{"HASTEN_TEST_FOLDER", path("")},
                                               {"HASTEN_TEST_LIMIT_FILE", group.limit_file()},
                                               {"HASTEN_TEST_GROUP_FILE", group.file("cgroup.procs")}});
  EXPECT_EQ(results[0].exit_code, 0) << results[0].output;
  std::cout << results[0].output << "peak of the group " << group.peak() / 1000 << " KB" << std::endl;
  EXPECT_LE(group.peak(), kLimit);
  EXPECT_GT(group.peak(), kLimit / 2) << "the limit is to be used";
}

TEST_F(LimitedMemory, EightRanksOfAHostHaveOneMappingAndLessThanAHundredthOfItEach) {
  write_model_and_answer();
  const auto results = testing::run_processes(8, "offload_beside_other_ranks", {{"HASTEN_TEST_FOLDER", path("")}});
  for (const auto& rank : results) {
    EXPECT_EQ(rank.exit_code, 0) << rank.output;
    const size_t at = rank.output.find("private ");
    ASSERT_NE(at, std::string::npos) << rank.output;
    const int64_t bytes = std::stoll(rank.output.substr(at + 8));
    std::cout << "private " << bytes / 1000 << " KB of 1.007 GB" << std::endl;
    EXPECT_LE(bytes, kLayers * kWidth * kWidth * 4 / 100);
  }
}

}  // namespace
}  // namespace hasten::offload
