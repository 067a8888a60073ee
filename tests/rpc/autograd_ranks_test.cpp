// Distributed autograd in real processes, since libtorch has one container a process: gradients equal those of one
// process, also with outputs that the loss does not use; optimizers; killed workers.
#include "hasten/rpc/autograd.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <torch/torch.h>

#include <csignal>
#include <future>
#include <iostream>
#include <random>
#include <thread>

#include "hasten/optim/apex_adam.h"
#include "hasten/optim/apex_sgd.h"
#include "hasten/optim/lamb.h"
#include "hasten/optim/novograd.h"
#include "hasten/rpc/distributed_optimizer.h"
#include "hasten/rpc/errors.h"
#include "hasten/rpc/rpc.h"
#include "rpc/layers.h"

namespace hasten::rpc {
namespace {

using ::testing::HasSubstr;

HASTEN_PROCESS_CASE(gradients) {
  process::Process process({.cpu = true});
  Agent agent(process, layer_functions());
  if (process.rank() == 0) {
    const auto x = torch::randn({3, 4}).requires_grad_();
    const auto one = agent.remote<Layer>(1, 1), two = agent.remote<Layer>(2, 2);
    const auto w1 = weight_of(1).requires_grad_(), w2 = weight_of(2).requires_grad_();

    // A diamond: x through both, one output through the other, one output that the loss does not use, and a failed
    // call.
    agent.autograd([&](AutogradContext& context) {
      const auto a = one.sync<&Layer::forward>(x), b = two.sync<&Layer::forward>(x);
      const auto both = one.sync<&Layer::both>(b);
      const auto unused = two.sync<&Layer::forward>(a);
      try {
        one.sync<&Layer::fail>(a);
      } catch (const RemoteError&) {
      }
      const auto chained = one.sync<&Layer::chain>(two, a);
      const auto loss = (a * b).sum() + both[0].pow(2).sum() + chained.sum();
      context.backward({loss}, {.retain_graph = true});

      const auto la = torch::tanh(x.matmul(w1)), lb = torch::tanh(x.matmul(w2));
      const auto lc = torch::tanh(torch::tanh(la.matmul(w1)).matmul(w2));
      const auto local = (la * lb).sum() + torch::tanh(lb.matmul(w1)).pow(2).sum() + lc.sum();
      const auto expected = torch::autograd::grad({local}, {x, w1, w2});
      const auto check = [&](double factor) {
        const double worst = std::max({difference(context.gradient(x), factor * expected[0]),
                                       difference(one.sync<&Layer::gradient>(context), factor * expected[1]),
                                       difference(two.sync<&Layer::gradient>(context), factor * expected[2])});
        std::cout << "difference " << worst << std::endl;
        if (worst > 1e-5) throw std::runtime_error("gradients differ");
      };
      check(1);
      context.backward({loss}, {.retain_graph = true});
      check(2);
    });
    CHECK_THAT(!x.grad().defined());
    // The references themselves: to_here is a recorded call.
    agent.autograd([&](AutogradContext& context) {
      context.backward({agent.remote<Layer>(1, 1).remote<&Layer::forward>(x).to_here().sum()});
      const auto expected = torch::autograd::grad({torch::tanh(x.matmul(w1)).sum()}, {x});
      if (difference(context.gradient(x), expected[0]) > 1e-5) throw std::runtime_error("to_here lost the gradient");
    });
    try {
      agent.autograd([&](AutogradContext& context) { context.backward({x}); });
      return 1;
    } catch (const UsageError& error) {
      std::cout << error.what() << std::endl;
    }
  }
  agent.shutdown();
  return 0;
}

HASTEN_PROCESS_CASE(random_graphs) {
  process::Process process({.cpu = true});
  Agent agent(process, layer_functions());
  if (process.rank() == 0) {
    std::mt19937 random(11);
    for (int round = 0; round < 25; ++round) {
      std::vector<RRef<Layer>> layers;
      std::vector<at::Tensor> weights;
      for (int rank = 0; rank < process.world_size(); ++rank) {
        layers.push_back(agent.remote<Layer>(rank, rank));
        weights.push_back(weight_of(rank).requires_grad_());
      }
      const auto x = torch::randn({2, 4}).requires_grad_();
      std::vector<at::Tensor> remote = {x}, local = {x};
      agent.autograd([&](AutogradContext& context) {
        for (int step = 0; step < 8; ++step) {
          const size_t input = random() % remote.size(), layer = random() % layers.size();
          if (random() % 4 == 0) {
            const size_t next = random() % layers.size();
            remote.push_back(layers[layer].sync<&Layer::chain>(layers[next], remote[input]));
            local.push_back(torch::tanh(torch::tanh(local[input].matmul(weights[layer])).matmul(weights[next])));
          } else {
            remote.push_back(layers[layer].sync<&Layer::forward>(remote[input]));
            local.push_back(torch::tanh(local[input].matmul(weights[layer])));
          }
        }
        const size_t used = 1 + random() % (remote.size() - 1);
        context.backward({remote[used].pow(2).sum()});
        auto inputs = weights;
        inputs.push_back(x);
        const auto expected = torch::autograd::grad({local[used].pow(2).sum()}, inputs, {}, false, false, true);
        for (size_t i = 0; i < layers.size(); ++i) {
          auto got = layers[i].sync<&Layer::gradient>(context);
          const auto want = expected[i].defined() ? expected[i] : torch::zeros({4, 4});
          if (!got.defined()) got = torch::zeros({4, 4});
          if (difference(got, want) > 1e-5)
            throw std::runtime_error("seed 11, round " + std::to_string(round) + ": gradients differ");
        }
        if (difference(context.gradient(x), expected.back()) > 1e-5)
          throw std::runtime_error("the input's gradient differs");
      });
    }
  }
  agent.shutdown();
  return 0;
}

HASTEN_PROCESS_CASE(optimizer) {
  process::Process process({.cpu = true});
  Agent agent(process, layer_functions());
  if (process.rank() == 0) {
    const auto run_with = [&](bool fused, auto options, auto make_local, auto tag) {
      using O = decltype(tag);
      const auto one = agent.remote<Layer>(1, 1), own = agent.remote<Layer>(0, 0);
      const DistributedOptimizer<typename O::type> optimizer(
          agent, {one.sync<&Layer::weight_rref>(), own.sync<&Layer::weight_rref>()}, options, {.fused = fused});
      const auto w1 = weight_of(1).requires_grad_(), w0 = weight_of(0).requires_grad_();
      const auto local = make_local(std::vector<at::Tensor>{w1, w0}, options);
      for (int step = 0; step < 10; ++step) {
        const auto x = torch::randn({3, 4});
        agent.autograd([&](AutogradContext& context) {
          context.backward({own.sync<&Layer::forward>(one.sync<&Layer::forward>(x)).pow(2).sum()});
          optimizer.step(context);
        });
        local->zero_grad();
        torch::tanh(torch::tanh(x.matmul(w1)).matmul(w0)).pow(2).sum().backward();
        local->step();
      }
      return std::max(difference(one.sync<&Layer::value>(), w1.detach()),
                      difference(own.sync<&Layer::value>(), w0.detach()));
    };
    const auto run = [&](auto options, auto make_local, auto tag) {
      return std::max(run_with(true, options, make_local, tag), run_with(false, options, make_local, tag));
    };
    struct Sgd {
      using type = torch::optim::SGD;
    };
    struct Adam {
      using type = torch::optim::Adam;
    };
    struct Adagrad {
      using type = torch::optim::Adagrad;
    };
    struct ApexAdam {
      using type = optim::ApexAdam;
    };
    struct ApexSgd {
      using type = optim::ApexSgd;
    };
    struct Lamb {
      using type = optim::Lamb;
    };
    struct NovoGrad {
      using type = optim::NovoGrad;
    };
    const auto make = [](auto tag) {
      using O = typename decltype(tag)::type;
      return [](std::vector<at::Tensor> p, auto o) { return std::make_unique<O>(p, o); };
    };
    CHECK_THAT(run(torch::optim::SGDOptions(0.1).momentum(0.9).weight_decay(0.01), make(Sgd{}), Sgd{}) < 1e-6);
    CHECK_THAT(run(torch::optim::AdamOptions(0.01).betas({0.8, 0.9}), make(Adam{}), Adam{}) < 1e-6);
    CHECK_THAT(run(torch::optim::AdagradOptions(0.05), make(Adagrad{}), Adagrad{}) < 1e-6);
    CHECK_THAT(run(optim::ApexAdamOptions(0.01).weight_decay(0.1), make(ApexAdam{}), ApexAdam{}) < 1e-6);
    CHECK_THAT(run(optim::ApexSgdOptions(0.1).momentum(0.9), make(ApexSgd{}), ApexSgd{}) < 1e-6);
    CHECK_THAT(run(optim::LambOptions(0.01).max_grad_norm(0), make(Lamb{}), Lamb{}) < 1e-6);
    CHECK_THAT(run(optim::NovoGradOptions(0.01), make(NovoGrad{}), NovoGrad{}) < 1e-6);
  }
  agent.shutdown();
  return 0;
}

HASTEN_PROCESS_CASE(average) {
  process::Process process({.cpu = true});
  const auto trainers = process.group().subgroup({0, 1});
  Agent agent(process, layer_functions());
  if (process.rank() < 2) {
    const auto layer = agent.remote<Layer>(2, 2);
    const auto head = weight_of(5).requires_grad_(), both_head = weight_of(5).requires_grad_();
    const auto w2 = weight_of(2);
    const auto x = torch::randn({4, 4}, at::make_generator<at::CPUGeneratorImpl>(uint64_t{8}));
    agent.autograd([&](AutogradContext& context) {
      const auto mine = x.slice(0, 2 * process.rank(), 2 * process.rank() + 2);
      context.backward({layer.sync<&Layer::forward>(mine).matmul(head).pow(2).mean()});
      average_gradients(context, {head}, *trainers);
      torch::tanh(x.matmul(w2)).matmul(both_head).pow(2).mean().backward();
      if (difference(context.gradient(head), both_head.grad()) > 1e-6) throw std::runtime_error("the mean differs");
    });
  }
  agent.shutdown();
  return 0;
}

void wait_for_ever() {
  std::this_thread::sleep_for(std::chrono::hours(1));
}

HASTEN_PROCESS_CASE(killed) {
  process::Process process({.cpu = true});
  Functions functions = layer_functions();
  functions.add<&wait_for_ever>();
  Agent agent(process, functions, {.name = "w" + std::to_string(process.rank())});
  if (process.rank() == 0) {
    const auto layer = agent.remote<Layer>("w2", 2);
    layer.ready().wait();
    const auto call = agent.async<&wait_for_ever>("w2");
    std::cout << "under way" << std::endl;
    try {
      call.wait();
      return 1;
    } catch (const CommError& error) {
      std::cout << error.what() << std::endl;
    }
    try {
      layer.sync<&Layer::value>();
      return 1;
    } catch (const CommError& error) {
      std::cout << error.what() << std::endl;
    }
  }
  try {
    agent.shutdown();
    return 1;
  } catch (const CommError& error) {
    std::cout << error.what() << std::endl;
  }
  return 0;
}

// A worker that is stopped is not lost: calls end by their timeout, which says so, and it goes on later.
HASTEN_PROCESS_CASE(stopped) {
  process::Process process({.cpu = true});
  Agent agent(process, layer_functions(), {.name = "w" + std::to_string(process.rank())});
  if (process.rank() == 0) {
    const auto layer = agent.remote<Layer>("w1", 1);
    layer.ready().wait();
    std::cout << "under way" << std::endl;
    for (std::string words; words.find("its process is stopped") == std::string::npos;) {
      try {
        layer.with({.timeout_s = 0.2}).sync<&Layer::value>();
      } catch (const CommError& error) {
        words = error.what();
      }
    }
    std::cout << "said so" << std::endl;
    layer.sync<&Layer::value>();
  }
  agent.shutdown();
  return 0;
}

HASTEN_PROCESS_CASE(killed_in_backward) {
  process::Process process({.cpu = true});
  Agent agent(process, layer_functions(), {.name = "w" + std::to_string(process.rank())});
  if (process.rank() == 0) {
    const auto x = torch::randn({3, 4}).requires_grad_();
    const auto one = agent.remote<Layer>("w1", 1), two = agent.remote<Layer>("w2", 2);
    try {
      agent.autograd([&](AutogradContext& context) {
        const auto y = one.sync<&Layer::chain>(two, x);
        std::cout << "forward done" << std::endl;
        try {
          for (;;) two.sync<&Layer::value>();
        } catch (const CommError&) {
        }
        context.backward({y.sum()});
      });
      return 1;
    } catch (const Error& error) {
      std::cout << error.what() << std::endl;
    }
  }
  try {
    agent.shutdown();
    return 1;
  } catch (const CommError& error) {
    std::cout << error.what() << std::endl;
  }
  return 0;
}

// The workers' numbers of contexts, by a call of each.
Functions functions_with_contexts(Agent*& self, std::shared_future<void> made) {
  Functions functions = layer_functions();
  functions.add("contexts", [&self, made = std::move(made)] {
    made.wait();
    return self->stats().num_contexts;
  });
  return functions;
}

// Calls a worker until it is lost.
template <class Use>
void use_until_lost(const Use& use) {
  try {
    for (;;) use();
  } catch (const CommError&) {
  }
}

// Whether a number becomes 0 soon.
template <class Count>
bool becomes_zero(const Count& count) {
  const auto until = std::chrono::steady_clock::now() + std::chrono::seconds(20);
  while (count() != 0) {
    if (std::chrono::steady_clock::now() > until) return false;
    std::this_thread::sleep_for(std::chrono::milliseconds(5));
  }
  return true;
}

// A worker named by its rank, whose functions use its own agent.
struct WorkerWithContexts {
  process::Process process{{.cpu = true}};
  Agent* self = nullptr;
  std::promise<void> made;
  Agent agent{process,
              functions_with_contexts(self, made.get_future().share()),
              {.name = "w" + std::to_string(process.rank())}};

