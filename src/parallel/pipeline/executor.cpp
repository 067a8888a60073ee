// See executor.h.
#include "parallel/pipeline/executor.h"

#include <ATen/core/grad_mode.h>
#include <ATen/ops/full_like.h>
#include <ATen/ops/zeros_like.h>
#include <torch/csrc/autograd/autograd.h>

#include <algorithm>
#include <exception>
#include <limits>
#include <utility>

#include "hasten/comm/types/purpose.h"
#include "hasten/core/error.h"
#include "parallel/tensor/exchange.h"

namespace hasten::parallel::pipeline {
namespace {

bool splits_backwards(const plan::PipelineOrder& order) {
  return std::any_of(order.ranks.begin(), order.ranks.end(), [](const auto& actions) {
    return std::any_of(actions.begin(), actions.end(),
                       [](const plan::Action& action) { return action.kind == plan::ActionKind::kBackwardInput; });
  });
}

[[noreturn]] void refuse_result(const StageAxis& axis, const std::string& reason) {
  throw UsageError(axis.origin(), "a forward returned ", reason,
                   ". Return the loss, a single number computed from the model's output.");
}

}  // namespace

struct Executor::Microbatch {
  Microbatch(StageAxis& axis, Program& program, const ForwardPass::Options& options) : pass(axis, program, options) {}

  ForwardPass pass;
  at::Tensor result = {};
  /// The last member, so that its thread ends first.
  std::unique_ptr<HeldForward> held = {};
};

Executor::Executor(StageAxis& axis, const StepInput& input)
    : axis_(axis), input_(input), is_held_(axis.num_stages() > axis.group().world_size()) {
  const bool defers = splits_backwards(*input.order);
  for (size_t i = 0; i < input.forwards.size(); ++i) {
    microbatches_.push_back(
        std::make_unique<Microbatch>(axis, *input.programs[i],
                                     ForwardPass::Options{.microbatch = static_cast<int>(i),
                                                          .num_microbatches = static_cast<int>(input.forwards.size()),
                                                          .is_held = is_held_,
                                                          .defers_weights = defers}));
  }
}

Executor::~Executor() = default;

std::vector<at::Tensor> Executor::run() {
  try {
    for (const plan::Action& action : input_.order->ranks[static_cast<size_t>(axis_.rank())]) {
      if (input_.times == nullptr) {
        carry_out(action);
      } else {
        input_.times->measure(action, [&] { carry_out(action); });
      }
    }
    for (auto& one : microbatches_) {
      one->pass.set_running(std::numeric_limits<int>::max());
      if (one->held) one->held->run();
    }
    axis_.messages().finish();
  } catch (const std::exception& error) {
    // The other ranks wait for values that will not come.
    axis_.group().fail(error.what());
    throw;
  }
  const at::NoGradGuard no_grad;
  std::vector<at::Tensor> results;
  for (const auto& one : microbatches_) {
    const auto* const value = StagedTensor::of(one->result);
    results.push_back(value != nullptr && value->local().defined() ? tensor::whole_of(value->local()).detach()
                                                                   : at::Tensor());
  }
  return results;
}

void Executor::carry_out(const plan::Action& action) {
  switch (action.kind) {
    case plan::ActionKind::kForward:
      return forward(action);
    case plan::ActionKind::kBackwardWeight:
      return weights_.run({action.stage, action.microbatch});
    default:
      backward(action);
  }
}

void Executor::forward(const plan::Action& action) {
  const comm::Purpose purpose("pipeline: forward of microbatch", action.microbatch);
  auto& one = *microbatches_[static_cast<size_t>(action.microbatch)];
  const auto run_whole = [&one, &program = input_.forwards[static_cast<size_t>(action.microbatch)]] {
    const ForwardPass::Scope scope(one.pass);
    one.result = program();
    one.pass.end();
  };
  if (!is_held_) return run_whole();
  if (!one.held) {
    one.held = std::make_unique<HeldForward>(run_whole);
    one.pass.wait_for_turn = [held = one.held.get()] { held->pause(); };
  }
  one.pass.set_running(action.stage);
  one.held->run();
}

void Executor::backward(const plan::Action& action) {
  const comm::Purpose purpose("pipeline: gradient of microbatch", action.microbatch);
  const auto i = static_cast<size_t>(action.microbatch);
  auto& one = *microbatches_[i];
  std::vector<at::Tensor> roots, gradients;
  if (input_.programs[i]->result_stage == action.stage) {
    const auto* const value = StagedTensor::of(one.result);
    if (value == nullptr) {
      refuse_result(axis_, "only behind operators of later stages than that of its loss");
    }
    const at::Tensor loss = tensor::whole_of(value->local());
    if (loss.numel() != 1) refuse_result(axis_, text("a tensor of shape [", join(loss.sizes()), "]"));
    if (!loss.requires_grad()) refuse_result(axis_, "a loss that needs no gradient");
    const interception::PassScope pass;
    // A mean over nothing is no number, and must not touch gradients.
    if (input_.weights[i] != 0) {
      roots.push_back(loss);
      gradients.push_back(at::full_like(loss, input_.weights[i]).detach());
    }
  }
  auto sent = std::exchange(one.pass.sent(action.stage), {});
  for (auto next = sent.rbegin(); next != sent.rend(); ++next) {
    at::Tensor gradient = gradient_of(one, *next);
    if (!next->tensor.requires_grad()) continue;
    roots.push_back(next->tensor);
    gradients.push_back(std::move(gradient));
  }
  sent.clear();
  if (!roots.empty()) {
    std::optional<WeightQueue::Scope> later;
    if (action.kind == plan::ActionKind::kBackwardInput) {
      later.emplace(weights_, std::pair(action.stage, action.microbatch));
    }
    torch::autograd::backward(roots, gradients);
  }
  send_gradients(one, action.stage);
}

at::Tensor Executor::gradient_of(Microbatch& one, const Passed& sent) {
  const auto& transfer = sent.transfer;
  if (axis_.has(transfer.to)) return one.pass.own_gradients().extract(transfer.index).mapped();
  return axis_.messages().receive(sent.tensor.sizes().vec(), sent.tensor.options().requires_grad(false),
                                  axis_.rank_of(transfer.to), one.pass.tag(transfer, true));
}

void Executor::send_gradients(Microbatch& one, int stage) {
  const auto received = std::exchange(one.pass.received(stage), {});
  for (auto next = received.rbegin(); next != received.rend(); ++next) {
    const interception::PassScope pass;
    const at::Tensor gradient =
        next->tensor.grad().defined() ? next->tensor.grad() : at::zeros_like(next->tensor).detach();
    if (axis_.has(next->transfer.from)) {
      one.pass.own_gradients()[next->transfer.index] = gradient;
    } else {
      axis_.messages().send(gradient, axis_.rank_of(next->transfer.from), one.pass.tag(next->transfer, true));
    }
  }
}

void record_program(StageAxis& axis, Program& program, bool is_held, const std::function<at::Tensor()>& forward) {
  const comm::Purpose purpose("pipeline: record of a forward");
  ForwardPass pass(axis, program, {.records = true, .is_held = is_held});
  try {
    const ForwardPass::Scope scope(pass);
    const at::Tensor result = forward();
    const auto* const value = StagedTensor::of(result);
    if (value == nullptr) refuse_result(axis, "a value that no parameter of the model is part of");
    program.result_stage = value->stage();
    program.result_dtype = value->facts().dtype;
    axis.messages().finish();
  } catch (const std::exception& error) {
    if (!pass.failure_was_told()) axis.group().fail(error.what());
    throw;
  }
}

}  // namespace hasten::parallel::pipeline
