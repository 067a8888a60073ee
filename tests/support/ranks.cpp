// Ranks as threads; see ranks.h.
#include "support/ranks.h"

#include <ATen/Parallel.h>
#include <c10/core/DeviceGuard.h>

#include <cstdlib>
#include <exception>
#include <mutex>
#include <thread>

#include "hasten/core/text.h"
#include "support/test_device.h"

namespace hasten::testing {
namespace {

struct Outcome {
  std::vector<std::string> words;
  std::exception_ptr first;
};

Outcome run(int world_size, const RankFunction& fn, const RankOptions& options) {
  const comm::Store store = comm::Store::in_process();
  Outcome outcome{std::vector<std::string>(world_size), nullptr};
  std::mutex mutex;
  const auto one_rank = [&](int rank) {
    at::set_num_threads(1);
    comm::Group group;
    try {
      comm::GroupOptions connection{.timeout = options.timeout, .check = options.check, .address = "127.0.0.1"};
      if (const char* num_hosts = std::getenv("HASTEN_TEST_HOSTS")) {
        connection.host = text("host", rank % std::atoi(num_hosts));
      }
      if (options.adjust) options.adjust(rank, connection);
      group = comm::Group::connect(store, rank, world_size, connection);
      process::RankInfo identity;
      identity.rank = identity.local_rank = rank;
      identity.world_size = identity.local_world_size = world_size;
      const c10::OptionalDeviceGuard guard(test_device(rank));
      process::Process process(identity, group, test_device(rank));
      fn(process);
    } catch (const std::exception& error) {
      {
        const std::lock_guard lock(mutex);
        outcome.words[rank] = error.what();
        if (!outcome.first) outcome.first = std::current_exception();
      }
      group.fail(error.what());
    }
  };
  std::vector<std::thread> threads;
  for (int rank = 0; rank < world_size; ++rank) threads.emplace_back(one_rank, rank);
  for (auto& thread : threads) thread.join();
  return outcome;
}

}  // namespace

std::vector<std::string> run_ranks_collecting(int world_size, const RankFunction& fn, const RankOptions& options) {
  return run(world_size, fn, options).words;
}

void run_ranks(int world_size, const RankFunction& fn, const RankOptions& options) {
  const Outcome outcome = run(world_size, fn, options);
  if (outcome.first) std::rethrow_exception(outcome.first);
}

}  // namespace hasten::testing
