// See hasten/accelerator/plan_report.h.
#include "hasten/accelerator/plan_report.h"

#include <algorithm>
#include <cmath>

#include "accelerator/step_times.h"
#include "hasten/core/error.h"
#include "hasten/core/number.h"
#include "hasten/core/text.h"
#include "hasten/offload/map/tree_of.h"
#include "hasten/parallel/shard/sharding.h"
#include "hasten/plan/layout.h"

namespace hasten {
namespace {

plan::DataParallel data_parallel_of(const Accelerator& accelerator) {
  if (!accelerator.sharding()) return plan::DataParallel::kDdp;
  switch (accelerator.sharding()->options().stage) {
    case parallel::ShardStage::kOptimizer:
      return plan::DataParallel::kZero1;
    case parallel::ShardStage::kGradients:
      return plan::DataParallel::kZero2;
    case parallel::ShardStage::kParameters:
      return plan::DataParallel::kZero3;
    case parallel::ShardStage::kNone:
      break;
  }
  return plan::DataParallel::kDdp;
}

// The times that a policy of the steps has taken.
MeasuredStep measured_by(const Accelerator& accelerator, const Optimizer& optimizer) {
  for (const auto& policy : accelerator.gradient_state().step_policies().of(optimizer.unwrap())) {
    if (const auto* times = dynamic_cast<const StepTimes*>(policy.get())) return times->mean();
  }
  return {};
}

plan::ModelShape shape_of(const torch::nn::Module& model, const PlanReportOptions& options) {
  if (options.model) return *options.model;
  plan::ModelShape shape = plan::shape_from_tree(offload::tree_of(model), model.name());
  shape.sequence = options.rows_a_sample;
  return shape;
}

plan::LayoutSizes sizes_of(const Accelerator& accelerator, plan::DataParallel data_parallel) {
  const auto& given = accelerator.options().parallel;
  plan::LayoutSizes sizes{.pp = given.pp,
                          .dp_replicate = given.dp_replicate,
                          .dp_shard = given.dp_shard,
                          .cp = given.cp,
                          .sp = given.sp,
                          .tp = given.tp};
  if (sizes == plan::LayoutSizes{}) {
    // Without a layout all ranks have batches of their own, and a stage splits over all of them.
    const bool shards = data_parallel == plan::DataParallel::kZero3;
    (shards ? sizes.dp_shard : sizes.dp_replicate) = accelerator.world_size();
  }
  return plan::fit_to_world(sizes, accelerator.world_size());
}

plan::Strategy strategy_of(const Accelerator& accelerator, const PlanReportOptions& options,
                           const MeasuredStep& measured) {
  plan::Strategy strategy;
  strategy.data_parallel = data_parallel_of(accelerator);
  strategy.sizes = sizes_of(accelerator, strategy.data_parallel);
  if (accelerator.options().recompute.enabled) strategy.recompute = plan::Recompute::kFull;
  plan::set_precision(strategy, precision::name_of(accelerator.mixed_precision()));
  strategy.optimizer_bytes = options.optimizer_bytes;
  strategy.batch = std::max(1.0, std::round(measured.samples)) * strategy.data_ranks();
  strategy.micro_batch = std::max(1.0, std::round(measured.samples / std::max(1.0, measured.backwards)));
  return strategy;
}

plan::SearchResult layouts_of(const PlanReport& report, int num_ranks) {
  plan::SearchOptions search{.devices = num_ranks, .batch = report.strategy.batch};
  search.base = report.strategy;
  return plan::search(report.model, report.cluster, search);
}

std::string milliseconds(double seconds) {
  const std::string digits = core::fixed_text(1e3 * seconds, 2);
  return std::string(digits.size() < 12 ? 12 - digits.size() : 0, ' ') + digits;
}

std::string row(const std::string& name, std::optional<double> measured, std::optional<double> predicted) {
  constexpr size_t kName = 34;
  std::string line = "  " + name + std::string(name.size() < kName ? kName - name.size() : 1, ' ');
  line += measured ? milliseconds(*measured) : std::string(12, ' ');
  line += predicted ? milliseconds(*predicted) : std::string(12, ' ');
  return line.substr(0, line.find_last_not_of(' ') + 1) + "\n";
}

}  // namespace

std::string PlanReport::text() const {
  const auto& p = predicted.seconds;
  const double computing = p.products + p.attention + p.passes + p.tensor + p.context + p.pipeline;
  std::string words = hasten::text("plan: ", model.name, " (", core::general_text(model.parameters(), 4),
                                   " parameters) as ", plan::strategy_text(strategy), ", batch ", strategy.batch, "; ",
                                   plan::kind_of_numbers(cluster), ", beside the mean of ", measured.num_steps,
                                   " steps\n", "  ms of a step                          measured   predicted\n");
  words += row("waiting for batches", measured.data_s, std::nullopt);
  words += row("forward", measured.forward_s, computing / 3);
  words += row("backward, with the exchange", measured.backward_s, computing * 2 / 3 + p.data);
  words += row("  exchange that nothing hides", std::nullopt, p.data);
  words += row("update", measured.update_s, p.update);
  words += row("all", measured.total(), p.total());
  words += "  layouts, by predicted ms:\n";
  constexpr size_t kShown = 5;
  for (size_t i = 0; i < std::min(kShown, layouts.fitting.size()); ++i) {
    const auto& one = layouts.fitting[i];
    words += row("  " + plan::strategy_text(one.strategy), std::nullopt, one.prediction.seconds.total());
  }
  return words;
}

PlanReport plan_report(const Accelerator& accelerator, const torch::nn::Module& model, const Optimizer& optimizer,
                       const PlanReportOptions& options) {
  const Origin origin{"plan", accelerator.rank(), accelerator.world_size()};
  PlanReport report{
      .model = shape_of(model, options),
      .cluster = options.cluster.value_or(plan::preset_cluster(accelerator.device().is_cpu() ? "cpu" : "h100_80gb")),
      .measured = measured_by(accelerator, optimizer)};
  if (report.measured.num_steps == 0) {
    throw UsageError(origin,
                     "plan_report before the third step of a prepared optimizer: there is nothing to compare with. "
                     "Call it after some steps, 20 or more.");
  }
  report.strategy = strategy_of(accelerator, options, report.measured);
  report.predicted = plan::predict(report.model, report.cluster, report.strategy);
  report.layouts = layouts_of(report, accelerator.world_size());
  return report;
}

}  // namespace hasten
