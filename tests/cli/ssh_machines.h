// Machines (machines.h) with a real sshd each, which lets in one key made for the test.
#pragma once

#include <memory>

#include "cli/daemon.h"
#include "cli/machines.h"

namespace hasten::test {

class SshMachines : public Machines {
 protected:
  void make_ssh_machines(int num_machines) {
    for (const char* tool : {"/usr/sbin/sshd", "/usr/bin/ssh", "/usr/bin/ssh-keygen"})
      ASSERT_EQ(access(tool, X_OK), 0) << tool << " is missing: install openssh-server";
    if (geteuid() != 0) GTEST_SKIP() << "sshd cannot serve in a namespace unless this is root";
    ASSERT_NO_FATAL_FAILURE(make_machines(num_machines));
    if (IsSkipped()) return;
    std::filesystem::create_directories("/run/sshd");  // sshd wants it, as root; its service would make it
    for (const char* key : {"host_key", "user_key"}) {
      const auto made = run_command({"/usr/bin/ssh-keygen", "-q", "-t", "ed25519", "-N", "", "-f", folder() / key});
      ASSERT_EQ(made.exit_code, 0) << made.err;
    }
    for (int i = 0; i < num_machines; ++i) ASSERT_NO_FATAL_FAILURE(start_sshd(i));
    std::ofstream(ssh_config()) << "Host *\n  User root\n  IdentityFile " << (folder() / "user_key").string()
                                << "\n  IdentitiesOnly yes\n  UserKnownHostsFile /dev/null\n"
                                   "  GlobalKnownHostsFile /dev/null\n  StrictHostKeyChecking no\n"
                                   "  LogLevel ERROR\n  ControlPath none\n";
  }

  std::filesystem::path ssh_config() const { return folder() / "ssh_config"; }

  /// A hostfile of the machines first to last, each with so many slots.
  std::string hostfile(int first, int last, int slots) const {
    std::ofstream file(folder() / "hosts");
    for (int i = first; i <= last; ++i) file << address(i) << " slots=" << slots << "\n";
    return folder() / "hosts";
  }

  /// Blocks until nobody but sshd is left on machine i.
  void wait_until_idle(int i) const { wait_until_only(i, {"sshd"}); }

 private:
  void start_sshd(int i) {
    const std::string file = folder() / text("sshd_config_", i);
    std::ofstream(file) << "ListenAddress " << address(i) << "\nHostKey " << (folder() / "host_key").string()
                        << "\nAuthorizedKeysFile " << (folder() / "user_key.pub").string()
                        << "\nPidFile none\nStrictModes no\nUsePAM no\nPasswordAuthentication no\n"
                           "PermitRootLogin yes\nUseDNS no\nMaxStartups 100\nSetEnv TMPDIR="
                        // Without the user's ~/.bashrc, which may take locks that a killed session leaves behind.
                        << temporary().string() << " HOME=" << temporary().string() << "\n";
    const std::string log = folder() / text("sshd_log_", i);
    daemons_.push_back(std::make_unique<Daemon>(on_machine(i, {"/usr/sbin/sshd", "-D", "-e", "-f", file}), log));
    // Up once it answers; a refused connection fails at once.
    const auto answers = [&] {
      return run_command(
                 on_machine(i, {"/bin/bash", "-c", text("exec 3<>/dev/tcp/", address(i), "/22; read -u 3 banner")}))
                 .exit_code == 0;
    };
    for (int attempt = 0; !answers(); ++attempt) ASSERT_LT(attempt, 1000) << content_of(log);
  }

  std::vector<std::unique_ptr<Daemon>> daemons_;
};

}  // namespace hasten::test
