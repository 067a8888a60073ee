// References to values at other workers: use, passing on, ends, errors, losses; modules that live elsewhere.
#include "hasten/rpc/rref.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <torch/torch.h>

#include <atomic>
#include <functional>
#include <thread>

#include "hasten/rpc/errors.h"
#include "hasten/rpc/remote_module.h"
#include "hasten/rpc/rpc.h"
#include "support/ranks.h"

namespace hasten::rpc {
namespace {

using hasten::testing::run_ranks;
using ::testing::HasSubstr;

struct Counter {
  explicit Counter(int64_t start) : value(start) {
    if (start < 0) throw std::invalid_argument("a counter starts at 0 or more");
  }
  virtual ~Counter() = default;
  int64_t add(int64_t x) {
    const int64_t before = value;
    std::this_thread::yield();
    return value = before + x;  // loses additions unless the calls come one by one
  }
  int64_t get() const { return value; }
  int64_t value;
};
struct Named {
  std::string name = "named";
  std::string get_name() const { return name; }
};
struct BestCounter : Named, Counter {
  explicit BestCounter(int64_t start) : Counter(start) {}
};

at::Tensor doubled(const at::Tensor& x) {
  return 2 * x;
}
int64_t use(RRef<Counter> counter, int64_t x) {
  return counter.sync<&Counter::add>(x);
}
RRef<Counter> give_back(RRef<Counter> counter) {
  return counter;
}

Functions rref_functions() {
  Functions functions;
  functions.add_class<Counter, int64_t>().add_class<BestCounter, int64_t>();
  functions.add<&Counter::add>({.where = Where::kPerObject}).add<&Counter::get>({.where = Where::kPerObject});
  functions.add<&doubled>().add<&use>().add<&give_back>().add<&Named::get_name>();
  return functions;
}

template <class E, class F>
std::string words_thrown(const F& fn) {
  try {
    fn();
  } catch (const E& error) {
    return error.what();
  }
  return "nothing was thrown";
}

// Drops come by themselves a little later than the reference's end; shutdown() would hide one that never comes.
// A call that has answered may still hold its arguments for a moment.
void expect_becomes_zero(const std::function<int64_t()>& count) {
  for (int i = 0; i < 5000 && count() > 0; ++i) std::this_thread::sleep_for(std::chrono::milliseconds(1));
  EXPECT_EQ(count(), 0);
}

void expect_no_objects(const Agent& agent) {
  expect_becomes_zero([&] { return agent.stats().num_objects; });
}

TEST(RRef, ConstructsCallsAndFetches) {
  run_ranks(3, [](process::Process& process) {
    Agent agent(process, rref_functions());
    if (process.rank() == 0) {
      for (int owner = 0; owner < 3; ++owner) {
        const auto counter = agent.remote<Counter>(owner, 10);
        EXPECT_EQ(counter.sync<&Counter::add>(5), 15);
        EXPECT_EQ(counter.owner().id, owner);
        EXPECT_EQ(counter.is_owner(), owner == 0);
        counter.ready().wait();
        EXPECT_TRUE(counter.confirmed());
        const auto x = torch::ones({2});
        EXPECT_TRUE(at::equal(agent.remote<&doubled>(owner, x).to_here(), 2 * x));
        EXPECT_TRUE(at::equal(agent.remote<&doubled>(owner, x).to_here_async().wait(), 2 * x));
        if (owner == 0) {
          EXPECT_EQ(counter.local_value().value, 15);
        } else {
          EXPECT_THAT(words_thrown<UsageError>([&] { counter.local_value(); }), HasSubstr("owns"));
        }
      }
    }
    agent.barrier();
    expect_no_objects(agent);
    agent.shutdown();
  });
}

TEST(RRef, PassesToAThirdWorkerAndBackAndTheValueEndsWithTheLastCopy) {
  run_ranks(4, [](process::Process& process) {
    Agent agent(process, rref_functions());
    if (process.rank() != 3) {
      const auto counter = agent.remote<Counter>("worker3", 0);
      std::vector<Future<int64_t>> uses;
      for (int i = 0; i < 30; ++i) uses.push_back(agent.async<&use>(i % 4, counter, 1));
      auto back = agent.sync<&give_back>("worker1", agent.sync<&give_back>("worker2", counter));
      (void)agent.sync<&give_back>("worker3", counter);
      wait_all(uses);
      EXPECT_EQ(back.sync<&Counter::get>(), 30);
    }
    agent.barrier();
    expect_no_objects(agent);
    expect_becomes_zero([&] { return agent.stats().num_references; });
    agent.shutdown();
  });
}

TEST(RRef, CallsOnOneObjectComeOneByOne) {
  run_ranks(3, [](process::Process& process) {
    Agent agent(process, rref_functions());
    std::optional<RRef<Counter>> counter;
    if (process.rank() == 0) {
      counter = agent.remote<Counter>("worker2", 0);
      std::vector<Future<int64_t>> all;
      for (int i = 0; i < 300; ++i) all.push_back(counter->async<&Counter::add>(1));
      wait_all(all);
      EXPECT_EQ(counter->sync<&Counter::get>(), 300);
    }
    counter.reset();
    agent.shutdown();
  });
}

TEST(RRef, TheConstructorsErrorStaysInTheReference) {
  run_ranks(2, [](process::Process& process) {
    Agent agent(process, rref_functions());
    if (process.rank() == 0) {
      const auto broken = agent.remote<Counter>("worker1", -1);
      EXPECT_THAT(words_thrown<RemoteError>([&] { broken.ready().wait(); }),
                  HasSubstr("a counter starts at 0 or more"));
      EXPECT_THAT(words_thrown<RemoteError>([&] { broken.sync<&Counter::get>(); }),
                  HasSubstr("a counter starts at 0 or more"));
    }
    agent.shutdown();
  });
}

TEST(RRef, ADerivedValueServesItsBases) {
  run_ranks(2, [](process::Process& process) {
    Agent agent(process, rref_functions());
    if (process.rank() == 0) {
      const RRef<BestCounter> best = agent.remote<BestCounter>("worker1", 7);
      const RRef<Counter> counter = best;
      const RRef<Named> named = best;
      EXPECT_EQ(counter.sync<&Counter::add>(1), 8);
      EXPECT_EQ(named.sync<&Named::get_name>(), "named");
      EXPECT_EQ(best.remote<&Counter::get>().to_here(), 8);
    }
    agent.shutdown();
  });
}

TEST(RRef, AnOwnValueIsSharedAndNotCopied) {
  run_ranks(2, [](process::Process& process) {
    Agent agent(process, rref_functions());
    const auto own = agent.rref(std::make_shared<Counter>(process.rank()));

    EXPECT_EQ(agent.sync<&use>(1 - process.rank(), own, 10), process.rank() + 10);
    EXPECT_EQ(own.local_value().value, process.rank() + 10);
    EXPECT_TRUE(at::equal(agent.rref(torch::ones({2})).to_here(), torch::ones({2})));
    EXPECT_THAT(words_thrown<UsageError>([] { RRef<Counter>().owner(); }), HasSubstr("empty RRef"));
    agent.shutdown();
  });
}

struct Net : torch::nn::Module {
  explicit Net(int64_t width) : fc(register_module("fc", torch::nn::Linear(width, 2))) {}
  at::Tensor forward(const at::Tensor& x) { return fc(x); }
  torch::nn::Linear fc;
};
at::Tensor call_module(const RemoteModule<Net>& net, const at::Tensor& x) {
  return net.forward(x);
}

TEST(RemoteModule, ForwardsMovesItsStateAndTravels) {
  run_ranks(3, [](process::Process& process) {
    Functions functions;
    add_module<Net, int64_t>(functions).add<&call_module>();
    Agent agent(process, functions);
    if (process.rank() == 0) {
      const RemoteModule<Net> net(agent, "worker1/cpu", 3);
      Net own(3);
      std::vector<std::pair<std::string, at::Tensor>> state;
      for (const auto& one : own.named_parameters()) state.emplace_back(one.key(), one.value().detach());
      const auto x = torch::rand({4, 3});

      net.load_state_dict(state);
      net.eval();

      EXPECT_TRUE(at::equal(net.forward(x).detach(), own.forward(x).detach()));
      EXPECT_TRUE(at::equal(agent.sync<&call_module>("worker2", net, x).detach(), own.forward(x).detach()));
      EXPECT_TRUE(at::equal(net.forward_async(x).wait().detach(), own.forward(x).detach()));
      const RemoteModule<Net> again(net.module_rref());
      EXPECT_TRUE(at::equal(again.forward(x).detach(), own.forward(x).detach()));
      again.train();
      again.to(c10::kCPU);
      again.zero_grad();
      EXPECT_EQ(net.remote_parameters().size(), 2u);
      EXPECT_EQ(net.remote_parameters(false).size(), 0u) << "they belong to a submodule";
      EXPECT_EQ(net.state_dict().at(0).first, "fc.weight");
      EXPECT_THAT(words_thrown<UsageError>([&] { net.load_state_dict({{"nothing", x}}); }), HasSubstr("nothing"));
      EXPECT_THAT(words_thrown<UsageError>([&] { RemoteModule<Net>(agent, "worker1/", 3); }),
                  HasSubstr("worker and a device"));
    }
    agent.shutdown();
  });
}

}  // namespace
}  // namespace hasten::rpc
