// Machines for tests: network namespaces with a host name each, joined by a bridge. Machine i is 10.77.0.(i +
// 1) on its interface eth0, and called node<i>. Nothing has a name on the real machine: the namespaces live
// as long as this program holds them open, and vanish with it, however it ends.
#pragma once

#include <fcntl.h>
#include <poll.h>
#include <sched.h>
#include <sys/prctl.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cerrno>
#include <csignal>
#include <cstring>
#include <fstream>
#include <set>

#include "cli/launch_folder.h"
#include "hasten/core/text.h"

namespace hasten::test {

class Machines : public LaunchFolder {
 protected:
  ~Machines() override {
    for (const Namespaces& machine : machines_) {
      close(machine.net);
      close(machine.host_name);
    }
    if (user_ >= 0) close(user_);
  }

  /// Makes them. Skips the test where the kernel allows no namespaces; fails where the tools are missing.
  void make_machines(int num_machines) {
    const std::string tool = find_tool({"/usr/sbin/ip", "/sbin/ip", "/usr/bin/ip", "/bin/ip"});
    ASSERT_NE(tool, "") << "these tests need ip: install the package iproute2";
    if (const int reason = make_namespaces(num_machines + 1)) {  // the first is the switch
      GTEST_SKIP() << "this machine allows no network namespaces: " << std::strerror(reason);
    }
    std::string wiring = "set -e; ip link add br0 type bridge; ip link set br0 up;";
    for (int i = 0; i < num_machines; ++i) {
      wiring += text("ip link add port", i, " type veth peer name eth0 netns ", path(machine(i).net),
                     "; ip link set port", i, " master br0 up;");
    }
    const CommandResult wired = run_command(in_namespaces(machines_[0], shell(wiring)));
    if (wired.err.find("Unknown device type") != std::string::npos ||
        wired.err.find("not supported") != std::string::npos) {
      GTEST_SKIP() << "this kernel has no veth or no bridge: " << wired.err;
    }
    ASSERT_EQ(wired.exit_code, 0) << wired.err;
    for (int i = 0; i < num_machines; ++i) {
      const CommandResult up = run_command(on_machine(
          i, shell(text("ip addr add ", address(i), "/24 dev eth0; ip link set eth0 up; ip link set lo up"))));
      ASSERT_EQ(up.exit_code, 0) << up.err;
    }
    for (int i = 0; i < num_machines; ++i) wait_for_cable(i);
  }

  static std::string address(int machine) { return text("10.77.0.", machine + 1); }
  static std::vector<std::string> shell(const std::string& script) { return {"/bin/sh", "-c", script}; }

  /// `words` on machine i.
  std::vector<std::string> on_machine(int i, const std::vector<std::string>& words) const {
    return in_namespaces(machine(i), words);
  }

  /// Cuts machine i off from all others, as a pulled cable does; they see no packet of it any more.
  void cut_cable(int i) const { ASSERT_EQ(run_beside(shell(text("ip link set port", i, " down"))), 0); }
  void mend_cable(int i) const {
    ASSERT_EQ(run_beside(shell(text("ip link set port", i, " up"))), 0);
    wait_for_cable(i);
    // Who has looked for a machine in vain holds it to be unreachable for some time ("No route to host").
    for (size_t one = 1; one < machines_.size(); ++one)
      ASSERT_EQ(run_beside(shell("ip neigh flush all"), machines_[one]), 0);
  }

  /// Kills all processes on machine i at once, but those named in `daemons`.
  void kill_all_on(int i, const std::set<std::string>& daemons) const {
    const auto all = processes_in(machine(i).net, daemons);
    for (const int signal : {SIGSTOP, SIGKILL}) {  // so that none lives to see another's end
      for (const pid_t process : all) kill(process, signal);
    }
  }

  /// Blocks until no process is left on machine i but those named in `daemons`.
  void wait_until_only(int i, const std::set<std::string>& daemons) const {
    for (auto left = processes_in(machine(i).net, daemons); !left.empty();
         left = processes_in(machine(i).net, daemons)) {
      const int handle = static_cast<int>(syscall(SYS_pidfd_open, left.front(), 0));
      pollfd end = {handle, POLLIN, 0};
      if (handle >= 0) poll(&end, 1, -1);
      close(handle);
    }
  }

 private:
  struct Namespaces {
    int net = -1;
    int host_name = -1;
  };

  // The processes of a network namespace. Those that have ended, and that nobody has waited for, are in none.
  static std::vector<pid_t> processes_in(int net, const std::set<std::string>& daemons) {
    struct stat wanted = {}, its = {};
    fstat(net, &wanted);
    std::vector<pid_t> all;
    for (const auto& entry : std::filesystem::directory_iterator("/proc")) {
      const std::string name = entry.path().filename();
      if (name.find_first_not_of("0123456789") != std::string::npos || std::stoi(name) == getpid()) continue;
      if (stat((entry.path() / "ns/net").c_str(), &its) != 0 || its.st_ino != wanted.st_ino) continue;
      // One that ends meanwhile has no name.
      std::ifstream file(entry.path() / "comm");
      std::string command;
      std::getline(file, command);
      if (daemons.count(command) == 0) all.push_back(std::stoi(name));
    }
    return all;
  }

