// A pipeline in which a rank dies or throws at a chosen point of its order, on real processes or on threads.
#pragma once

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <torch/torch.h>

#include <csignal>
#include <functional>
#include <memory>
#include <random>
#include <sstream>
#include <stdexcept>
#include <string>
#include <vector>

#include "hasten/accelerator.h"
#include "hasten/core/env.h"
#include "hasten/plan/orders.h"
#include "support/processes.h"

namespace hasten::testing {

/// Ranks of the pipeline, parts of a batch, and steps. There are as many blocks as stages.
constexpr int kFaultRanks = 3, kFaultParts = 6, kFaultSteps = 3;
constexpr const char* kFaultWords = "the simulation diverged";

/// Where a rank fails: at its `number`-th event of a kind, counted from 1.
struct PipelineFault {
  int rank = 1;
  /// "forward" and "backward": inside of a block of its own. "weight": as the gradient of a linear layer arrives.
  /// "send": with a message to another rank under way. "receive": before it takes a value. "optimizer": in its step.
  /// "holds" and "holds_back": it stands still before a block, or in a backward, and others wait for what that gives.
  std::string event = "forward";
  int number = 1;
  plan::OrderKind order = plan::OrderKind::k1F1B;
  /// It throws; false: it is killed.
  bool throws = false;
  /// For "holds": a pipe, which another process opens to let it go on.
  std::string pipe = "-";

