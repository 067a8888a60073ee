// A small key-value store that all ranks of a run share. Ranks meet there before they are connected, and a failing rank
// leaves its message there. A value handle over libtorch's stores.
//
// hasten binds the socket of the TCP store itself. libtorch would listen on every address of the machine, even when
// asked for 127.0.0.1.
#pragma once

#include <chrono>
#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <vector>

namespace c10d {
class Store;
}

namespace hasten::comm {

struct TcpStoreOptions {
  std::string host = "127.0.0.1";
  /// 0 with `server`: the system chooses; Store::port() returns it.
  int port = 0;
  /// This process holds the keys (rank 0 where no launcher does).
  bool server = false;
  /// How long to try to reach the server.
  std::chrono::milliseconds timeout = std::chrono::minutes(5);
};

class Store {
 public:
  /// Keys held by one process, reached by TCP. The server binds to `host` only.
  /// Blocks: until the server answers. Throws: UsageError if the address cannot be bound
  /// (busy port, foreign address), CommError if the server is not reached within the timeout.
  static Store tcp(const TcpStoreOptions& options);

  /// Opens a store in a file on a file system that all ranks reach. The file is made if missing and removed by the last
  /// user. Throws: DataError if the file cannot be made.
  static Store file(const std::string& path, int world_size);

  /// Keys in this process's memory, for ranks that are threads.
  static Store in_process();

  /// Returns a handle over a store that libtorch made, which it keeps alive. For programs with a store of their own, as
  /// those of torch.distributed. port() is 0.
  static Store adopt(c10d::Store& store);

  /// Returns the same store with every key put under `prefix`.
  Store scoped(const std::string& prefix) const;

  /// Sets a key, replacing an earlier value; when it returns, every process finds the value.
  /// Blocks: for a round trip. Throws: CommError if the server is gone (all methods below
  /// alike).
  void set(const std::string& key, const std::string& value) const;

  /// Sets a key unless it is there already; whether this call set it.
  bool set_once(const std::string& key, const std::string& value) const;

  /// Returns the value, nothing if the key is not there now.
  std::optional<std::string> get(const std::string& key) const;

  /// Adds to a counter that starts at 0 and gives the sum.
  int64_t add(const std::string& key, int64_t amount) const;

  /// Returns when all keys are there.
  /// Blocks: until then. Throws: CommError naming the keys that are missing after the timeout;
  /// WaitInterrupted of this thread's WaitCheck.
  void wait(const std::vector<std::string>& keys, std::chrono::milliseconds timeout = std::chrono::minutes(5)) const;

  /// Removes a key; whether it was there.
  bool delete_key(const std::string& key) const;

  /// Sets the key to `desired` if its value is `expected`, or if it is not there and `expected` is empty. Returns the
  /// value that it then has; of a key that is not there `expected`, and nothing is set.
  std::string compare_set(const std::string& key, const std::string& expected, const std::string& desired) const;

  /// Returns the number of keys of the whole store, those under other prefixes and libtorch's own among them.
  int64_t num_keys() const;

  /// Returns the port a TCP server listens on, 0 for other stores.
  int port() const noexcept;

  /// Returns libtorch's store behind this handle, for backends only.
  c10d::Store* native() const noexcept;

 private:
  struct Impl;
  explicit Store(std::shared_ptr<Impl> impl) : impl_(std::move(impl)) {}
  std::shared_ptr<Impl> impl_;
};

}  // namespace hasten::comm