  // On the switch, while a Command may be running: the end of another Command would wait for its end.
  int run_beside(const std::vector<std::string>& words) const { return run_beside(words, machines_[0]); }
  int run_beside(const std::vector<std::string>& words, const Namespaces& there) const {
    auto all = in_namespaces(there, words);
    std::vector<char*> arguments;
    for (std::string& word : all) arguments.push_back(word.data());
    arguments.push_back(nullptr);
    const pid_t child = fork();
    if (child == 0) {
      execv(arguments[0], arguments.data());
      _exit(127);
    }
    int status = -1;
    waitpid(child, &status, 0);
    return status;
  }

  // A port of the bridge drops what comes before it is ready, and TCP tries again only after a second.
  void wait_for_cable(int i) const {
    run_beside(shell(text("until ip -d link show dev port", i, " | grep -q 'state forwarding'; do sleep 0.01; done")));
  }

  const Namespaces& machine(int i) const { return machines_[static_cast<size_t>(i) + 1]; }
  // Who is root in a user namespace only may not look into this process, and inherits the handles instead.
  std::string path(int handle) const {
    return text("/proc/", user_ >= 0 ? "self" : std::to_string(getpid()), "/fd/", handle);
  }
  static std::string find_tool(const std::vector<std::string>& places) {
    for (const std::string& place : places) {
      if (access(place.c_str(), X_OK) == 0) return place;
    }
    return "";
  }

  std::vector<std::string> in_namespaces(const Namespaces& one, const std::vector<std::string>& words) const {
    std::vector<std::string> all = {"/usr/bin/nsenter"};
    if (user_ >= 0) all.insert(all.end(), {"--preserve-credentials", "--user=" + path(user_)});
    all.insert(all.end(), {"--net=" + path(one.net), "--uts=" + path(one.host_name), "--"});
    all.insert(all.end(), words.begin(), words.end());
    return all;
  }

  static void write_file(const char* path, const std::string& content) {
    const int handle = open(path, O_WRONLY);
    [[maybe_unused]] const auto size = write(handle, content.data(), content.size());
    close(handle);
  }

  // What another user than root needs first: a namespace where it is root.
  static int become_root() {
    const uid_t user = geteuid();
    const gid_t group = getegid();
    if (unshare(CLONE_NEWUSER) != 0) return errno;
    write_file("/proc/self/setgroups", "deny");
    write_file("/proc/self/uid_map", text("0 ", user, " 1"));
    write_file("/proc/self/gid_map", text("0 ", group, " 1"));
    return 0;
  }

  // In a process of its own, which makes one after the other and waits for each to be opened. Returns 0 or
  // errno.
  int make_namespaces(int number) {
    int there[2], back[2];
    if (pipe2(there, O_CLOEXEC) != 0 || pipe2(back, O_CLOEXEC) != 0) return errno;
    const bool is_root = geteuid() == 0;
    const pid_t maker = fork();
    if (maker == 0) {
      prctl(PR_SET_PDEATHSIG, SIGKILL);
      int reason = is_root ? 0 : become_root();
      for (int i = 0; i < number; ++i) {
        if (reason == 0 && unshare(CLONE_NEWNET | CLONE_NEWUTS) != 0) reason = errno;
        const std::string name = text("node", i - 1);
        if (reason == 0 && sethostname(name.data(), name.size()) != 0) reason = errno;
        char opened = 0;
        if (write(there[1], &reason, sizeof reason) != sizeof reason || read(back[0], &opened, 1) != 1) break;
      }
      _exit(0);
    }
    int reason = 0;
    for (int i = 0; i < number && reason == 0; ++i) {
      if (read(there[0], &reason, sizeof reason) != sizeof reason) reason = EPIPE;
      if (reason != 0) break;
      const auto hold = [&](const char* kind) {
        return open(text("/proc/", maker, "/ns/", kind).c_str(), O_RDONLY | (is_root ? O_CLOEXEC : 0));
      };
      if (!is_root && user_ < 0) user_ = hold("user");
      machines_.push_back({hold("net"), hold("uts")});
      if (write(back[1], "x", 1) != 1) reason = EPIPE;
    }
    for (const int handle : {there[0], there[1], back[0], back[1]}) close(handle);
    waitpid(maker, nullptr, 0);
    return reason;
  }

  int user_ = -1;
  std::vector<Namespaces> machines_;
};

}  // namespace hasten::test
