// See facts.h.
#include "hasten/flight/facts.h"

#include <arpa/inet.h>
#include <linux/tcp.h>
#include <netinet/in.h>
#include <sys/socket.h>
#include <sys/syscall.h>
#include <sys/uio.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cstdlib>
#include <cstring>
#include <optional>
#include <sstream>

#include "flight/cgroup.h"
#include "flight/proc.h"
#include "hasten/core/text.h"
#include "hasten/flight/recorder.h"

namespace hasten::flight {
namespace {

using Arguments = std::array<uint64_t, 6>;

std::string address_text(const sockaddr_storage& address) {
  char host[INET6_ADDRSTRLEN] = {};
  if (address.ss_family == AF_INET) {
    const auto& four = reinterpret_cast<const sockaddr_in&>(address);
    inet_ntop(AF_INET, &four.sin_addr, host, sizeof host);
    return text(host, ':', ntohs(four.sin_port));
  }
  if (address.ss_family == AF_INET6) {
    const auto& six = reinterpret_cast<const sockaddr_in6&>(address);
    inet_ntop(AF_INET6, &six.sin6_addr, host, sizeof host);
    return text('[', host, "]:", ntohs(six.sin6_port));
  }
  return "";
}

std::string peer_of(int descriptor) {
  sockaddr_storage address = {};
  socklen_t size = sizeof address;
  if (getpeername(descriptor, reinterpret_cast<sockaddr*>(&address), &size) != 0) return "";
  return address_text(address);
}

// "/data/a.idx", "a pipe", "a socket to 10.0.0.2:53".
std::string file_text(int descriptor) {
  const std::string target = read_link(text("/proc/self/fd/", descriptor));
  const std::string number = descriptor <= 2 ? text("fd ", descriptor, ", ") : "";
  if (target.starts_with("pipe:")) return number + "a pipe";
  if (target.starts_with("socket:")) {
    const std::string peer = peer_of(descriptor);
    if (peer.ends_with(":53")) return "the name server " + peer;
    return peer.empty() ? number + "a socket" : text(number, "a socket to ", peer);
  }
  return target.empty() ? text("fd ", descriptor) : number + target;
}

// A string of this process, whose address may have become invalid meanwhile.
std::string string_at(uint64_t address) {
  std::array<char, 256> bytes = {};
  std::string path;
  while (path.size() < 4096) {
    // Not across a page's end, behind which nothing may be mapped.
    const size_t count = std::min<size_t>(bytes.size(), 4096 - (address + path.size()) % 4096);
    const iovec to{bytes.data(), count};
    const iovec from{reinterpret_cast<void*>(address + path.size()), count};
    if (process_vm_readv(getpid(), &to, 1, &from, 1, 0) != static_cast<ssize_t>(count)) break;
    const char* const end = std::find(bytes.data(), bytes.data() + count, '\0');
    path.append(bytes.data(), static_cast<size_t>(end - bytes.data()));
    if (end != bytes.data() + count) break;
  }
  return path;
}

bool has_name_server(uint64_t address, uint64_t count) {
  for (uint64_t i = 0; i < std::min<uint64_t>(count, 64); ++i) {
    int descriptor = -1;
    const iovec to{&descriptor, sizeof descriptor};
    const iovec from{reinterpret_cast<void*>(address + i * 8), sizeof descriptor};
    if (process_vm_readv(getpid(), &to, 1, &from, 1, 0) != sizeof descriptor) return false;
    if (peer_of(descriptor).ends_with(":53")) return true;
  }
  return false;
}

std::string call_text(long number, const Arguments& args) {
  const auto file = [&] { return file_text(static_cast<int>(args[0])); };
  switch (number) {
    case SYS_read:
    case SYS_pread64:
    case SYS_readv:
    case SYS_preadv:
      return "reads " + file();
    case SYS_write:
    case SYS_pwrite64:
    case SYS_writev:
    case SYS_pwritev:
      return "writes " + file();
    case SYS_fsync:
    case SYS_fdatasync:
    case SYS_sync_file_range:
      return "waits until " + file() + " is on the disk";
    case SYS_openat:
    case SYS_newfstatat:
    case SYS_statx:
      return "opens " + string_at(args[1]);
#ifdef SYS_open
    case SYS_open:
    case SYS_stat:
      return "opens " + string_at(args[0]);
    case SYS_poll:
      return has_name_server(args[0], args[1]) ? "asks a name server (port 53)" : "waits for a file or socket";
#endif
    case SYS_ppoll:
      return has_name_server(args[0], args[1]) ? "asks a name server (port 53)" : "waits for a file or socket";
    case SYS_connect:
      return "connects " + file();
    case SYS_recvfrom:
    case SYS_recvmsg:
      return "receives from " + file();
    case SYS_sendto:
    case SYS_sendmsg:
      return "sends to " + file();
    case SYS_accept4:
    case SYS_accept:
      return "waits for a connection";
    case SYS_futex:
      return "sleeps in a lock";
    case SYS_wait4:
    case SYS_waitid: {
      const auto child = static_cast<int>(number == SYS_wait4 ? args[0] : args[1]);
      return child > 0 ? text("waits for child ", child) : "waits for a child";
    }
    case SYS_nanosleep:
    case SYS_clock_nanosleep:
      return "sleeps for a set time";
    case SYS_epoll_pwait:
      return "waits for a file or socket";
    case SYS_pause:
    case SYS_rt_sigtimedwait:
    case SYS_rt_sigsuspend:
      return "waits for a signal";
    case SYS_flock:
      return "waits for the lock of " + file();
    default:
      return "";
  }
}

struct Totals {
  int64_t cpu_ns = 0, delayed_ns = 0;
};

// "/proc/PID/task/N/schedstat": time on a core, time in which a core was wanted.
Totals totals_of(const std::string& folder) {
  std::istringstream numbers(read_text(folder + "/schedstat"));
  Totals totals;
  numbers >> totals.cpu_ns >> totals.delayed_ns;
  return totals;
}

// Sets the rates since the look before.
void set_rates(Facts& facts, const std::string& folder, const Totals& all, FactsBefore& before) {
  const CgroupTotals cgroup = read_cgroup(read_text(folder + "/cgroup"));
  const int64_t stall_us_now =
      cgroup.memory_stall_us >= 0 ? cgroup.memory_stall_us : stall_us(read_text("/proc/pressure/memory"));
  const FactsBefore now{now_ns(), all.cpu_ns, all.delayed_ns, cgroup.throttled_periods, stall_us_now};
  facts.is_at_memory_limit = cgroup.is_at_memory_limit;
  if (before.time_ns != 0 && now.time_ns > before.time_ns) {
    const auto time = static_cast<double>(now.time_ns - before.time_ns);
    facts.cpu_share = static_cast<double>(now.cpu_ns - before.cpu_ns) / time;
    facts.delayed_share = static_cast<double>(now.delayed_ns - before.delayed_ns) / time;
    facts.throttled_periods = now.throttled - before.throttled;
    if (now.memory_stall_us >= 0 && before.memory_stall_us >= 0) {
      facts.memory_share = 1e3 * static_cast<double>(now.memory_stall_us - before.memory_stall_us) / time;
    }
  }
  before = now;
}

std::optional<TcpFacts> connection_facts(int descriptor) {
  tcp_info info = {};
  socklen_t size = sizeof info;
  if (getsockopt(descriptor, IPPROTO_TCP, TCP_INFO, &info, &size) != 0) return std::nullopt;
  const auto unsent = info.tcpi_unacked > 0 ? static_cast<int64_t>(info.tcpi_unacked) * info.tcpi_snd_mss : 0;
  if (unsent == 0 || info.tcpi_retransmits == 0) return std::nullopt;
  return TcpFacts{peer_of(descriptor), unsent, info.tcpi_retransmits, info.tcpi_last_ack_recv / 1e3};
}

}  // namespace

bool ThreadFacts::waits_for_device() const {
  return doing.starts_with("waits for ") && doing.find(" device (") != std::string::npos;
}

const ThreadFacts* Facts::main_thread() const {
  const auto found = std::find_if(threads.begin(), threads.end(), [&](const auto& it) { return it.thread == pid; });
  return found == threads.end() ? nullptr : &*found;
}

std::string describe_syscall(const std::string& line) {
  if (line.empty() || line.starts_with("running")) return "";
  std::istringstream words(line);
  long number = -1;
  Arguments args = {};
  words >> number >> std::hex;
  for (uint64_t& argument : args) {
    std::string word;
    words >> word;
    argument = std::strtoull(word.c_str(), nullptr, 16);
  }
  return number < 0 ? "" : call_text(number, args);
}

Facts collect_facts(FactsBefore& before) {
  Facts facts{.pid = getpid()};
  Totals all;
  const int self = static_cast<int>(syscall(SYS_gettid));
  for (const int thread : numbers_in("/proc/self/task")) {
    if (thread == self) continue;
    const std::string folder = text("/proc/self/task/", thread);
    const ProcessStat stat = read_stat(folder);
    if (stat.state == 0) continue;
    const Totals own = totals_of(folder);
    all = {all.cpu_ns + own.cpu_ns, all.delayed_ns + own.delayed_ns};
    facts.threads.push_back({thread, stat.name, stat.state, describe_syscall(read_text(folder + "/syscall"))});
  }
  for (const int descriptor : numbers_in("/proc/self/fd")) {
    if (auto connection = connection_facts(descriptor)) facts.connections.push_back(*connection);
  }
  set_rates(facts, "/proc/self", all, before);
  return facts;
}

std::optional<Facts> collect_facts_of(pid_t pid, FactsBefore& before) {
  const std::string folder = text("/proc/", pid);
  const ProcessStat main = read_stat(text(folder, "/task/", pid));
  Totals all;
  for (const int thread : numbers_in(folder + "/task")) {
    const Totals own = totals_of(text(folder, "/task/", thread));
    all = {all.cpu_ns + own.cpu_ns, all.delayed_ns + own.delayed_ns};
  }
  Facts facts{.pid = pid, .threads = {{pid, main.name, main.state, ""}}};
  set_rates(facts, folder, all, before);
  return main.state == 'R' || main.state == 'D' ? std::optional(facts) : std::nullopt;
}

std::string write_facts(const Facts& facts) {
  std::string all =
      text("pid ", facts.pid, "\ncpu ", facts.cpu_share, ' ', facts.delayed_share, ' ', facts.throttled_periods, '\n');
  all += text("memory ", facts.memory_share, ' ', facts.is_at_memory_limit ? 1 : 0, '\n');
  for (const TcpFacts& one : facts.connections) {
    all += text("tcp ", one.unacknowledged_bytes, ' ', one.retransmits, ' ', one.silent_s, ' ', one.peer, '\n');
  }
  for (const ThreadFacts& one : facts.threads) {
    std::string name = one.name;
    std::replace_if(
        name.begin(), name.end(), [](unsigned char c) { return c <= ' '; }, '_');
    std::string doing = one.doing;
    std::replace(doing.begin(), doing.end(), '\n', ' ');
    all += text("thread ", one.thread, ' ', one.state == 0 ? '?' : one.state, ' ', name.empty() ? "?" : name, ' ',
                doing, '\n');
  }
  return all;
}

Facts read_facts(std::string_view from) {
  Facts facts;
  for (const std::string_view line : lines_of(from)) {
    std::istringstream words{std::string(line)};
    std::string kind;
    words >> kind;
    if (kind == "pid") words >> facts.pid;
    if (kind == "cpu") words >> facts.cpu_share >> facts.delayed_share >> facts.throttled_periods;
    if (kind == "memory") words >> facts.memory_share >> facts.is_at_memory_limit;
    if (kind == "tcp") {
      TcpFacts one;
      words >> one.unacknowledged_bytes >> one.retransmits >> one.silent_s >> one.peer;
      facts.connections.push_back(one);
    }
    if (kind != "thread") continue;
    ThreadFacts one;
    words >> one.thread >> one.state >> one.name;
    words.get();
    std::getline(words, one.doing);
    facts.threads.push_back(one);
  }
  return facts;
}

}  // namespace hasten::flight