  int chunks() const {
    return order == plan::OrderKind::kInterleaved1F1B || order == plan::OrderKind::kZbvZeroBubble ? 2 : 1;
  }
  std::string words() const {
    std::ostringstream out;
    out << rank << ' ' << event << ' ' << number << ' ' << plan::order_name(order) << ' ' << throws << ' ' << pipe;
    return out.str();
  }
  /// Draws a fault that is reached: ranks and numbers of events that every order has.
  static PipelineFault draw(uint64_t seed) {
    std::mt19937_64 random(seed);
    const auto below = [&](int end) { return static_cast<int>(random() % static_cast<uint64_t>(end)); };
    const char* const events[] = {"forward", "backward", "weight", "send", "receive", "optimizer"};
    const plan::OrderKind orders[] = {plan::OrderKind::k1F1B, plan::OrderKind::kInterleaved1F1B,
                                      plan::OrderKind::kInterleavedZeroBubble, plan::OrderKind::kGPipe,
                                      plan::OrderKind::kZbvZeroBubble};
    PipelineFault fault{.rank = below(kFaultRanks), .event = events[below(6)], .order = orders[below(5)]};
    fault.number = 1 + below(fault.event == "optimizer" ? kFaultSteps : kFaultParts * kFaultSteps);
    fault.throws = below(3) == 0;
    // The first stage receives nothing, and the last one sends nothing.
    if (fault.event == "receive" && fault.rank == 0) fault.rank = 1;
    if (fault.event == "send" && fault.rank == kFaultRanks - 1) fault.rank = 0;
    return fault;
  }
  static PipelineFault parse(const std::string& words) {
    PipelineFault fault;
    std::string order;
    std::istringstream(words) >> fault.rank >> fault.event >> fault.number >> order >> fault.throws >> fault.pipe;
    fault.order = plan::parse_order(order);
    return fault;
  }
};

using NoteEvent = std::function<void(const char* event)>;

struct FaultyBlockImpl : torch::nn::Module {
  FaultyBlockImpl() {
    register_module("norm", norm);
    register_module("linear", linear);
  }
  torch::nn::LayerNorm norm{torch::nn::LayerNormOptions({128})};
  torch::nn::Linear linear{128, 128};
};

/// Every rank runs its code whole, so that it says when this rank comes to blocks of its own.
struct FaultyNetImpl : torch::nn::Module {
  explicit FaultyNetImpl(int num_blocks) {
    for (int i = 0; i < num_blocks; ++i) blocks->push_back(std::make_shared<FaultyBlockImpl>());
    register_module("blocks", blocks);
  }
  at::Tensor forward(at::Tensor x) {
    bool was_own = false;
    for (size_t i = 0; i < blocks->size(); ++i) {
      const auto block = blocks->ptr<FaultyBlockImpl>(i);
      const bool is_own = block->linear->weight.numel() > 0;
      if (is_own && !was_own && i > 0) note("receive");
      if (is_own) note("holds");
      // The first operator of a stage, at which values go from rank to rank.
      const at::Tensor y = block->norm(x);
      if (is_own) note("forward");
      if (!is_own && was_own) note("send");
      x = block->linear(y).tanh();
      was_own = is_own;
    }
    return x;
  }
  torch::nn::ModuleList blocks;
  NoteEvent note = [](const char*) {};
};

struct FaultySgd : torch::optim::SGD {
  using SGD::SGD;
  NoteEvent note = [](const char*) {};
  at::Tensor step(LossClosure closure = nullptr) override {
    note("optimizer");
    return SGD::step(std::move(closure));
  }
};

/// Stands still until the pipe is opened for writing.
inline void hold_at(const std::string& pipe) {
  std::printf("holds\n");
  std::fflush(stdout);
  std::FILE* const file = std::fopen(pipe.c_str(), "r");
  if (file != nullptr) std::fclose(file);
}

/// Trains some steps, of which the fault leaves none whole.
inline void train_with_fault(const Accelerator& accelerator, const std::shared_ptr<FaultyNetImpl>& net,
                             const PipelineFault& fault) {
  const auto seen = std::make_shared<int>(0);
  const NoteEvent note = [seen, fault, rank = accelerator.rank()](const char* event) {
    if (rank != fault.rank || fault.event != event || ++*seen != fault.number) return;
    if (fault.pipe != "-") return hold_at(fault.pipe);
    if (fault.throws) throw std::runtime_error(kFaultWords);
    std::raise(SIGKILL);
  };
  FaultySgd sgd(net->parameters(), 0.01);
  sgd.note = note;
  auto [model, optimizer] = accelerator.prepare(net, sgd);
  net->note = note;
  for (const auto& item : net->named_parameters()) {
    const bool is_weight = item.key().ends_with("weight");
    if (!is_weight || item.value().numel() == 0) continue;
    // A norm's gradient comes with its input's, whatever the order.
    const bool is_norm = item.key().find("norm") != std::string::npos;
    item.value().register_hook([note, is_norm](const at::Tensor&) {
      note(is_norm ? "backward" : "weight");
      if (is_norm) note("holds_back");
    });
  }
  const at::Tensor batch = torch::linspace(-1, 1, kFaultParts * 256 * 128).view({-1, 128});
  for (int step = 0; step < kFaultSteps; ++step) {
    optimizer.zero_grad();
    accelerator.forward_backward(batch,
                                 [&, &model = model](const at::Tensor& part) { return model(part).pow(2).mean(); });
    optimizer.step();
  }
  accelerator.wait_for_everyone();
}

inline AcceleratorOptions options_with_fault(const PipelineFault& fault) {
  return {.parallel = {.pp = kFaultRanks, .chunks = fault.chunks(), .microbatches = kFaultParts, .order = fault.order}};
}

inline std::shared_ptr<FaultyNetImpl> net_with_fault(const PipelineFault& fault) {
  return std::make_shared<FaultyNetImpl>(kFaultRanks * fault.chunks());
}

/// The body of a process case.
inline int run_pipeline_fault() {
  const auto fault = PipelineFault::parse(Environment::current().text("HASTEN_TEST_FAULT").value_or(""));
  const Accelerator accelerator(options_with_fault(fault));
  train_with_fault(accelerator, net_with_fault(fault), fault);
  return 0;
}

/// Each rank must have ended by then: nothing waits for a timeout.
constexpr auto kFaultLimit = std::chrono::seconds(30);

inline void expect_named(const std::vector<ProcessResult>& results, int failed, bool throws, const std::string& words) {
  for (int rank = 0; rank < static_cast<int>(results.size()); ++rank) {
    const auto& result = results[static_cast<size_t>(rank)];
    EXPECT_EQ(result.exit_code, rank == failed && !throws ? 128 + SIGKILL : 1) << words << ", rank " << rank;
    if (rank == failed && !throws) continue;
    EXPECT_THAT(result.output, ::testing::HasSubstr(throws ? kFaultWords : "rank " + std::to_string(failed)))
        << words << ", rank " << rank;
  }
}

/// Runs the process case `name` with the fault, and expects that all others name the rank.
inline void expect_fault_named(const char* name, const PipelineFault& fault) {
  const auto results = Processes(kFaultRanks, name, {{"HASTEN_TEST_FAULT", fault.words()}}).wait(kFaultLimit);
  expect_named(results, fault.rank, fault.throws, fault.words());
}

}  // namespace hasten::testing
