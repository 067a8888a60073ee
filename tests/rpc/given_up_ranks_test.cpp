// Calls that are given up: what they have started ends, too.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <atomic>
#include <future>
#include <thread>

#include "hasten/rpc/errors.h"
#include "hasten/rpc/rpc.h"
#include "support/ranks.h"

namespace hasten::rpc {
namespace {

using hasten::testing::run_ranks;
using ::testing::HasSubstr;

template <class E, class F>
std::string words_of_failure(const F& fn) {
  try {
    fn();
  } catch (const E& error) {
    return error.what();
  }
  return "nothing was thrown";
}

TEST(GivenUp, ARefusedHandlerCancelsTheCallItSent) {
  std::atomic<int> num_blocked = 0;
  std::atomic<bool> open = false;
  const auto wait_for_blocked = [&](int count) {
    const auto until = std::chrono::steady_clock::now() + std::chrono::seconds(20);
    while (num_blocked != count && std::chrono::steady_clock::now() < until) std::this_thread::yield();
    EXPECT_EQ(num_blocked, count);
  };
  run_ranks(2, [&](process::Process& process) {
    Agent* self = nullptr;
    std::promise<void> made;
    auto ready = made.get_future().share();
    Functions functions;
    functions.add("block", [&] {
      ++num_blocked;
      while (!call().cancelled() && !open) std::this_thread::yield();
      --num_blocked;
    });
    functions.add("outer", [&] {
      ready.wait();
      self->call<void>("worker0", "block");
    });
    Agent agent(process, functions, {.max_threads = 1});
    self = &agent;
    made.set_value();
    if (process.rank() == 0) {
      const auto first = agent.call_async<void>("worker1", "outer");
      wait_for_blocked(1);
      EXPECT_THAT(words_of_failure<UsageError>([&] { agent.call<void>("worker1", "outer"); }),
                  HasSubstr("1 handlers wait already (max_threads)"));
      wait_for_blocked(1);
      open = true;
      first.wait();
    }
    agent.shutdown();
  });
}

// A handler that has returned a future holds nothing but the future, so a cancelled call of it does not keep the
// worker.
TEST(GivenUp, ACancelledCallOfAFutureThatNeverComesEnds) {
  run_ranks(2, [](process::Process& process) {
    const Promise<int64_t> never;
    Functions functions;
    functions.add("later", [&] { return never.future(); });
    Agent agent(process, functions);
    if (process.rank() == 0) {
      EXPECT_THAT(
          words_of_failure<CommError>([&] { agent.with({.timeout_s = 0.1}).call<int64_t>("worker1", "later"); }),
          HasSubstr("later() at rank 1 'worker1' did not end"));
      const auto given_up = agent.call_async<int64_t>("worker1", "later");
      given_up.cancel();
    }
    EXPECT_NO_THROW(agent.shutdown(20));
  });
}

}  // namespace
}  // namespace hasten::rpc
