// run_processes: N real processes, each this test binary executed again with the name of a case.
//
// Never by fork: libtorch's threads do not survive one. A case is registered with HASTEN_PROCESS_CASE and
// runs in place of the tests when the binary finds HASTEN_TEST_CASE in its environment. A test may wait for
// lines and kill.
#pragma once

#include <sys/types.h>

#include <chrono>
#include <functional>
#include <map>
#include <memory>
#include <string>
#include <vector>

namespace hasten::testing {

struct ProcessResult {
  /// As a shell gives it: the exit code, 128 + signal for a killed process.
  int exit_code = 0;
  /// Standard output and error, as they came.
  std::string output;
};

/// Processes of one run with torchrun's environment (RANK, WORLD_SIZE, MASTER_ADDR, MASTER_PORT …).
class Processes {
 public:
  /// `environment` adds to, or with an empty value removes from, what torchrun would set.
  Processes(int world_size, const std::string& case_name, const std::map<std::string, std::string>& environment = {});
  /// Kills what still runs.
  ~Processes();
  Processes(const Processes&) = delete;
  Processes& operator=(const Processes&) = delete;

  pid_t pid(int rank) const;
  void signal(int rank, int number) const;
  /// Returns when the rank's output holds `text`; false if it ended or the time passed before.
  bool wait_for_output(int rank, const std::string& text, std::chrono::milliseconds timeout = std::chrono::seconds(60));
  /// Waits for the end of all; those that outlast the timeout are killed and have exit code -1.
  std::vector<ProcessResult> wait(std::chrono::milliseconds timeout = std::chrono::seconds(60));

 private:
  struct Impl;
  std::unique_ptr<Impl> impl_;
};

std::vector<ProcessResult> run_processes(int world_size, const std::string& case_name,
                                         const std::map<std::string, std::string>& environment = {});

/// A port of the loopback address that is free, and that no other test program gets meanwhile.
int free_port();

bool register_process_case(const std::string& name, std::function<int()> body);

}  // namespace hasten::testing

/// HASTEN_PROCESS_CASE(name) { …; return exit_code; }
#define HASTEN_PROCESS_CASE(name)                                                  \
  static int hasten_process_case_##name();                                         \
  [[maybe_unused]] static const bool hasten_process_case_registered_##name =       \
      ::hasten::testing::register_process_case(#name, hasten_process_case_##name); \
  static int hasten_process_case_##name()