  WorkerWithContexts() {
    self = &agent;
    made.set_value();
  }
};

// Prints the error with which shutdown() ends after a loss; false if there is none.
bool ends_by_a_loss(Agent& agent) {
  try {
    agent.shutdown(20);
    return false;
  } catch (const CommError& error) {
    std::cout << error.what() << std::endl;
  }
  return true;
}

// Answers that need no gradient, of calls whose arguments do; they have been through another worker, too.
HASTEN_PROCESS_CASE(plain_answers) {
  WorkerWithContexts worker;
  Agent& agent = worker.agent;
  if (worker.process.rank() == 0) {
    const auto x = torch::randn({3, 4}).requires_grad_();
    const auto one = agent.remote<Layer>(1, 1), two = agent.remote<Layer>(2, 2);
    for (int i = 0; i < 20; ++i) {
      agent.autograd([&](AutogradContext& context) {
        const auto a = one.sync<&Layer::forward>(x);
        const auto plain = two.sync<&Layer::plain>(a) + two.sync<&Layer::plain>(x);
        context.backward({(a * plain).sum()});
        const auto expected = torch::autograd::grad({(torch::tanh(x.matmul(weight_of(1))) * plain).sum()}, {x});
        if (difference(context.gradient(x), expected[0]) > 1e-5) throw std::runtime_error("gradients differ");
      });
    }
    CHECK_THAT(becomes_zero([&] {
      return agent.stats().num_contexts + agent.call<int64_t>(1, "contexts") + agent.call<int64_t>(2, "contexts");
    }));
  }
  agent.shutdown();
  return 0;
}

// w1 has answered w2, which is killed: the gradient of that answer never comes, and the loss does not need it.
HASTEN_PROCESS_CASE(awaits_the_lost) {
  WorkerWithContexts worker;
  Agent& agent = worker.agent;
  if (worker.process.rank() == 0) {
    const auto x = torch::randn({3, 4}).requires_grad_();
    const auto one = agent.remote<Layer>("w1", 1), two = agent.remote<Layer>("w2", 2);
    try {
      agent.autograd([&](AutogradContext& context) {
        const auto y = one.sync<&Layer::forward>(x);
        const auto unused = two.sync<&Layer::chain>(one, x);
        std::cout << "forward done" << std::endl;
        use_until_lost([&] { two.sync<&Layer::value>(); });
        context.backward({y.sum()});
      });
      return 1;
    } catch (const Error& error) {
      std::cout << error.what() << std::endl;
    }
    CHECK_THAT(becomes_zero([&] { return agent.stats().num_pending; }));
    CHECK_THAT(becomes_zero([&] { return agent.stats().num_contexts + agent.call<int64_t>("w1", "contexts"); }));
  }
  return ends_by_a_loss(agent) ? 0 : 1;
}

// w2 has a context of w0's by a call of w1, which is killed: w0 does not know that w2 takes part.
HASTEN_PROCESS_CASE(context_over_the_lost) {
  WorkerWithContexts worker;
  Agent& agent = worker.agent;
  if (worker.process.rank() == 0) {
    const auto x = torch::randn({3, 4}).requires_grad_();
    const auto one = agent.remote<Layer>("w1", 1), two = agent.remote<Layer>("w2", 2);
    agent.autograd([&](AutogradContext&) {
      one.sync<&Layer::chain>(two, x);
      std::cout << "forward done" << std::endl;
      use_until_lost([&] { one.sync<&Layer::value>(); });
    });
    CHECK_THAT(becomes_zero([&] { return agent.call<int64_t>("w2", "contexts"); }));
  }
  return ends_by_a_loss(agent) ? 0 : 1;
}

// The worker that made a context is killed.
HASTEN_PROCESS_CASE(context_of_the_lost) {
  WorkerWithContexts worker;
  Agent& agent = worker.agent;
  if (worker.process.rank() == 2) {
    const auto one = agent.remote<Layer>("w1", 1), zero = agent.remote<Layer>("w0", 0);
    agent.autograd([&](AutogradContext&) {
      one.sync<&Layer::chain>(zero, torch::randn({3, 4}).requires_grad_());
      std::cout << "forward done" << std::endl;
      std::this_thread::sleep_for(std::chrono::hours(1));
    });
  }
  bool was_lost = false;
  try {
    agent.barrier({"w0", "w1"});
    for (;;) {
      if (worker.process.rank() == 0) agent.call<int64_t>("w2", "contexts");
      if (worker.process.rank() == 1) agent.call<int64_t>("w2", "contexts");
    }
  } catch (const CommError&) {
    was_lost = true;
  }
  CHECK_THAT(was_lost);
  CHECK_THAT(becomes_zero([&] { return agent.stats().num_contexts; }));
  return ends_by_a_loss(agent) ? 0 : 1;
}

TEST(Autograd, AnswersThatNeedNoGradientDoNotKeepAPassFromItsEnd) {
  expect_all_end_well(hasten::testing::run_processes(3, "plain_answers"));
}

TEST(Autograd, GradientsEqualThoseOfOneProcessWhateverTheLossUses) {
  const auto results = hasten::testing::run_processes(3, "gradients");

  expect_all_end_well(results);
  EXPECT_THAT(results[0].output, HasSubstr("no scalar"));
}

TEST(Autograd, RandomGraphsOfCallsHaveTheGradientsOfOneProcess) {
  expect_all_end_well(hasten::testing::run_processes(3, "random_graphs"));
}

TEST(DistributedOptimizer, StepsAsTheLocalOptimizerDoes) {
  expect_all_end_well(hasten::testing::run_processes(2, "optimizer"));
}

TEST(Autograd, TwoTrainersWithAveragedGradientsAreOneWithBothBatches) {
  expect_all_end_well(hasten::testing::run_processes(3, "average"));
}

TEST(Faults, AKilledWorkerIsNamedAndShutdownDoesNotWaitForIt) {
  hasten::testing::Processes processes(3, "killed");
  ASSERT_TRUE(processes.wait_for_output(0, "under way"));
  processes.signal(2, SIGKILL);

  const auto results = processes.wait(std::chrono::seconds(40));

  EXPECT_EQ(results[0].exit_code, 0) << results[0].output;
  EXPECT_EQ(results[1].exit_code, 0) << results[1].output;
  EXPECT_THAT(results[0].output, HasSubstr("rank 2 'w2' was lost while it ran"));
  EXPECT_THAT(results[0].output, HasSubstr("has ended"));
  EXPECT_THAT(results[1].output, HasSubstr("lost before the end: rank 2 'w2'"));
}

TEST(Faults, AStoppedWorkerIsNotLostAndTheTimeoutSaysSo) {
  hasten::testing::Processes processes(2, "stopped");
  ASSERT_TRUE(processes.wait_for_output(0, "under way"));
  processes.signal(1, SIGSTOP);
  EXPECT_TRUE(processes.wait_for_output(0, "said so"));
  processes.signal(1, SIGCONT);

  expect_all_end_well(processes.wait(std::chrono::seconds(40)));
}

TEST(Faults, AWorkerKilledBeforeTheBackwardEndsItWithAnError) {
  hasten::testing::Processes processes(3, "killed_in_backward");
  ASSERT_TRUE(processes.wait_for_output(0, "forward done"));
  processes.signal(2, SIGKILL);

  const auto results = processes.wait(std::chrono::seconds(40));

  EXPECT_EQ(results[0].exit_code, 0) << results[0].output;
  EXPECT_EQ(results[1].exit_code, 0) << results[1].output;
}

// Kills a worker of a case after its forward pass. The others end well, and shutdown() has waited for nobody.
void kill_after_forward(const std::string& name, int speaker, int victim) {
  hasten::testing::Processes processes(3, name);
  ASSERT_TRUE(processes.wait_for_output(speaker, "forward done"));
  processes.signal(victim, SIGKILL);

  const auto results = processes.wait(std::chrono::seconds(60));

  for (int rank = 0; rank < 3; ++rank) {
    if (rank == victim) continue;
    const auto& result = results[static_cast<size_t>(rank)];
    EXPECT_EQ(result.exit_code, 0) << "rank " << rank << ": " << result.output;
    EXPECT_THAT(result.output, HasSubstr("lost before the end: rank " + std::to_string(victim)));
  }
}

TEST(Faults, APassDoesNotAwaitGradientsOfALostWorker) {
  kill_after_forward("awaits_the_lost", 0, 2);
}

TEST(Faults, AContextIsReleasedAlsoBehindALostWorker) {
  kill_after_forward("context_over_the_lost", 0, 1);
}

TEST(Faults, AContextEndsWithTheWorkerThatMadeIt) {
  kill_after_forward("context_of_the_lost", 2, 2);
}

}  // namespace
}  // namespace hasten::rpc
