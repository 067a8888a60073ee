// The store over libtorch's TCPStore, FileStore and HashStore; see store.h.
#include "hasten/comm/store/store.h"

#include <netdb.h>
#include <sys/socket.h>
#include <unistd.h>

#include <algorithm>
#include <chrono>
#include <cmath>
#include <cstring>
#include <filesystem>
#include <stdexcept>
#include <thread>

#include <torch/csrc/distributed/c10d/FileStore.hpp>
#include <torch/csrc/distributed/c10d/HashStore.hpp>
#include <torch/csrc/distributed/c10d/PrefixStore.hpp>
#include <torch/csrc/distributed/c10d/TCPStore.hpp>

#include "comm/store/answer_limit.h"
#include "comm/store/listener.h"
#include "comm/store/quiet_log.h"
#include "compat/exception_message.h"
#include "hasten/comm/types/wait_check.h"
#include "hasten/core/error.h"
#include "hasten/core/log.h"
#include "hasten/core/timeout.h"

namespace hasten::comm {
namespace {

using NativeStore = c10::intrusive_ptr<c10d::Store>;

std::vector<uint8_t> to_bytes(const std::string& text) {
  return {text.begin(), text.end()};
}
std::string to_text(const std::vector<uint8_t>& bytes) {
  return {bytes.begin(), bytes.end()};
}

[[noreturn]] void cannot_listen(const TcpStoreOptions& options, const std::string& why) {
  throw UsageError(Origin{"comm"}, "the store cannot listen on ", options.host, ':', options.port, ": ", why,
                   ". Choose another port (MASTER_PORT, hasten launch --master_port, 0 for a free one) or end what "
                   "uses it; the address (MASTER_ADDR) must be one of this machine's.");
}

// A listening socket bound to the requested address alone. SO_REUSEADDR as every server: a port in TIME_WAIT is free.
int listen_on(const TcpStoreOptions& options) {
  addrinfo hints{};
  hints.ai_family = AF_UNSPEC;
  hints.ai_socktype = SOCK_STREAM;
  addrinfo* found = nullptr;
  const int failed = getaddrinfo(options.host.c_str(), std::to_string(options.port).c_str(), &hints, &found);
  if (failed != 0) cannot_listen(options, gai_strerror(failed));
  const std::unique_ptr<addrinfo, void (*)(addrinfo*)> addresses(found, freeaddrinfo);
  int error = 0;
  for (const addrinfo* address = found; address != nullptr; address = address->ai_next) {
    const int fd = socket(address->ai_family, address->ai_socktype | SOCK_CLOEXEC, address->ai_protocol);
    const int yes = 1;
    if (fd >= 0 && setsockopt(fd, SOL_SOCKET, SO_REUSEADDR, &yes, sizeof(yes)) == 0 &&
        bind(fd, address->ai_addr, address->ai_addrlen) == 0 && listen(fd, SOMAXCONN) == 0) {
      return fd;
    }
    error = errno;
    if (fd >= 0) close(fd);
  }
  cannot_listen(options, std::strerror(error));
}

// There is no way to the store's own machine, which is this one.
struct NoWay : std::runtime_error {
  using std::runtime_error::runtime_error;
};

// Waits until a process listens at one of the host's addresses. libtorch's client sleeps for half a second and longer
// after a connection that is refused, and ranks are often a few milliseconds before rank 0. Throws when time is up, and
// at once if there is no way to an address of this machine's own. Other errors are left to libtorch.
void wait_for_listener(const TcpStoreOptions& options) {
  addrinfo hints{};
  hints.ai_socktype = SOCK_STREAM;
  addrinfo* found = nullptr;
  if (getaddrinfo(options.host.c_str(), std::to_string(options.port).c_str(), &hints, &found) != 0) return;
  const std::unique_ptr<addrinfo, void (*)(addrinfo*)> addresses(found, freeaddrinfo);
  constexpr auto kWarnAfter = std::chrono::seconds(10);
  const auto begin = std::chrono::steady_clock::now(), deadline = begin + options.timeout;
  auto pause = std::chrono::milliseconds(1);
  bool warned = false;
  ListenerAnswer answer;
  while (std::chrono::steady_clock::now() < deadline) {
    answer = ask_listener(found);
    if (answer.listens) return;
    if (answer.no_way_here) throw NoWay(words_of_no_way(answer.error, true));
    if (answer.no_way && !warned && std::chrono::steady_clock::now() - begin > kWarnAfter) {
      warned = true;
      Logger("comm").warning(text("the store at ", options.host, ':', options.port, " cannot be reached: ",
                                  words_of_no_way(answer.error, false), "; trying until the timeout."));
    }
    std::this_thread::sleep_for(pause);
    pause = std::min(2 * pause, std::chrono::milliseconds(50));
  }
  throw std::runtime_error(answer.no_way ? words_of_no_way(answer.error, false) : "every connection was refused");
}

// libtorch's store looks up the name of each address that it connects to or that connects to it. That takes 5 s and
// longer if a name server does not answer.
c10::intrusive_ptr<c10d::TCPStore> connect(const TcpStoreOptions& options, const c10d::TCPStoreOptions& native) {
  using Seconds = std::chrono::duration<double>;
  constexpr Seconds kSlow(2);
  const auto begin = std::chrono::steady_clock::now();
  auto store = c10::make_intrusive<c10d::TCPStore>(options.host, native);
  const Seconds took = std::chrono::steady_clock::now() - begin;
  if (took < kSlow) return store;
  Logger("comm").warning(
      text("connecting to the store at ", options.host, ':', store->getPort(), " took ", std::lround(took.count()),
           " s, though somebody listened there. libtorch asks for the names of both ends' addresses: see "
           "whether the name servers in /etc/resolv.conf answer, or name the machines in /etc/hosts (",
           options.host, " and ::ffff:", options.host, ")."));
  return store;
}

// Runs an operation on the store at a port, 0 if it has none. libtorch's own errors become CommErrors with a hint.
template <class Call>
auto call(const char* operation, const std::string& key, int port, const Call& action) {
  const QuietLog quiet;
  try {
    return action();
  } catch (const std::exception& error) {
    const std::string words = compat::message_of(error);
    const bool is_late = words.find("Socket Timeout") != std::string::npos;
    if (is_late) cut_connections(port);
    throw CommError(Origin{"comm"}, operation, "the store did not answer (", operation, " of '", key, "'): ", words,
                    ". The process that serves it, rank 0 or the launcher, ",
                    is_late ? "is stopped, or its machine cannot be reached." : "has ended.");
  }
}

}  // namespace

struct Store::Impl {
  NativeStore store;
  int port = 0;
};

Store Store::tcp(const TcpStoreOptions& options) {
  require_timeout(Origin{"comm"}, options.timeout,
                  {"the store's timeout", "the time to wait for its server", "5 minutes"});
  c10d::TCPStoreOptions native;
  native.port = static_cast<uint16_t>(options.port);
  native.isServer = options.server;
  native.waitWorkers = false;
  native.timeout = options.timeout;
  if (options.server) native.masterListenFd = listen_on(options);
  const QuietLog quiet;
  try {
    if (!options.server) wait_for_listener(options);
    auto store = connect(options, native);
    const int port = store->getPort();
    limit_answers(port, options.timeout);
    return Store(std::make_shared<Impl>(Impl{std::move(store), port}));
  } catch (const NoWay& error) {
    throw CommError(Origin{"comm"}, "connect", "the store at ", options.host, ':', options.port,
                    " cannot be reached: ", error.what(), ".");
  } catch (const std::exception& error) {
    throw CommError(Origin{"comm"}, "connect", "no store answered at ", options.host, ':', options.port, " within ",
                    std::chrono::duration_cast<std::chrono::seconds>(options.timeout).count(),
                    " s. Check that rank 0 has started and that MASTER_ADDR and MASTER_PORT are the same everywhere (",
                    compat::message_of(error), ").");
  }
}

Store Store::file(const std::string& path, int world_size) {
  const auto folder = std::filesystem::absolute(path).parent_path();
  if (!std::filesystem::is_directory(folder)) {
    throw DataError(Origin{"comm"}, path, "the file store '", path, "' cannot be made: there is no folder '",
                    folder.string(), "'. Make it, or name another file.");
  }
  return Store(std::make_shared<Impl>(Impl{c10::make_intrusive<c10d::FileStore>(path, world_size), 0}));
}

Store Store::in_process() {
  return Store(std::make_shared<Impl>(Impl{c10::make_intrusive<c10d::HashStore>(), 0}));
}

Store Store::adopt(c10d::Store& store) {
  return Store(std::make_shared<Impl>(Impl{NativeStore::reclaim_copy(&store), 0}));
}

Store Store::scoped(const std::string& prefix) const {
  return Store(std::make_shared<Impl>(Impl{c10::make_intrusive<c10d::PrefixStore>(prefix, impl_->store), impl_->port}));
}

void Store::set(const std::string& key, const std::string& value) const {
  // libtorch's client does not wait for the server's answer to a set. A query on the same connection does.
  call("set", key, impl_->port, [&] { return impl_->store->set(key, to_bytes(value)), impl_->store->check({key}); });
}

bool Store::set_once(const std::string& key, const std::string& value) const {
  const auto is_first = [&] { return impl_->store->add(key + "/owner", 1) == 1; };
  return call("set_once", key, impl_->port, is_first) && (set(key, value), true);
}

std::optional<std::string> Store::get(const std::string& key) const {
  return call("get", key, impl_->port, [&]() -> std::optional<std::string> {
    if (!impl_->store->check({key})) return std::nullopt;
    return to_text(impl_->store->get(key));
  });
}

int64_t Store::add(const std::string& key, int64_t amount) const {
  return call("add", key, impl_->port, [&] { return impl_->store->add(key, amount); });
}

void Store::wait(const std::vector<std::string>& keys, std::chrono::milliseconds timeout) const {
  const auto begin = std::chrono::steady_clock::now();
  auto pause = std::chrono::milliseconds(1);
  std::vector<std::string> missing = keys;
  while (true) {
    std::erase_if(missing, [&](const std::string& key) {
      return call("wait", key, impl_->port, [&] { return impl_->store->check({key}); });
    });
    if (missing.empty()) return;
    if (std::chrono::steady_clock::now() - begin >= timeout) break;
    WaitCheck::run();
    std::this_thread::sleep_for(pause);
    pause = std::min(2 * pause, std::chrono::milliseconds(20));
  }
  throw CommError(Origin{"comm"}, "wait", "after ", static_cast<double>(timeout.count()) / 1000,
                  " s the store has no '", join(missing, "', '"),
                  "'. Look at the ranks that were to set it, or raise the timeout.");
}

bool Store::delete_key(const std::string& key) const {
  return call("delete_key", key, impl_->port, [&] { return impl_->store->deleteKey(key); });
}

std::string Store::compare_set(const std::string& key, const std::string& expected, const std::string& desired) const {
  return call("compare_set", key, impl_->port,
              [&] { return to_text(impl_->store->compareSet(key, to_bytes(expected), to_bytes(desired))); });
}

int64_t Store::num_keys() const {
  return call("num_keys", "", impl_->port, [&] { return impl_->store->getNumKeys(); });
}

int Store::port() const noexcept {
  return impl_->port;
}

c10d::Store* Store::native() const noexcept {
  return impl_->store.get();
}

}  // namespace hasten::comm
