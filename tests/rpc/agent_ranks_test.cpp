// Calls between workers that are threads: values, futures, errors, timeouts, losses, shutdown.
#include "hasten/rpc/agent.h"

#include <ATen/record_function.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <torch/types.h>

#include <future>
#include <set>
#include <thread>

#include "hasten/rpc/errors.h"
#include "hasten/rpc/rpc.h"
#include "support/ranks.h"

namespace hasten::rpc {
namespace {

using hasten::testing::run_ranks;
using ::testing::HasSubstr;

at::Tensor add_to(const at::Tensor& x, double y) {
  return x + y;
}
int64_t plus_one(int64_t x) {
  return x + 1;
}
std::string greet(const std::string& name, std::optional<int> times) {
  std::string all;
  for (int i = 0; i < times.value_or(1); ++i) all += "hello " + name;
  return all;
}
void refuse(int kind) {
  if (kind == 0) throw UsageError("[test] wrong use");
  if (kind == 1) throw std::out_of_range("no such row");
  throw 7;
}
int64_t through(int next, int64_t x) {
  if (next == 0) throw std::logic_error("the end of the chain");
  return x;
}

struct Point {
  double x = 0, y = 0;
  std::vector<Point> near = {};
  std::map<std::string, at::Tensor> tensors = {};
};
Point echo_point(const Point& point) {
  return point;
}

Functions test_functions() {
  Functions functions;
  functions.add<&add_to>().add<&plus_one>().add<&greet>().add<&refuse>().add<&echo_point>();
  functions.add("twice", [](int64_t x) { return 2 * x; }, {.where = Where::kInline});
  return functions;
}

template <class E, class F>
std::string words_of_throw(const F& fn) {
  try {
    fn();
  } catch (const E& error) {
    return error.what();
  }
  return "nothing was thrown";
}

TEST(Agent, CallsAFunctionOfAnotherWorkerAndOfItself) {
  run_ranks(3, [](process::Process& process) {
    Agent agent(process, test_functions());
    const auto x = torch::full({3}, process.rank(), at::kFloat);

    for (const auto& worker : agent.workers()) {
      EXPECT_TRUE(at::equal(agent.sync<&add_to>(worker, x, 2), x + 2));
      EXPECT_EQ(agent.sync<&plus_one>(worker.id, 41), 42);
      EXPECT_EQ(agent.call<int64_t>(worker.name, "twice", 21), 42);
    }
    EXPECT_EQ(agent.sync<&greet>("worker1", "you"), "hello you");
    EXPECT_EQ(agent.sync<&greet>("worker1", "you", 2), "hello youhello you");

    agent.shutdown();
  });
}

TEST(Agent, CarriesLargeTensorsAndStructs) {
  run_ranks(2, [](process::Process& process) {
    Agent agent(process, test_functions());
    const int other = 1 - process.rank();

    const auto large = torch::rand({1 << 20});
    EXPECT_TRUE(at::equal(agent.sync<&add_to>(other, large, 1), large + 1));
    const auto view = torch::rand({100, 100}).t().slice(0, 3, 60, 2);
    EXPECT_TRUE(at::equal(agent.sync<&add_to>(other, view, 1), view + 1));
    const Point got = agent.sync<&echo_point>(other, Point{1, 2, {{3, 4, {}, {}}}, {{"w", large}}});
    EXPECT_EQ(got.near.at(0).y, 4);
    EXPECT_TRUE(at::equal(got.tensors.at("w"), large));

    agent.shutdown();
  });
}

TEST(Agent, ManyCallsInFlightAllEnd) {
  run_ranks(3, [](process::Process& process) {
    Agent agent(process, test_functions());

    std::vector<Future<int64_t>> futures;
    for (int64_t i = 0; i < 3000; ++i) futures.push_back(agent.async<&plus_one>(static_cast<int>(i % 3), i));
    const auto values = wait_all(futures);

    for (int64_t i = 0; i < 3000; ++i) ASSERT_EQ(values[static_cast<size_t>(i)], i + 1);
    agent.shutdown();
  });
}

TEST(Agent, ErrorsCrossWithTheirTextAndClass) {
  run_ranks(2, [](process::Process& process) {
    Agent agent(process, test_functions());
    if (process.rank() == 0) {
      EXPECT_THAT(words_of_throw<UsageError>([&] { agent.sync<&refuse>("worker1", 0); }),
                  HasSubstr("[test] wrong use"));
      try {
        agent.sync<&refuse>("worker1", 1);
        ADD_FAILURE() << "no error";
      } catch (const RemoteError& error) {
        EXPECT_EQ(error.type(), "std::out_of_range");
        EXPECT_EQ(error.worker(), "worker1");
        EXPECT_THAT(error.what(), HasSubstr("no such row"));
      }
      EXPECT_THAT(words_of_throw<RemoteError>([&] { agent.sync<&refuse>("worker1", 2); }),
                  HasSubstr("no std::exception"));
    }
    agent.shutdown();
  });
}

TEST(Agent, RefusesWhatIsNotServedBeforeItSends) {
  run_ranks(2, [](process::Process& process) {
    Agent agent(process, test_functions());
    if (process.rank() == 0) {
      EXPECT_THAT(words_of_throw<UsageError>([&] { agent.sync<&through>("worker1", 1, 2); }),
                  HasSubstr("does not serve"));
      EXPECT_THAT(words_of_throw<UsageError>([&] { agent.call<int64_t>("worker1", "twise", 1); }),
                  HasSubstr("did you mean 'twice'"));
      const std::string both = words_of_throw<UsageError>([&] { agent.call<std::string>("worker1", "twice", 1); });
      EXPECT_THAT(both, HasSubstr("string(i64)"));
      EXPECT_THAT(both, HasSubstr("i64(i64)"));
      EXPECT_THAT(words_of_throw<UsageError>([&] { agent.sync<&plus_one>("worker2", 1); }), HasSubstr("did you mean"));
    }
    agent.shutdown();
  });
}

TEST(Agent, WrongNamesAreRefusedOnAllRanksInOneMessage) {
  const auto words = hasten::testing::run_ranks_collecting(3, [](process::Process& process) {
    const std::vector<std::string> names = {"same", "same", "bad name"};
    Agent agent(process, test_functions(), {.name = names[static_cast<size_t>(process.rank())]});
  });

  for (const std::string& word : words) {
    EXPECT_THAT(word, HasSubstr("Ranks 0, 1 have one name, 'same'"));
    EXPECT_THAT(word, HasSubstr("The name of rank 2 is 'bad name'"));
  }
}

TEST(Agent, ATimeoutSaysWhatTheWorkerDoes) {
  run_ranks(2, [](process::Process& process) {
    std::promise<void> done;
    auto ended = done.get_future().share();
    Functions functions;
    std::atomic<bool> was_cancelled = false;
    functions.add("block", [&] {
      while (!call().cancelled()) std::this_thread::yield();
      was_cancelled = true;
      done.set_value();
    });
    Agent agent(process, functions);
    if (process.rank() == 0) {
      const std::string words =
          words_of_throw<CommError>([&] { agent.with({.timeout_s = 0.05}).call<void>("worker1", "block"); });
      EXPECT_THAT(words, HasSubstr("block() at rank 1 'worker1' did not end"));
      EXPECT_THAT(words, HasSubstr("it is running for"));
    } else {
      ended.wait();
      EXPECT_TRUE(was_cancelled);
    }
    agent.shutdown();
  });
}

TEST(Agent, ALostWorkerIsNamedAndTheOthersEnd) {
  const auto words = hasten::testing::run_ranks_collecting(3, [](process::Process& process) {
    std::promise<void> started;
    Functions functions;
    functions.add("never", [&] {
      started.set_value();
      return Promise<int64_t>().future().then([](int64_t x) { return x; });
    });
    functions.add("hold", [&] {
      static auto* const kept = new std::vector<Promise<int64_t>>;
      kept->emplace_back();
      started.set_value();
      return kept->back().future();
    });
    {
      Agent agent(process, functions, {.name = "w" + std::to_string(process.rank())});
      if (process.rank() == 2) {
        started.get_future().wait();
        return;  // leaves without shutdown(): the agent goes, as a process that ends does
      }
      if (process.rank() == 0) {
        const std::string lost = words_of_throw<CommError>([&] { agent.call<int64_t>("w2", "hold"); });
        EXPECT_THAT(lost, HasSubstr("rank 2 'w2'"));
        EXPECT_THAT(lost, HasSubstr("hold()"));
        EXPECT_THAT(words_of_throw<CommError>([&] { agent.call<int64_t>("w2", "hold"); }), HasSubstr("w2"));
      }
      agent.shutdown();
    }
  });

  EXPECT_THAT(words[0], HasSubstr("lost before the end: rank 2 'w2'"));
  EXPECT_THAT(words[1], HasSubstr("rank 2 'w2'"));
}

TEST(Agent, HandlersCallEachOtherInARingWithoutDeadlock) {
  run_ranks(2, [](process::Process& process) {
    Agent* self = nullptr;
    std::promise<void> made;
    auto ready = made.get_future().share();
    Functions functions;
    functions.add("ring", [&](int64_t depth) -> int64_t {
      ready.wait();
      return depth == 0 ? 0 : 1 + self->call<int64_t>(1 - self->worker().id, "ring", depth - 1);
    });
    Agent agent(process, functions, {.num_threads = 2, .max_threads = 64});
    self = &agent;
    made.set_value();

    EXPECT_EQ(agent.call<int64_t>(1 - process.rank(), "ring", 20), 20);
    EXPECT_EQ(agent.call<int64_t>(1 - process.rank(), "ring", 20), 20);
    agent.shutdown();
  });
}

TEST(Agent, AnInlineHandlerMayNotWait) {
  run_ranks(2, [](process::Process& process) {
    Agent* self = nullptr;
    std::promise<void> made;
    auto ready = made.get_future().share();
    Functions functions = test_functions();
    functions.add("waits",
                  [&] {
                    ready.wait();
                    return self->call<int64_t>(1 - self->worker().id, "twice", 1);
                  },
                  {.where = Where::kInline});
    Agent agent(process, functions);
    self = &agent;
    made.set_value();
    if (process.rank() == 0) {
      EXPECT_THAT(words_of_throw<UsageError>([&] { agent.call<int64_t>("worker1", "waits"); }),
                  HasSubstr("Where::kInline"));
    }
    agent.shutdown();
  });
}

Future<int64_t> chained(Future<int64_t> first) {
  const int64_t x = co_await first;
  co_return x + 1;
}

TEST(Agent, AHandlerMayAnswerLaterByAPromiseOrACoroutine) {
  run_ranks(2, [](process::Process& process) {
    std::mutex mutex;
    std::vector<Promise<int64_t>> waiting;
    Functions functions;
    functions.add("meet", [&](int64_t count) {
      const std::lock_guard lock(mutex);
      Promise<int64_t> mine;
      waiting.push_back(mine);
      if (static_cast<int64_t>(waiting.size()) == count) {
        for (const auto& one : waiting) one.set(count);
      }
      return mine.future();
    });
    functions.add("coroutine", [&](int64_t x) { return chained(Future<int64_t>(x)); });
    Agent agent(process, functions, {.num_threads = 1});
    if (process.rank() == 0) {
      std::vector<Future<int64_t>> all;
      for (int i = 0; i < 5; ++i) all.push_back(agent.call_async<int64_t>("worker1", "meet", 5));
      for (const int64_t value : wait_all(all)) EXPECT_EQ(value, 5);
      EXPECT_EQ(agent.call<int64_t>("worker1", "coroutine", 1), 2);
      const auto later = agent.call_async<int64_t>("worker1", "coroutine", 1).then([](int64_t x) { return x * 10; });
      EXPECT_EQ(later.wait(), 20);
    }
    agent.shutdown();
  });
}

TEST(Agent, GathersAndWaitsForNamedWorkers) {
  run_ranks(3, [](process::Process& process) {
    Agent agent(process, {});

    const auto all = agent.all_gather(process.rank() * 10);
    EXPECT_EQ(all, (std::map<std::string, int>{{"worker0", 0}, {"worker1", 10}, {"worker2", 20}}));
    if (process.rank() < 2) {
      EXPECT_EQ(agent.all_gather(process.rank(), {"worker0", "worker1"}).size(), 2u);
    }
    agent.barrier();
    agent.shutdown();
  });
}

TEST(Agent, CallsOperatorsWhereTheyAreServed) {
  run_ranks(2, [](process::Process& process) {
    Agent agent(process, {}, {.serve_operators = process.rank() == 1});
    if (process.rank() == 0) {
      const auto x = torch::ones({2});
      EXPECT_TRUE(at::equal(agent.call_operator("worker1", "aten::add.Tensor", {x, x})[0].toTensor(), x + x));
      EXPECT_THAT(words_of_throw<UsageError>([&] { agent.call_operator("worker1", "aten::no_such", {x}); }),
                  HasSubstr("no operator"));
    } else {
      EXPECT_THAT(words_of_throw<UsageError>([&] { agent.call_operator("worker0", "aten::neg", {}); }),
                  HasSubstr("does not serve"));
    }
    agent.shutdown();
  });
}

TEST(Agent, AStrandKeepsTheOrderOfACallersCalls) {
  run_ranks(2, [](process::Process& process) {
    std::vector<int64_t> order;
    Functions functions;
    functions.add("note", [&](int64_t x) { order.push_back(x); }, {.where = Where::kSerial});
    functions.add("order", [&] { return order; }, {.where = Where::kSerial, .strand = "other"});
    Agent agent(process, functions);
    if (process.rank() == 0) {
      agent.wait_all([&] {
        for (int64_t i = 0; i < 500; ++i) (void)agent.call_async<void>("worker1", "note", i);
      });
      const auto seen = agent.call<std::vector<int64_t>>("worker1", "order");
      ASSERT_EQ(seen.size(), 500u);
      EXPECT_TRUE(std::is_sorted(seen.begin(), seen.end()));
    }
    agent.shutdown();
  });
}

TEST(Agent, AFloodedFunctionIsRefusedAtOnce) {
  run_ranks(2, [](process::Process& process) {
    std::promise<void> open;
    auto gate = open.get_future().share();
    Functions functions;
    functions.add("slow", [gate] { gate.wait(); }, {.where = Where::kSerial, .most_waiting = 3});
    functions.add("open", [&] { open.set_value(); });
    Agent agent(process, functions);
    if (process.rank() == 0) {
      std::vector<Future<void>> calls;
      for (int i = 0; i < 8; ++i) calls.push_back(agent.call_async<void>("worker1", "slow"));
      EXPECT_THAT(words_of_throw<RemoteError>([&] { calls.back().wait(); }), HasSubstr("most_waiting"));
      agent.call<void>("worker1", "open");
      calls.front().wait();
    }
    agent.shutdown();
  });
}

TEST(Agent, ARingOfMoreWaitingHandlersThanAllowedListsWhatTheyWaitFor) {
  run_ranks(2, [](process::Process& process) {
    Agent* self = nullptr;
    std::promise<void> made;
    auto ready = made.get_future().share();
    Functions functions;
    functions.add("ring", [&](int64_t depth) -> int64_t {
      ready.wait();
      return depth == 0 ? 0 : 1 + self->call<int64_t>(1 - self->worker().id, "ring", depth - 1);
    });
    Agent agent(process, functions, {.num_threads = 2, .max_threads = 3});
    self = &agent;
    made.set_value();
    if (process.rank() == 0) {
      const std::string words = words_of_throw<UsageError>([&] { agent.call<int64_t>("worker1", "ring", 20); });
      EXPECT_THAT(words, HasSubstr("3 handlers wait already (max_threads)"));
      EXPECT_THAT(words, HasSubstr("for ring() at rank"));
    }
    agent.shutdown();
  });
}

TEST(Agent, ANestedCallHasNoMoreTimeThanTheCallItServes) {
  std::promise<std::string> inner;
  run_ranks(2, [&](process::Process& process) {
    Agent* self = nullptr;
    std::promise<void> made;
    auto ready = made.get_future().share();
    Functions functions;
    functions.add("block", [] {
      while (!call().cancelled()) std::this_thread::yield();
    });
    functions.add("outer", [&] {
      ready.wait();
      inner.set_value(words_of_throw<CommError>([&] { self->call<void>("worker0", "block"); }));
      while (!call().cancelled()) std::this_thread::yield();  // the caller's time runs out first
    });
    Agent agent(process, functions);
    self = &agent;
    made.set_value();
    if (process.rank() == 0) {
      EXPECT_THAT(words_of_throw<CommError>([&] { agent.with({.timeout_s = 0.1}).call<void>("worker1", "outer"); }),
                  HasSubstr("outer()"));
      auto words = inner.get_future();
      ASSERT_EQ(words.wait_for(std::chrono::seconds(30)), std::future_status::ready) << "it has the agent's 60 s";
      EXPECT_THAT(words.get(), HasSubstr("block() at rank 0 'worker0' did not end"));
    }
    agent.shutdown();
  });
}

TEST(Agent, ATensorChangedInPlaceBeforeItWasSentIsNamed) {
  std::promise<void> reached, open;
  auto gate = open.get_future().share();
  run_ranks(2, [&](process::Process& process) {
    Functions functions = test_functions();
    // The callee's reading thread: nothing more is taken from the caller.
    functions.add("hold",
                  [&] {
                    reached.set_value();
                    gate.wait();
                  },
                  {.where = Where::kInline});
    Agent agent(process, functions);
    if (process.rank() == 0) {
      const auto hold = agent.call_async<void>("worker1", "hold");
      reached.get_future().wait();
      const auto x = torch::ones({1 << 21});
      const auto late = agent.async<&add_to>("worker1", x, 1.0);
      x.add_(1);
      open.set_value();
      EXPECT_THAT(words_of_throw<UsageError>([&] { late.wait(); }),
                  HasSubstr("was changed in place before it was sent"));
      hold.wait();
    }
    agent.shutdown();
  });
}

TEST(Agent, ASecondAgentOfAProcessCannotDoAutograd) {
  run_ranks(2, [](process::Process& process) {
    Agent agent(process, test_functions());
    // At least one of two agents in one process is not the first.
    const std::string words = words_of_throw<UsageError>([&] { agent.autograd([](AutogradContext&) {}); });
    const auto all = agent.all_gather(words);
    const bool refused = all.at("worker0").find("needs the first agent of its process") != std::string::npos ||
                         all.at("worker1").find("needs the first agent of its process") != std::string::npos;
    EXPECT_TRUE(refused) << words;
    agent.shutdown();
  });
}

TEST(Agent, LeaksAreListedWhereThatIsWanted) {
  ::testing::internal::CaptureStderr();
  run_ranks(2, [](process::Process& process) {
    Agent agent(process, test_functions(), {.report_leaks = process.rank() == 1});
    RRef<int64_t> kept;
    if (process.rank() == 0) {
      kept = agent.remote<&plus_one>("worker1", 1);
      kept.ready().wait();
    }
    agent.shutdown();
  });

  EXPECT_THAT(::testing::internal::GetCapturedStderr(), HasSubstr("an RRef's value still exists at shutdown"));
}

TEST(Agent, ATensorOnADeviceWithoutAPlaceIsRefusedByName) {
  run_ranks(2, [](process::Process& process) {
    Functions functions = test_functions();
    functions.add("meta", [] { return torch::empty({2}, at::kMeta); });
    Agent agent(process, functions);
    if (process.rank() == 0) {
      const auto x = torch::empty({2}, at::kMeta);
      const std::string words = words_of_throw<UsageError>([&] { agent.sync<&add_to>("worker1", x, 1); });
      EXPECT_THAT(words, HasSubstr("tensor 0 of "));
      EXPECT_THAT(words, HasSubstr("is on meta, which has no place at rank 1 'worker1'"));
      EXPECT_THAT(words_of_throw<UsageError>([&] { agent.call<at::Tensor>("worker1", "meta"); }),
                  HasSubstr("the handler's result is on meta"));
    }
    agent.shutdown();
  });
}

TEST(Agent, FaultsOfDeviceMapsAreRefusedOnAllRanks) {
  const auto words = hasten::testing::run_ranks_collecting(2, [](process::Process& process) {
    RpcOptions options;
    const c10::Device gpu(c10::kCUDA, 0);
    if (process.rank() == 0) options.device_maps = {{"worker2", {{gpu, gpu}}}};
    Agent agent(process, test_functions(), options);
  });

  for (const std::string& word : words)
    EXPECT_THAT(word, HasSubstr("'worker0' maps devices to 'worker2', which is no worker"));
}

// Scopes of calls as a profiler sees them.
struct SeenScopes {
  std::mutex mutex;
  std::vector<std::pair<std::string, int64_t>> scopes;
  static SeenScopes& get() {
    static auto* const seen = new SeenScopes;
    return *seen;
  }
  static std::unique_ptr<at::ObserverContext> note(const at::RecordFunction& function) {
    const std::lock_guard lock(get().mutex);
    const std::string name = function.name();
    if (name.starts_with("rpc_")) get().scopes.emplace_back(name, function.seqNr());
    return nullptr;
  }
};

TEST(Agent, ACallIsOneScopeOnBothSidesForAProfiler) {
  const auto handle =
      at::addGlobalCallback(at::RecordFunctionCallback(&SeenScopes::note).scopes({at::RecordScope::USER_SCOPE}));
  run_ranks(2, [](process::Process& process) {
    Agent agent(process, test_functions());
    if (process.rank() == 0) {
      EXPECT_EQ(agent.call<int64_t>("worker1", "twice", 1), 2);
      EXPECT_EQ(agent.call_async<int64_t>("worker1", "twice", 1).wait(), 2);
      (void)agent.remote<&plus_one>("worker1", 1).to_here();
    }
    agent.shutdown();
  });
  at::removeCallback(handle);

  std::map<std::string, std::multiset<int64_t>> by_name;
  for (const auto& [name, number] : SeenScopes::get().scopes) by_name[name].insert(number);
  ASSERT_EQ(by_name.count("rpc_sync#twice(worker0 -> worker1)"), 1u);
  ASSERT_EQ(by_name.count("rpc_async#twice(worker0 -> worker1)"), 1u);
  EXPECT_EQ(by_name.count("rpc_async#hasten.fetch(worker0 -> worker1)"), 1u);
  for (const auto& [name, numbers] : by_name) {
    EXPECT_EQ(numbers.size(), 2u) << name;
    EXPECT_EQ(*numbers.begin(), *numbers.rbegin()) << name << ": one number on both sides";
  }
}

TEST(Agent, HandlersRecordForTheThreadThatProfilesTheServer) {
  run_ranks(2, [](process::Process& process) {
    std::atomic<int> num_seen = 0;
    Functions functions;
    functions.add("probe", [&] { num_seen += at::hasThreadLocalCallbacks() ? 1 : 0; });
    Agent agent(process, functions);
    process.group().barrier();
    if (process.rank() == 1) {
      const auto handle = at::addThreadLocalCallback(at::RecordFunctionCallback(&SeenScopes::note));
      agent.profile_server([&] {
        process.group().barrier();
        process.group().barrier();
      });
      at::removeCallback(handle);
      EXPECT_EQ(num_seen.load(), 1);
    } else {
      process.group().barrier();
      agent.call<void>("worker1", "probe");
      process.group().barrier();
    }
    process.group().barrier();
    if (process.rank() == 0) agent.call<void>("worker1", "probe");
    agent.shutdown();
    EXPECT_EQ(num_seen.load(), process.rank()) << "only while it is profiled";
  });
}

TEST(Agent, CountsByWorkerAndByFunction) {
  run_ranks(2, [](process::Process& process) {
    Agent agent(process, test_functions());
    agent.barrier();
    if (process.rank() == 0) {
      for (int i = 0; i < 5; ++i) agent.sync<&plus_one>("worker1", i);
      EXPECT_GE(agent.stats().workers.at(1).num_calls_sent, 5);
      EXPECT_GT(agent.stats().workers.at(1).bytes_received, 0);
    }
    agent.barrier();
    if (process.rank() == 1) {
      EXPECT_GE(agent.stats().workers.at(0).num_calls_served, 5);
      EXPECT_EQ(agent.stats().workers.at(0).name, "worker0");
    }
    agent.shutdown();
  });
}

}  // namespace
}  // namespace hasten::rpc
