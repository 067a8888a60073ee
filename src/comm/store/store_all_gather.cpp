// See store_all_gather.h.
#include "comm/store/store_all_gather.h"

#include <sys/random.h>

#include <algorithm>
#include <sstream>
#include <system_error>
#include <thread>

#include "hasten/core/error.h"

namespace hasten::comm {

using Clock = std::chrono::steady_clock;

std::vector<std::string> store_all_gather(const Store& store, const std::string& topic, int rank, int world_size,
                                          const std::string& mine, std::chrono::milliseconds timeout) {
  const auto key = [&](int peer) { return text(topic, '/', peer); };
  // A value must not be empty.
  store.set(key(rank), '@' + mine);
  std::vector<std::string> words(world_size);
  const auto deadline = Clock::now() + timeout;
  const auto read = [&](const std::string& name) {
    std::optional<std::string> value;
    if (!poll_until(deadline, [&] { return (value = store.get(name)).has_value(); })) {
      throw CommError(Origin{"comm", rank, world_size}, "connect", "a rank did not say its ", topic, " in time (", name,
                      ")");
    }
    return *value;
  };
  // The first rank collects, so that the store answers a few questions a rank and not a world of them.
  if (rank == 0) {
    for (int peer = 0; peer < world_size; ++peer) words[peer] = read(key(peer)).substr(1);
    store.set(topic + 's', join(words, "\n") + "\n");
    return words;
  }
  std::istringstream lines(read(topic + 's'));
  for (auto& line : words) std::getline(lines, line);
  return words;
}

bool poll_until(Clock::time_point deadline, const std::function<bool()>& ready) {
  auto pause = std::chrono::microseconds(100);
  while (!ready()) {
    if (Clock::now() > deadline) return false;
    std::this_thread::sleep_for(pause);
    pause = std::min(pause * 2, std::chrono::microseconds(5000));
  }
  return true;
}

std::string random_hex(int num_bytes) {
  std::string bytes(num_bytes, '\0'), hex;
  if (getrandom(bytes.data(), bytes.size(), 0) != num_bytes) {
    throw std::system_error(errno, std::generic_category(), "getrandom");
  }
  for (const char byte : bytes) {
    hex += "0123456789abcdef"[(byte >> 4) & 15];
    hex += "0123456789abcdef"[byte & 15];
  }
  return hex;
}

}  // namespace hasten::comm
