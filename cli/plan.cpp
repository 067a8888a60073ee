// `hasten plan`: memory, bytes and step time of layouts before they run; memory of sharding.
#include <algorithm>
#include <filesystem>
#include <fstream>
#include <iostream>

#include "commands.h"
#include "hasten/core/error.h"
#include "hasten/core/number.h"
#include "hasten/core/text.h"
#include "hasten/plan/order_picture.h"
#include "help.h"
#include "options.h"
#include "plan_parts.h"
#include "self_test_program.h"

namespace hasten::cli {
namespace {

using launcher::CommandLine;

const HelpText kPlanHelp = {
    "hasten plan [OPTIONS] MODEL",
    "Prints memory, step time and use of the devices for layouts of a training, and names the one to take. MODEL is a "
    "config.json of transformers or its folder, a repository of a hub, JSON of the fields below or of a module tree, a "
    "safetensors folder, or a preset: gpt2, llama3-70b, gpt-175b. Nothing is started. With --memory, MODEL is a number "
    "of parameters (124M, 1.3B), a safetensors file or a folder, and the table is that of sharded state on hosts.",
    "Exit code: 0; 3 if no layout fits. Formulas and their errors on published runs are in docs/plan.md, those of "
    "--memory in docs/sharding.md."};

constexpr int kNothingFits = 3;

// The pipeline's order of a layout, drawn with the times of its stages.
std::string picture(const plan::ModelShape& model, const plan::Cluster& cluster, const plan::Strategy& strategy) {
  if (strategy.sizes.pp == 1) return "The layout to take has no pipeline to draw.\n";
  const plan::StepTerms terms = plan::step_terms(model, cluster, strategy);
  const plan::LayerSeconds forward = plan::layer_forward(model, cluster, strategy, terms);
  const plan::LayerSeconds backward = plan::layer_backward(model, strategy, forward);
  const double layers = terms.stage_layers / strategy.chunks, weights = layers * forward.products;
  const plan::StageCost cost{layers * forward.total(), layers * backward.total() - weights, weights, 0, 1};
  const auto order =
      plan::make_order(strategy.order, {strategy.sizes.pp, strategy.chunks, static_cast<int>(terms.microbatches)});
  return plan::draw_order(order, {cost}, {.unit_s = layers * forward.total()});
}

int plan_layouts(const CommandLine& line) {
  const plan::ModelShape model = planned_model(line);
  plan::Cluster cluster = planned_cluster(line);
  if (line.has("overlap")) cluster.constants.data_overlap = core::real_number(line.text("overlap")).value();
  plan::SearchOptions options = search_options(line, cluster);
  const std::string precision = line.has("precision")           ? line.text("precision")
                                : cluster.machine.shares_memory ? "no"
                                                                : "bf16";
  plan::set_precision(options.base, precision);
  const plan::SearchResult result = plan::search(model, cluster, options);
  const size_t top = line.has("top") ? core::whole_number<size_t>(line.text("top")).value() : 10;
  const PlanReport report{model, cluster, options, result, precision, top};
  if (line.has("json")) {
    std::cout << plan_json(report);
  } else {
    std::cout << plan_text(report);
    const plan::Candidate* shown = !result.fitting.empty() ? &result.fitting[result.taken]
                                   : result.nearest        ? &*result.nearest
                                                           : nullptr;
    if (shown != nullptr && line.has("explain")) {
      std::cout << "\n"
                << plan::strategy_text(shown->strategy) << "\n"
                << join(plan::explain_prediction(model, cluster, shown->strategy), "\n") << "\n";
    }
    if (shown != nullptr && line.has("draw")) std::cout << "\n" << picture(model, cluster, shown->strategy);
  }
  return result.fitting.empty() ? kNothingFits : 0;
}

// On the processes that hasten launch would start.
int plan_measure(const CommandLine& line) {
  std::vector<std::string> words = {"--no_python"};
  if (line.has("num_processes")) words.insert(words.end(), {"--num_processes", line.text("num_processes")});
  const std::string output = line.has("output") ? line.text("output") : "measured.json";
  // Said now, not behind the measurements.
  if (!std::ofstream(output, std::ios::app)) {
    throw UsageError({"plan"}, "'", output, "' cannot be written. Give -o a file in a folder that is there.");
  }
  words.insert(words.end(), {self_test_program("plan"), "--measure", std::filesystem::absolute(output).string()});
  return launch(words);
}

}  // namespace

int plan_command(const std::vector<std::string>& words) {
  const CommandLine line = read_options("plan", plan_options(), words, 1);
  if (line.help) return std::cout << help_of(kPlanHelp, plan_options(), colours_wanted()), 0;
  if (line.has("measure")) return plan_measure(line);
  if (line.has("memory") && line.rest.empty())
    throw UsageError({"plan"}, "no model is named. Give a number of parameters, a safetensors file or a folder.");
  return line.has("memory") ? plan_memory(line) : plan_layouts(line);
}

}  // namespace hasten::cli
