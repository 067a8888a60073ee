// `hasten test` with its real self-test program.
#include <arpa/inet.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <sys/socket.h>
#include <unistd.h>

#include <filesystem>
#include <fstream>

#include "cli/launch_folder.h"

namespace hasten {
namespace {

namespace fs = std::filesystem;
using test::CommandResult;
using ::testing::HasSubstr;

class SelfTest : public test::LaunchFolder {};

constexpr const char* kResults =
    "ok      collectives: sum, gather and broadcast give what they should\n"
    "ok      sharding: every sample comes once, from any rank\n"
    "ok      data parallelism: ranks train as one process does, and end alike\n"
    "ok      random numbers: one seed for all, or one for each rank\n"
    "4 of 4 hold\n";

TEST_F(SelfTest, NamesWhatHoldsOnTheProcessesAskedFor) {
  const CommandResult one = test::run_command({HASTEN_COMMAND, "test", "--cpu"}, environment());
  const CommandResult three = test::run_command({HASTEN_COMMAND, "test", "--cpu", "-n", "3"}, environment());

  EXPECT_EQ(one.out, std::string("hasten test on 1 process, cpu\n") + kResults) << one.err;
  EXPECT_EQ(one.exit_code, 0);
  EXPECT_EQ(three.out, std::string("hasten test on 3 processes, cpu\n") + kResults) << three.err;
  EXPECT_EQ(three.exit_code, 0);
}

// Takes questions for names and never answers.
class SilentNameServer {
 public:
  static constexpr const char* kAddress = "127.0.0.9";

  SilentNameServer() {
    sockaddr_in address{};
    address.sin_family = AF_INET;
    address.sin_port = htons(53);
    inet_pton(AF_INET, kAddress, &address.sin_addr);
    if (bind(fd_, reinterpret_cast<sockaddr*>(&address), sizeof address) != 0) return;
    is_there_ = true;
  }
  ~SilentNameServer() { close(fd_); }
  bool is_there() const { return is_there_; }

 private:
  int fd_ = socket(AF_INET, SOCK_DGRAM | SOCK_CLOEXEC, 0);
  bool is_there_ = false;
};

TEST_F(SelfTest, SaysWhyAStartIsSlowWhereNoNameServerAnswers) {
  const SilentNameServer server;
  if (!server.is_there() || !disks_can_be_made()) GTEST_SKIP() << "needs port 53 and user namespaces";
  const fs::path settings = folder() / "resolv.conf";
  std::ofstream(settings) << "nameserver " << SilentNameServer::kAddress << "\noptions timeout:1 attempts:3\n";

  const CommandResult result = test::run_command(
      {"/usr/bin/unshare", "-rm", "sh", "-c", "mount --bind $DIR/resolv.conf /etc/resolv.conf && exec \"$@\"", "sh",
       HASTEN_COMMAND, "test", "--cpu", "-n", "2"},
      environment());

  EXPECT_EQ(result.exit_code, 0) << result.err;
  EXPECT_THAT(result.err, HasSubstr("s, though somebody listened there"));
  EXPECT_THAT(result.err, HasSubstr("or name the machines in /etc/hosts (127.0.0.1 and ::ffff:127.0.0.1)"));
}

TEST_F(SelfTest, TakesTheNumberOfProcessesFromTheConfigurationFile) {
  const std::string file = folder() / "two.yaml";
  std::ofstream(file) << "distributed_type: MULTI_CPU\nnum_processes: 2\nuse_cpu: true\n";

  const CommandResult result = test::run_command({HASTEN_COMMAND, "test", "--config_file", file}, environment());

  EXPECT_EQ(result.out, std::string("hasten test on 2 processes, cpu\n") + kResults) << result.err;
}

TEST_F(SelfTest, ChecksInFloat32AndThenInTheConfiguredPrecision) {
  const std::string file = folder() / "bf16.yaml";
  std::ofstream(file) << "distributed_type: MULTI_CPU\nnum_processes: 2\nuse_cpu: true\nmixed_precision: bf16\n";

  const CommandResult result = test::run_command({HASTEN_COMMAND, "test", "--config_file", file}, environment());

  EXPECT_EQ(result.exit_code, 0) << result.out << result.err;
  EXPECT_THAT(result.out, HasSubstr("ok      data parallelism: ranks train as one process does, and end alike\n"));
  EXPECT_THAT(result.out, HasSubstr("ok      data parallelism in bf16: the same, as far as rounding allows\n"
                                    "5 of 5 hold\n"));
}

TEST_F(SelfTest, SaysWhatIsMissingWhereTheProgramIsNotBesideTheCommand) {
  const std::string command = folder() / "hasten";
  std::filesystem::copy_file(HASTEN_COMMAND, command);

  const CommandResult result = test::run_command({command, "test"}, environment());

  EXPECT_EQ(result.exit_code, 2);
  EXPECT_EQ(result.err, "[test] '" + command +
                            "-self-test' does not exist. Install it, or build it: target "
                            "hasten_self_test.\n");
}

TEST_F(SelfTest, RefusesWordsThatAreNoOptions) {
  EXPECT_EQ(test::run_command({HASTEN_COMMAND, "test", "now"}, environment()).err,
            "[test] unexpected word 'now'. See hasten test --help.\n");
}

}  // namespace
}  // namespace hasten
