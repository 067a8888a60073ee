// The fixture of tests that run `hasten launch`: a folder of its own for each, which is also where the
// launcher puts its temporary files.
#pragma once

#include <gtest/gtest.h>
#include <sys/stat.h>

#include <filesystem>
#include <fstream>
#include <map>
#include <sstream>
#include <string>
#include <vector>

#include "cli/command.h"

namespace hasten::test {

inline std::vector<std::string> lines_of(const std::string& text) {
  std::vector<std::string> lines;
  std::istringstream stream(text);
  for (std::string line; std::getline(stream, line);) lines.push_back(line);
  return lines;
}

class LaunchFolder : public ::testing::Test {
 protected:
  LaunchFolder() {
    std::string name = ::testing::TempDir() + "hasten_cli_XXXXXX";
    folder_ = mkdtemp(name.data());
    std::filesystem::create_directory(temporary());
  }
  ~LaunchFolder() override { std::filesystem::remove_all(folder_); }

  std::filesystem::path folder() const { return folder_; }
  std::filesystem::path temporary() const { return folder_ / "tmp"; }

  /// `hasten launch` with these words after it.
  std::vector<std::string> words(std::vector<std::string> arguments) const {
    arguments.insert(arguments.begin(), {HASTEN_COMMAND, "launch"});
    return arguments;
  }
  /// The same, every worker running `script` with sh.
  std::vector<std::string> script_words(std::vector<std::string> options, const std::string& script) const {
    options.insert(options.end(), {"sh", "-c", script});
    return words(std::move(options));
  }
  std::map<std::string, std::string> environment() const {
    return {{"TMPDIR", temporary()}, {"DIR", folder_}, {"HF_HOME", folder_ / "hub"}};
  }
  CommandResult launch_script(std::vector<std::string> options, const std::string& script) const {
    return run_command(script_words(std::move(options), script), environment());
  }

  /// `words` with a disk of `size` (as mount has it) at folder()/disk, which nobody else sees.
  std::vector<std::string> on_a_disk_of(const std::string& size, const std::vector<std::string>& words) const {
    std::filesystem::create_directory(folder() / "disk");
    std::vector<std::string> all = {"/usr/bin/unshare",
                                    "-rm",
                                    "sh",
                                    "-c",
                                    "mount -t tmpfs -o size=" + size + " none $DIR/disk && exec \"$@\"",
                                    "sh"};
    all.insert(all.end(), words.begin(), words.end());
    return all;
  }
  /// Whether this machine lets a test have one: some containers, and a chroot, have no user namespaces.
  static bool disks_can_be_made() { return run_command({"/usr/bin/unshare", "-rm", "true"}).exit_code == 0; }

  /// A named pipe: opening it for reading waits for a writer and the other way round, which orders two
  /// workers.
  void make_meeting_point(const char* name) const { mkfifo((folder_ / name).c_str(), 0600); }

  static std::string content_of(const std::filesystem::path& path) {
    std::ifstream file(path, std::ios::binary);
    return {std::istreambuf_iterator<char>(file), {}};
  }

 private:
  std::filesystem::path folder_;
};

}  // namespace hasten::test
