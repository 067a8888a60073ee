// Workers that join and leave one by one, each an agent of this process at one store.
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <torch/types.h>

#include <condition_variable>
#include <future>
#include <mutex>

#include "hasten/rpc/errors.h"
#include "hasten/rpc/rpc.h"
#include "support/ranks.h"

namespace hasten::rpc {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::UnorderedElementsAre;

int64_t next_of(int64_t x) {
  return x + 1;
}

Functions dynamic_functions() {
  Functions functions;
  functions.add<&next_of>();
  return functions;
}

std::unique_ptr<Agent> worker_at(const comm::Store& store, const std::string& name,
                                 Functions functions = dynamic_functions(), double timeout_s = 60) {
  return std::make_unique<Agent>(store, std::move(functions), RpcOptions{.name = name, .timeout_s = timeout_s});
}

std::vector<std::string> names_of(const Agent& agent) {
  std::vector<std::string> names;
  for (const auto& worker : agent.workers()) names.push_back(worker.name);
  return names;
}

using Seen = std::pair<std::string, WorkerEvent>;

// Keeps what on_worker() reports.
class Events {
 public:
  void watch(const Agent& agent) {
    agent.on_worker([this](const WorkerInfo& worker, WorkerEvent event) {
      const std::lock_guard lock(mutex_);
      seen_.emplace_back(worker.name, event);
      changed_.notify_all();
    });
  }
  std::vector<Seen> wait_for(size_t count) {
    std::unique_lock lock(mutex_);
    changed_.wait_for(lock, std::chrono::seconds(20), [&] { return seen_.size() >= count; });
    return seen_;
  }

 private:
  std::mutex mutex_;
  std::condition_variable changed_;
  std::vector<Seen> seen_;
};

template <class E, class F>
std::string words_of_error(const F& fn) {
  try {
    fn();
  } catch (const E& error) {
    return error.what();
  }
  return "nothing was thrown";
}

TEST(DynamicAgent, WorkersComeAndGoWhileOthersCall) {
  const auto store = comm::Store::in_process();
  Events events;
  auto server = worker_at(store, "ps");
  events.watch(*server);

  auto one = worker_at(store, "one");
  EXPECT_EQ(one->sync<&next_of>("ps", 1), 2);
  EXPECT_EQ(server->sync<&next_of>("one", 2), 3);
  auto two = worker_at(store, "two");
  EXPECT_EQ(two->sync<&next_of>("one", 3), 4);
  EXPECT_EQ(one->sync<&next_of>("two", 4), 5) << "all know a worker once its constructor returns";
  EXPECT_THAT(names_of(*one), ElementsAre("ps", "one", "two"));
  one->shutdown();
  two.reset();

  // The ends of two connections may be seen in either order.
  EXPECT_THAT(events.wait_for(4),
              UnorderedElementsAre(Seen("one", WorkerEvent::kJoined), Seen("two", WorkerEvent::kJoined),
                                   Seen("one", WorkerEvent::kLeft), Seen("two", WorkerEvent::kLeft)));
  EXPECT_THAT(names_of(*server), ElementsAre("ps"));
  EXPECT_THAT(words_of_error<CommError>([&] { server->sync<&next_of>("two", 1); }), HasSubstr("'two'"));
  auto again = worker_at(store, "two");
  EXPECT_EQ(again->worker().id, 3) << "numbers are not used twice";
  EXPECT_EQ(server->sync<&next_of>("two", 7), 8);
  again->shutdown();
  server->shutdown();
}

TEST(DynamicAgent, ReferencesPassBetweenWorkersThatCameLater) {
  const auto store = comm::Store::in_process();
  Functions functions;
  functions.add("keep", [](const RRef<at::Tensor>& value) { return value.to_here().sum().item<double>(); });
  auto a = worker_at(store, "a", functions), b = worker_at(store, "b", functions), c = worker_at(store, "c", functions);

  const auto value = c->rref(torch::ones({3}));

  EXPECT_EQ(c->call<double>("a", "keep", value), 3);
  EXPECT_EQ(c->call<double>("b", "keep", value), 3);
  b->shutdown();
  EXPECT_EQ(c->call<double>("a", "keep", value), 3);
  c->shutdown();
  a->shutdown();
}

TEST(DynamicAgent, AnIdempotentCallGoesToTheNextWorkerOfTheName) {
  const auto store = comm::Store::in_process();
  std::promise<void> started;
  std::vector<Promise<int64_t>> kept;
  Functions first, second, none;
  first.add("step",
            [&](int64_t) {
              kept.emplace_back();
              started.set_value();
              return kept.back().future();
            },
            {.idempotent = true});
  first.add("once", [&](int64_t) {
    kept.emplace_back();
    return kept.back().future();
  });
  second.add("step", [&](int64_t x) { return 10 * x; }, {.idempotent = true});
  second.add("once", [&](int64_t x) { return x; });
  auto trainer = worker_at(store, "trainer", none);
  auto server = worker_at(store, "ps", first);

  const auto once = trainer->call_async<int64_t>("ps", "once", 1);
  const auto step = trainer->call_async<int64_t>("ps", "step", 4);
  started.get_future().wait();
  server.reset();
  EXPECT_THAT(words_of_error<CommError>([&] { once.wait(); }), HasSubstr("has left while it ran once()"));
  EXPECT_FALSE(step.done());
  const auto meanwhile = trainer->call_async<int64_t>("ps", "step", 5);
  server = worker_at(store, "ps", second);

  EXPECT_EQ(step.wait(), 40);
  EXPECT_EQ(meanwhile.wait(), 50);
  trainer->shutdown();
  server->shutdown();
}

TEST(DynamicAgent, RefusesANameThatIsTakenAndOneThatIsMissing) {
  const auto store = comm::Store::in_process();
  auto one = worker_at(store, "one");

  EXPECT_THAT(words_of_error<UsageError>([&] { worker_at(store, "one"); }), HasSubstr("have one name, 'one'"));
  EXPECT_THAT(words_of_error<UsageError>([&] { worker_at(store, ""); }), HasSubstr("needs a name"));
  hasten::testing::run_ranks(1, [](process::Process& process) {
    EXPECT_THAT(words_of_error<UsageError>([&] { Agent(process, {}, {.name = "w", .dynamic = true}); }),
                HasSubstr("needs a store"));
  });
  one->shutdown();
}

TEST(DynamicAgent, RanksOfARunJoinWhenTheyAreReady) {
  hasten::testing::run_ranks(3, [](process::Process& process) {
    std::promise<void> all_here;
    std::atomic<int> num_joined = 0;
    Functions functions = dynamic_functions();
    if (process.rank() > 0) process.group().barrier();
    Agent agent(process, functions, {.name = "w" + std::to_string(process.rank()), .dynamic = true});
    if (process.rank() == 0) {
      agent.on_worker([&](const WorkerInfo&, WorkerEvent event) {
        if (event == WorkerEvent::kJoined && ++num_joined == 2) all_here.set_value();
      });
      process.group().barrier();
      all_here.get_future().wait();
      EXPECT_EQ(agent.sync<&next_of>("w2", 1), 2);
    } else {
      EXPECT_EQ(agent.sync<&next_of>("w0", 1), 2);
    }
    process.group().barrier();
    agent.shutdown();
  });
}

}  // namespace
}  // namespace hasten::rpc
