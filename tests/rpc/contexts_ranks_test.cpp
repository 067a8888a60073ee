// Distributed autograd beside what surrounds it, in real processes: data parallelism inside a context, passes that
// start at a reference's owner, several contexts at once, trainers that share parameters, fork.
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <sys/wait.h>
#include <torch/torch.h>
#include <unistd.h>

#include <functional>
#include <iostream>
#include <thread>

#include "hasten/core/error.h"
#include "hasten/parallel/ddp/ddp.h"
#include "hasten/rpc/distributed_optimizer.h"
#include "hasten/rpc/rpc.h"
#include "rpc/layers.h"

namespace hasten::rpc {
namespace {

// RRef::backward() without a context, at the owner.
double local_backward(const RRef<Layer>& layer) {
  layer.local_value().weight.mutable_grad() = at::Tensor();
  const auto here = call();
  here.rref(layer.local_value().weight.sum()).backward();
  return layer.local_value().weight.grad().sum().item<double>();
}

// Four layers on one, two or four workers are the whole model, bit for bit.
HASTEN_PROCESS_CASE(identity) {
  process::Process process({.cpu = true});
  Agent agent(process, layer_functions());
  if (process.rank() == 0) {
    const auto x = torch::randn({3, 4}).requires_grad_();
    std::vector<at::Tensor> inputs = {x};
    auto y = x;
    for (int layer = 0; layer < 4; ++layer) {
      inputs.push_back(weight_of(layer).requires_grad_());
      y = torch::tanh(y.matmul(inputs.back()));
    }
    const auto expected = torch::autograd::grad({y.sum()}, inputs);
    for (const int workers : {1, 2, 4}) {
      std::vector<RRef<Layer>> layers;
      for (int layer = 0; layer < 4; ++layer) layers.push_back(agent.remote<Layer>(layer % workers, layer));
      agent.autograd([&](AutogradContext& context) {
        auto z = x;
        for (const auto& layer : layers) z = layer.sync<&Layer::forward>(z);
        if (!at::equal(z, y)) throw std::runtime_error("the output differs on " + std::to_string(workers) + " workers");
        context.backward({z.sum()});
        bool same = at::equal(context.gradient(x), expected[0]);
        for (size_t layer = 0; layer < 4; ++layer)
          same = same && at::equal(layers[layer].sync<&Layer::gradient>(context), expected[layer + 1]);
        if (!same) throw std::runtime_error("gradients differ on " + std::to_string(workers) + " workers");
      });
    }
  }
  agent.shutdown();
  return 0;
}

// Two trainers through Ddp, with an unused parameter and a frozen embedding at the server, are one with both batches.
struct Head : torch::nn::Module {
  Head() {
    const torch::NoGradGuard no_grad;
    first->weight.copy_(weight_of(5));
    second->weight.copy_(weight_of(6));
  }
  at::Tensor forward(const at::Tensor& x) { return second(torch::tanh(first(x))); }
  torch::nn::Linear first = register_module("first", torch::nn::Linear(torch::nn::LinearOptions(4, 4).bias(false)));
  torch::nn::Linear second = register_module("second", torch::nn::Linear(torch::nn::LinearOptions(4, 4).bias(false)));
  torch::nn::Linear unused = register_module("unused", torch::nn::Linear(4, 4));
};

HASTEN_PROCESS_CASE(ddp) {
  process::Process process({.cpu = true});
  const auto trainers = process.group().subgroup({0, 1});
  Agent agent(process, layer_functions());
  if (process.rank() < 2) {
    const auto layer = agent.remote<Layer>(2, 2);
    Head head, alone;
    const parallel::Ddp ddp(head, *trainers);
    const auto w2 = weight_of(2).requires_grad_();
    head.first->weight.mutable_grad() = torch::full({4, 4}, 7.0f);
    for (int step = 0; step < 4; ++step) {
      const auto x = torch::randn({4, 4}, at::make_generator<at::CPUGeneratorImpl>(static_cast<uint64_t>(step)));
      const auto mine = x.slice(0, 2 * process.rank(), 2 * process.rank() + 2);
      alone.zero_grad();
      // In step 2 only one trainer reaches the first layer.
      const bool skips = step == 2;
      const auto whole = [&](const at::Tensor& input, bool first) {
        const auto y = torch::tanh(input.matmul(w2));
        return alone.second(first ? torch::tanh(alone.first(y)) : y).pow(2).mean();
      };
      (skips ? 0.5 * (whole(x.slice(0, 0, 2), true) + whole(x.slice(0, 2, 4), false)) : whole(x, true)).backward();
      agent.autograd([&](AutogradContext& context) {
        const auto y = layer.sync<&Layer::forward>(mine);
        const bool first = !skips || process.rank() == 0;
        context.backward({(first ? head.forward(y) : head.second(y)).pow(2).mean()});
        for (const auto& one : {std::pair(head.first->weight, alone.first->weight),
                                std::pair(head.second->weight, alone.second->weight)}) {
          if (difference(context.gradient(one.first), one.second.grad()) > 1e-6)
            throw std::runtime_error("step " + std::to_string(step) + ": the mean differs");
        }
        if (context.gradient(head.unused->weight).defined())
          throw std::runtime_error("a gradient that nobody computed");
      });
      CHECK_THAT(at::equal(head.first->weight.grad(), torch::full({4, 4}, 7.0f)));
      CHECK_THAT(!head.second->weight.grad().defined());
    }
    // Outside a context it goes on as before.
    const auto x = torch::randn({4, 4}, at::make_generator<at::CPUGeneratorImpl>(uint64_t{9}));
    head.zero_grad();
    alone.zero_grad();
    head.forward(x.slice(0, 2 * process.rank(), 2 * process.rank() + 2)).pow(2).mean().backward();
    alone.forward(x).pow(2).mean().backward();
    CHECK_THAT(difference(head.first->weight.grad(), alone.first->weight.grad()) < 1e-6);
  }
  agent.shutdown();
  return 0;
}

HASTEN_PROCESS_CASE(from_references) {
  process::Process process({.cpu = true});
  Functions functions = layer_functions();
  functions.add<&local_backward>();
  Agent agent(process, functions, {.num_threads = 1});
  if (process.rank() == 0) {
    const auto x = torch::randn({3, 4}).requires_grad_();
    const auto one = agent.remote<Layer>(1, 1);
    const auto w1 = weight_of(1).requires_grad_();
    const auto expected = torch::autograd::grad({torch::tanh(x.matmul(w1)).sum()}, {x, w1});
    agent.autograd([&](AutogradContext& context) {
      const auto loss = one.remote<&Layer::loss>(x);
      loss.backward(context, {.retain_graph = true});
      if (difference(context.gradient(x), expected[0]) > 1e-5) throw std::runtime_error("the input's gradient differs");
      if (difference(one.sync<&Layer::gradient>(context), expected[1]) > 1e-5)
        throw std::runtime_error("the weight's gradient differs");
      loss.backward(context, {.retain_graph = true});
      // A pass of this worker's own after passes that another one started; one output is not used.
      const auto unused = one.sync<&Layer::forward>(x);
      context.backward({one.sync<&Layer::forward>(x).sum()});
      if (difference(context.gradient(x), 3 * expected[0]) > 1e-5) throw std::runtime_error("three passes differ");
    });
    CHECK_THAT(agent.sync<&local_backward>(1, one) == 16);
    try {
      agent.remote<Layer>(1, 1).remote<&Layer::loss>(x).backward();
      return 1;
    } catch (const UsageError& error) {
      std::cout << error.what() << std::endl;
    }
  }
  agent.shutdown();
  return 0;
}

HASTEN_PROCESS_CASE(contexts) {
  process::Process process({.cpu = true});
  Agent agent(process, layer_functions());
  if (process.rank() < 2) {
    // Two contexts at once in each of two workers, over one layer of a third.
    std::vector<std::string> problems(2);
    const auto train = [&](int number) {
      try {
        const auto layer = agent.remote<Layer>(2, 2);
        const auto w2 = weight_of(2).requires_grad_();
        for (int round = 0; round < 20; ++round) {
          const auto x = torch::randn({2, 4}).requires_grad_();
          const auto expected = torch::autograd::grad({(number + 1) * torch::tanh(x.matmul(w2)).sum()}, {x, w2});
          agent.autograd([&](AutogradContext& context) {
            const auto unused = layer.sync<&Layer::forward>(x);
            context.backward({(number + 1) * layer.sync<&Layer::forward>(x).sum()});
            if (difference(context.gradient(x), expected[0]) > 1e-5 ||
                difference(layer.sync<&Layer::gradient>(context), expected[1]) > 1e-5)
              throw std::runtime_error("gradients of contexts mix");
          });
        }
      } catch (const std::exception& error) {
        problems[static_cast<size_t>(number)] = error.what();
      }
    };
    std::thread other([&] { train(1); });
    train(0);
    other.join();
    for (const auto& problem : problems) CHECK_THAT(problem == "");
  }
  if (process.rank() == 0) {
    // A thread that has not entered the context: its calls are not recorded, which backward says.
    std::string foreign, entered;
    const auto layer = agent.remote<Layer>(2, 2);
    const auto x = torch::randn({2, 4}).requires_grad_();
    agent.autograd([&](AutogradContext& context) {
      std::thread([&] {
        try {
          context.backward({layer.sync<&Layer::forward>(x).sum()});
        } catch (const UsageError& error) {
          foreign = error.what();
        }
        const auto scope = context.enter();
        context.backward({layer.sync<&Layer::forward>(x).sum()});
        entered = context.gradient(x).defined() ? "recorded" : "lost";
      }).join();
    });
    std::cout << foreign << std::endl;
    CHECK_THAT(foreign.find("context.enter()") != std::string::npos);
    CHECK_THAT(entered == "recorded");
  }
  agent.shutdown();
  return 0;
}

// Two trainers step one parameter a hundred times each, with a lock: no step is lost or done twice.
HASTEN_PROCESS_CASE(locked_steps) {
  process::Process process({.cpu = true});
  const auto shared = torch::zeros({4096}).requires_grad_();
  Functions functions;
  functions.add("shared", [&] { return call().rref(shared); });
  functions.add("times", [&](const at::Tensor& x) { return (shared * x).sum(); });
  Agent agent(process, functions);
  if (process.rank() > 0) {
    const auto parameter = agent.call<RRef<at::Tensor>>(0, "shared");
    const DistributedOptimizer<torch::optim::SGD> optimizer(agent, {parameter}, torch::optim::SGDOptions(1));
    const auto x = torch::full({4096}, process.rank() == 1 ? 1.0f : 1000.0f);
    for (int step = 0; step < 100; ++step) {
      agent.autograd([&](AutogradContext& context) {
        context.backward({agent.call<at::Tensor>(0, "times", x)});
        optimizer.step(context);
      });
    }
  }
  agent.barrier();
  if (process.rank() == 0) {
    std::cout << "ended at " << shared.min().item<double>() << " " << shared.max().item<double>() << std::endl;
    CHECK_THAT(at::equal(shared.detach(), torch::full({4096}, -100100.0f)));
    CHECK_THAT(!shared.grad().defined());
  }
  agent.shutdown();
  return 0;
}

// Without a lock the steps of one trainer are the same.
HASTEN_PROCESS_CASE(unlocked_steps) {
  process::Process process({.cpu = true});
  const auto shared = torch::zeros({4096}).requires_grad_();
  Functions functions;
  functions.add("shared", [&] { return call().rref(shared); });
  functions.add("sum", [&] { return shared.sum(); });
  Agent agent(process, functions);
  if (process.rank() == 1) {
    const auto parameter = agent.call<RRef<at::Tensor>>(0, "shared");
    const DistributedOptimizer<torch::optim::SGD> optimizer(agent, {parameter}, torch::optim::SGDOptions(1),
                                                            {.lock = false});
    for (int step = 0; step < 10; ++step) {
      agent.autograd([&](AutogradContext& context) {
        context.backward({agent.call<at::Tensor>(0, "sum")});
        optimizer.step(context);
      });
    }
  }
  agent.barrier();
  if (process.rank() == 0) CHECK_THAT(at::equal(shared.detach(), torch::full({4096}, -10.0f)));
  agent.shutdown();
  return 0;
}

// A step of another context between forward and backward changes what backward reads, and is no error.
HASTEN_PROCESS_CASE(step_before_backward) {
  process::Process process({.cpu = true});
  const auto shared = torch::ones({4}).requires_grad_();
  Functions functions;
  functions.add("shared", [&] { return call().rref(shared); });
  functions.add("squares", [&] { return (shared * shared).sum(); });
  Agent agent(process, functions);
  if (process.rank() == 1) {
    const auto parameter = agent.call<RRef<at::Tensor>>(0, "shared");
    const DistributedOptimizer<torch::optim::SGD> optimizer(agent, {parameter}, torch::optim::SGDOptions(1));
    const auto step = [&](const std::function<void()>& between) {
      agent.autograd([&](AutogradContext& context) {
        const auto squares = agent.call<at::Tensor>(0, "squares");
        between();
        context.backward({squares});
        optimizer.step(context);
      });
    };
    step([&] { std::thread([&] { step([] {}); }).join(); });
  }
  agent.barrier();
  // 1 - 2 * 1 = -1 by the inner step; -1 - 2 * -1 = 1 by the outer one.
  if (process.rank() == 0) CHECK_THAT(at::equal(shared.detach(), torch::ones({4})));
  agent.shutdown();
  return 0;
}

// A child of fork() may use neither the agent nor end it.
HASTEN_PROCESS_CASE(forked) {
  process::Process process({.cpu = true});
  auto agent = std::make_unique<Agent>(process, layer_functions());
  if (process.rank() == 0) {
    const auto layer = agent->remote<Layer>(1, 1);
    layer.ready().wait();
    const pid_t child = fork();
    if (child == 0) {
      int num_refused = 0;
      const auto refused = [&](auto&& use) {
        try {
          use();
        } catch (const UsageError& error) {
          num_refused += std::string(error.what()).find("forked") != std::string::npos ? 1 : 0;
        }
      };
      refused([&] { layer.sync<&Layer::value>(); });
      refused([&] { agent->remote<Layer>(0, 0); });
      refused([&] { agent->barrier(); });
      refused([&] { agent->shutdown(); });
      agent.reset();
      _exit(num_refused);
    }
    int status = 0;
    CHECK_THAT(waitpid(child, &status, 0) == child);
    CHECK_THAT(WIFEXITED(status) && WEXITSTATUS(status) == 4);
    CHECK_THAT(layer.sync<&Layer::value>().defined());
  }
  agent->shutdown();
  return 0;
}

TEST(Autograd, AModelOverSeveralWorkersIsTheWholeModelBitForBit) {
  expect_all_end_well(hasten::testing::run_processes(4, "identity"));
}

TEST(Autograd, DdpAveragesInsideAContextAndLeavesGradAlone) {
  expect_all_end_well(hasten::testing::run_processes(3, "ddp"));
}

TEST(Autograd, APassMayStartAtAReferencesOwner) {
  const auto results = hasten::testing::run_processes(2, "from_references");

  expect_all_end_well(results);
  EXPECT_THAT(results[0].output, ::testing::HasSubstr("owns"));
}

TEST(Autograd, ContextsOfThreadsAndWorkersDoNotMix) {
  expect_all_end_well(hasten::testing::run_processes(3, "contexts"));
}

TEST(DistributedOptimizer, StepsOfSeveralTrainersAreDoneOnceEach) {
  expect_all_end_well(hasten::testing::run_processes(3, "locked_steps"));
}

TEST(DistributedOptimizer, StepsWithoutALock) {
  expect_all_end_well(hasten::testing::run_processes(2, "unlocked_steps"));
}

TEST(DistributedOptimizer, AnotherTrainersStepMayComeBetweenForwardAndBackward) {
  expect_all_end_well(hasten::testing::run_processes(2, "step_before_backward"));
}

TEST(Agent, AChildOfForkIsRefusedEveryUse) {
  expect_all_end_well(hasten::testing::run_processes(2, "forked"));
}

}  // namespace
}  // namespace hasten::rpc
