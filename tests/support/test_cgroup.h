// A cgroup of a test's own, with a limit, for processes that the test puts into it. Of both versions of cgroups.
#pragma once

#include <sys/types.h>
#include <unistd.h>

#include <filesystem>
#include <fstream>
#include <string>
#include <vector>

#include "hasten/core/text.h"

namespace hasten::testing {

class TestCgroup {
 public:
  enum class Limit {
    kHundredthOfACore,
    kMemory,  ///< 16 MB (memory.high)
  };

  /// Makes it where this machine lets a test do so; ask is_there().
  explicit TestCgroup(Limit limit) {
    const std::string name = text("hasten_test_", getpid());
    const bool is_memory = limit == Limit::kMemory;
    const std::string controller = is_memory ? "memory" : "cpu";
    for (const std::string& root : {std::string("/sys/fs/cgroup"), std::string("/sys/fs/cgroup/unified")}) {
      if (words_of(root + "/cgroup.subtree_control").find(controller) == std::string::npos) continue;
      if (make(text(root, '/', name), is_memory ? "memory.high" : "cpu.max", is_memory ? "16777216" : "1000 100000")) {
        return;
      }
    }
    // Version 1 has no limit of memory that slows a process down.
    if (!is_memory) make("/sys/fs/cgroup/cpu/" + name, "cpu.cfs_quota_us", "1000");
  }
  /// Its processes have ended, or are about to.
  ~TestCgroup() {
    for (int i = 0; i < 1000 && is_there() && rmdir(folder_.c_str()) != 0; ++i) usleep(10'000);
  }
  TestCgroup(const TestCgroup&) = delete;
  TestCgroup& operator=(const TestCgroup&) = delete;

  bool is_there() const { return !folder_.empty(); }
  /// Returns false if the kernel refuses it.
  bool take(pid_t process) const { return write(folder_ + "/cgroup.procs", text(process)); }

 private:
  static bool write(const std::string& path, const std::string& words) {
    std::ofstream file(path);
    file << words << std::flush;
    return file.good();
  }
  static std::string words_of(const std::string& path) {
    std::ifstream file(path);
    return {std::istreambuf_iterator<char>(file), {}};
  }
  bool make(const std::string& folder, const std::string& file, const std::string& value) {
    std::error_code error;
    if (!std::filesystem::create_directory(folder, error)) return false;
    if (write(text(folder, '/', file), value)) {
      folder_ = folder;
    } else {
      rmdir(folder.c_str());
    }
    return is_there();
  }

  std::string folder_;
};

}  // namespace hasten::testing
