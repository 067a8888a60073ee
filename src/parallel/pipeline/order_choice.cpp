// See order_choice.h.
#include "parallel/pipeline/order_choice.h"

#include <ATen/core/grad_mode.h>
#include <ATen/ops/zeros.h>
#include <c10/core/impl/VirtualGuardImpl.h>

#include <algorithm>
#include <cmath>

#include "hasten/core/error.h"
#include "hasten/interception/interceptor.h"

namespace hasten::parallel::pipeline {
namespace {

using plan::ActionKind;
using plan::StageCost;

// The numbers of a stage in a message.
constexpr int64_t kNumbers = 5;
constexpr int kProbes = 3;

double middle_of(std::vector<double> values) {
  if (values.empty()) return 0;
  const auto middle = values.begin() + static_cast<std::ptrdiff_t>(values.size() / 2);
  std::nth_element(values.begin(), middle, values.end());
  return std::max(0.0, *middle);
}

double bytes_of(const ValueFacts& value, int parts) {
  double numel = 1;
  for (const int64_t size : value.sizes) numel *= static_cast<double>(size);
  return numel * static_cast<double>(c10::elementSize(value.dtype)) / (value.cut.is_cut() ? parts : 1);
}

// The results of a microbatch's forward in a stage: an upper bound of those that it keeps.
double bytes_of_stage(const Program& program, int stage, int parts) {
  double bytes = 0;
  for (const CallRecord& call : program.calls) {
    if (call.stage != stage) continue;
    for (const ValueFacts& value : call.values) {
      if (value.is_defined && !value.is_view) bytes += bytes_of(value, parts);
    }
  }
  return bytes;
}

double largest_transfer(const Program& program, int parts) {
  double bytes = 1;
  for (const auto& [key, transfer] : program.transfers) {
    const auto& values = program.calls[transfer.value.call].values;
    bytes = std::max(bytes, bytes_of(values[static_cast<size_t>(transfer.value.result)], parts));
  }
  return bytes;
}

std::string milliseconds(double seconds) {
  return text(std::round(seconds * 1e5) / 100, " ms");
}

}  // namespace

plan::PipelineOrder with_split_backwards(plan::PipelineOrder order) {
  for (auto& actions : order.ranks) {
    std::vector<plan::Action> split;
    for (const plan::Action& action : actions) {
      if (action.kind != ActionKind::kBackward) {
        split.push_back(action);
        continue;
      }
      split.push_back({action.stage, ActionKind::kBackwardInput, action.microbatch});
      split.push_back({action.stage, ActionKind::kBackwardWeight, action.microbatch});
    }
    actions = std::move(split);
  }
  return order;
}

std::vector<plan::OrderChoice> orders_in_place(const plan::OrderSizes& sizes, const std::vector<StageCost>& costs,
                                               double capacity_bytes) {
  auto choices = plan::rank_orders(sizes, costs, capacity_bytes);
  for (plan::OrderChoice& choice : choices) {
    for (int stage = 0; choice.reason.empty() && stage < sizes.ranks * sizes.chunks; ++stage) {
      if (plan::rank_of_stage(choice.kind, sizes, stage) != stage % sizes.ranks)
        choice.reason = "has its stages on other ranks, so that it is taken by its name alone";
    }
  }
  std::stable_partition(choices.begin(), choices.end(), [](const auto& choice) { return choice.reason.empty(); });
  return choices;
}

plan::OrderChoice best_in_place(const plan::OrderSizes& sizes, const std::vector<StageCost>& costs,
                                double capacity_bytes) {
  const auto choices = orders_in_place(sizes, costs, capacity_bytes);
  if (choices.front().reason.empty()) return choices.front();
  std::vector<std::string> reasons;
  for (const auto& choice : choices) reasons.push_back(text(plan::order_name(choice.kind), " ", choice.reason));
  throw UsageError(Origin{"pipeline"}, "no order fits into ", capacity_bytes / 1048576,
                   " MiB of activations: ", join(reasons, "; "),
                   ". Raise activation_mib, or use more microbatches of fewer samples.");
}

std::string describe(const std::vector<plan::OrderChoice>& choices, const std::vector<StageCost>& costs) {
  double forward = 0, input = 0, weight = 0;
  for (const StageCost& cost : costs) {
    forward = std::max(forward, cost.forward_s);
    input = std::max(input, cost.input_s);
    weight = std::max(weight, cost.weight_s);
  }
  std::vector<std::string> times;
  for (const auto& choice : choices) {
    if (!choice.timeline.peak_bytes.empty())
      times.push_back(text(plan::order_name(choice.kind), " ", milliseconds(choice.timeline.seconds),
                           choice.reason.empty() ? "" : " (" + choice.reason + ")"));
  }
  return text("the order is ", plan::order_name(choices.front().kind), ". Simulated steps: ", join(times, ", "),
              ". Measured in the slowest stage: forward ", milliseconds(forward), ", gradients of inputs ",
              milliseconds(input), ", of weights ", milliseconds(weight), "; a message ",
              milliseconds(costs.front().send_s), ".");
}

double ActionTimes::seconds() const {
  const c10::Device device = axis_.device();
  if (!device.is_cpu()) c10::impl::VirtualGuardImpl(device.type()).getStream(device).synchronize();
  return std::chrono::duration<double>(std::chrono::steady_clock::now().time_since_epoch()).count();
}

void ActionTimes::add(const plan::Action& action, double seconds) {
  seconds_[{action.stage, action.kind}].push_back(seconds);
}

// Every rank sends to the next one, as in the middle of a step.
double ActionTimes::send_seconds(const Program& program) {
  auto& messages = axis_.messages();
  const int ranks = messages.num_ranks(), rank = messages.rank();
  const int parts = axis_.cut_group().world_size();
  const auto bytes = static_cast<int64_t>(largest_transfer(program, parts));
  const at::Tensor probe = at::zeros({bytes}, at::TensorOptions(at::kByte));
  double least = 0;
  for (int i = 0; i < kProbes; ++i) {
    const double before = seconds();
    messages.send(probe, (rank + 1) % ranks, kProbeTag);
    messages.receive({bytes}, probe.options(), (rank + ranks - 1) % ranks, kProbeTag);
    const double took = seconds() - before;
    least = i == 0 ? took : std::min(least, took);
  }
  messages.finish();
  return least;
}

std::vector<StageCost> ActionTimes::agree(const Program& program, const std::vector<comm::Group>& groups) {
  const interception::PassScope pass;
  const at::NoGradGuard no_grad;
  const double send_s = send_seconds(program);
  const at::Tensor all = at::zeros({axis_.num_stages(), kNumbers}, at::TensorOptions(at::kDouble));
  auto* const row = all.mutable_data_ptr<double>();
  for (int stage = 0; stage < axis_.num_stages(); ++stage) {
    double* const own = row + stage * kNumbers;
    own[3] = send_s;
    own[4] = bytes_of_stage(program, stage, axis_.cut_group().world_size());
    if (!axis_.has(stage)) continue;
    own[0] = middle_of(seconds_[{stage, ActionKind::kForward}]);
    own[1] = middle_of(seconds_[{stage, ActionKind::kBackwardInput}]);
    own[2] = middle_of(seconds_[{stage, ActionKind::kBackwardWeight}]);
  }
  axis_.group().all_reduce_(all, comm::ReduceOp::kMax);
  std::vector<comm::Group> passed_on = {axis_.group(), axis_.cut_group()};
  passed_on.insert(passed_on.end(), groups.begin(), groups.end());
  for (const comm::Group& group : passed_on) {
    if (group.world_size() > 1) group.broadcast_(all, 0);
  }
  std::vector<StageCost> costs;
  for (int stage = 0; stage < axis_.num_stages(); ++stage) {
    const double* const own = row + stage * kNumbers;
    costs.push_back({.forward_s = own[0], .input_s = own[1], .weight_s = own[2], .send_s = own[3], .bytes = own[4]});
  }
  return costs;
}

}  // namespace hasten::parallel::pipeline
