// See host_link.h.
#include "process/host_link.h"

#include <arpa/inet.h>
#include <dirent.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <pthread.h>
#include <signal.h>
#include <sys/socket.h>

#include <chrono>
#include <future>
#include <optional>
#include <string_view>
#include <thread>
#include <utility>

#include "hasten/core/error.h"
#include "hasten/core/number.h"
#include "hasten/core/text.h"

namespace hasten::process {
namespace {

constexpr auto kMostWait = std::chrono::seconds(2);
constexpr auto kMostConnecting = std::chrono::seconds(10);

// True if the server of the store has closed a connection of this process. libtorch's client would print its stack at
// each further call.
bool is_closed(int port) {
  bool found = false;
  DIR* const folder = opendir("/proc/self/fd");
  if (folder == nullptr) return false;
  while (const dirent* entry = readdir(folder)) {
    const int file = core::whole_number<int>(std::string_view(entry->d_name)).value_or(0);
    sockaddr_storage peer = {};
    socklen_t size = sizeof peer;
    if (file <= 2 || getpeername(file, reinterpret_cast<sockaddr*>(&peer), &size) != 0) continue;
    const bool is_inet = peer.ss_family == AF_INET || peer.ss_family == AF_INET6;
    // The port lies at the same place in both.
    if (!is_inet || ntohs(reinterpret_cast<const sockaddr_in&>(peer).sin_port) != port) continue;
    tcp_info info = {};
    size = sizeof info;
    found = found || (getsockopt(file, IPPROTO_TCP, TCP_INFO, &info, &size) == 0 && info.tcpi_state == TCP_CLOSE_WAIT);
  }
  closedir(folder);
  return found;
}

/// A thread of its own calls the store, since libtorch's client waits without a limit. If it does not come back, it is
/// left behind, and ends with the process.
class StoreLink : public flight::HostLink {
 public:
  StoreLink(std::function<comm::Store()> open, int port) : shared_(std::make_shared<Shared>()), port_(port) {
    shared_->open = std::move(open);
  }

  void set(const std::string& key, const std::string& value) override {
    call([key, value](const comm::Store& store) {
      store.set(key, value);
      return std::optional<std::string>();
    });
  }
  std::optional<std::string> get(const std::string& key) override {
    return call([key](const comm::Store& store) { return store.get(key); });
  }

 private:
  struct Shared {
    std::function<comm::Store()> open;
    std::optional<comm::Store> store;
    bool lost = false;  // used by the calling thread alone
  };

  std::optional<std::string> call(std::function<std::optional<std::string>(const comm::Store&)> fn) {
    if (shared_->lost) throw CommError({"process"}, "watch", "the run's store did not answer before.");
    if (port_ > 0 && is_closed(port_)) throw CommError({"process"}, "watch", "the run's store has ended.");
    std::packaged_task<std::optional<std::string>()> task([shared = shared_, fn = std::move(fn)] {
      if (!shared->store) shared->store = shared->open();
      return fn(*shared->store);
    });
    auto result = task.get_future();
    const auto limit = std::exchange(is_first_, false) ? kMostConnecting : kMostWait;
    sigset_t all, before;
    sigfillset(&all);
    pthread_sigmask(SIG_SETMASK, &all, &before);
    std::thread(std::move(task)).detach();
    pthread_sigmask(SIG_SETMASK, &before, nullptr);
    if (result.wait_for(limit) != std::future_status::ready) {
      shared_->lost = true;
      throw CommError({"process"}, "watch", "the run's store does not answer.");
    }
    return result.get();
  }

  const std::shared_ptr<Shared> shared_;
  const int port_;
  bool is_first_ = true;
};

}  // namespace

std::unique_ptr<flight::HostLink> make_host_link(std::function<comm::Store()> open, int port) {
  return std::make_unique<StoreLink>(std::move(open), port);
}

std::unique_ptr<flight::HostLink> make_host_link(const RankInfo& identity, int number) {
  const auto open = [identity, number] {
    const auto store = comm::Store::tcp(
        {.host = identity.master_addr, .port = identity.master_port, .server = false, .timeout = kMostConnecting});
    return store.scoped(text("hasten/watch/", identity.restart_count, '/', number));
  };
  return make_host_link(open, identity.master_port);
}

}  // namespace hasten::process
