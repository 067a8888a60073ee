// The tables of `hasten plan`, as text and as JSON.
#include <algorithm>
#include <array>
#include <cmath>

#include "hasten/core/count_text.h"
#include "hasten/core/number.h"
#include "hasten/core/text.h"
#include "hasten/core/value.h"
#include "plan_parts.h"

namespace hasten::cli {
namespace {

using core::Value;
using plan::Candidate;
using plan::Prediction;

constexpr double kGiB = 1024.0 * 1024 * 1024;

std::string with_commas(double value) {
  const std::string digits = text(std::llround(value));
  std::string out;
  for (size_t i = 0; i < digits.size(); ++i) {
    if (i > 0 && (digits.size() - i) % 3 == 0) out += ',';
    out += digits[i];
  }
  return out;
}

// Three digits or more: 0.0123, 1.23, 34.8, 1234.
std::string seconds(double value) {
  if (value == 0) return "0";
  const int before = value >= 1 ? static_cast<int>(std::log10(value)) + 1 : 0;
  return value < 0.0005 ? "0.000" : core::fixed_text(value, std::clamp(3 - before, 0, 3));
}

using Row = std::vector<std::string>;

Row header_row(bool context) {
  Row row = {"layout", "microbatches", "recompute", "GiB a device", "step s", "tokens/s, device",
             "MFU %",  "products",     "attention", "passes",       "tensor"};
  if (context) row.push_back("context");
  row.insert(row.end(), {"pipeline", "data", "update"});
  return row;
}

Row row_of(const Candidate& candidate, bool context) {
  const Prediction& p = candidate.prediction;
  const plan::StepSeconds& s = p.seconds;
  Row row = {plan::strategy_text(candidate.strategy),
             text(with_commas(p.microbatches), " x ", with_commas(candidate.strategy.micro_batch)),
             std::string(plan::recompute_name(candidate.strategy.recompute)),
             core::fixed_text(p.memory.total() / kGiB, 1),
             seconds(s.total()),
             with_commas(p.tokens_per_second),
             core::fixed_text(100 * p.mfu, 1),
             seconds(s.products),
             seconds(s.attention),
             seconds(s.passes),
             seconds(s.tensor)};
  if (context) row.push_back(seconds(s.context));
  row.insert(row.end(), {seconds(s.pipeline), seconds(s.data), seconds(s.update)});
  return row;
}

// Columns of equal width; the first and the third from the left, the others from the right.
std::string aligned(const std::vector<Row>& rows, const std::vector<std::string>& tails) {
  std::vector<size_t> widths(rows.front().size());
  for (const Row& row : rows) {
    for (size_t i = 0; i < row.size(); ++i) widths[i] = std::max(widths[i], row[i].size());
  }
  std::string out;
  for (size_t r = 0; r < rows.size(); ++r) {
    std::string line = " ";
    for (size_t i = 0; i < widths.size(); ++i) {
      const std::string blanks(widths[i] - rows[r][i].size(), ' ');
      line += i == 0 || i == 2 ? text(" ", rows[r][i], blanks, " ") : text(" ", blanks, rows[r][i], " ");
    }
    line += tails[r].empty() ? "" : text("  <- take: ", tails[r]);
    while (line.back() == ' ') line.pop_back();
    out += line + "\n";
  }
  return out;
}

// The rows to show: the fastest, and the one to take wherever it stands.
std::vector<size_t> shown_rows(const PlanReport& report) {
  std::vector<size_t> rows;
  const auto& fitting = report.result.fitting;
  for (size_t i = 0; i < fitting.size(); ++i) {
    if (i < report.top || i == report.result.taken) rows.push_back(i);
  }
  return rows;
}

std::string launch_line(const PlanReport& report, const plan::Strategy& strategy) {
  const double host = report.cluster.machine.devices_per_host;
  std::string line = text("hasten launch --num_processes ", report.options.devices);
  if (report.options.devices > host) line += text(" --num_machines ", std::ceil(report.options.devices / host));
  if (report.precision != "no") line += text(" --mixed_precision ", report.precision);
  for (const std::string& flag : plan::launch_flags(strategy)) line += " " + flag;
  return line + " PROGRAM";
}

// The settings that a program makes itself, since no option of a launch does.
std::string program_line(const plan::Strategy& strategy) {
  std::vector<std::string> parts = {text("batches of ", strategy.micro_batch)};
  if (strategy.sizes.pp == 1 && strategy.microbatches() > 1)
    parts.push_back(text("accumulation over ", strategy.microbatches()));
  if (strategy.chunks > 1) parts.push_back(text("chunks ", strategy.chunks));
  const bool by_flag = strategy.sizes.pp > 1 || strategy.data_parallel == plan::DataParallel::kZero3;
  if (strategy.recompute != plan::Recompute::kNone && !by_flag)
    parts.push_back(text("recompute ", plan::recompute_name(strategy.recompute)));
  return join(parts);
}

std::string title(const PlanReport& report) {
  const plan::ModelShape& model = report.model;
  return text("hasten plan: ", model.name, " (", core::fixed_text(model.parameters() / 1e9, 2), " B parameters) on ",
              report.options.devices, " x ", report.cluster.machine.device, ", batch ",
              with_commas(report.options.batch), " x ", count_text(with_commas(model.sequence), "token"), ", ",
              report.precision == "no" ? "float32" : report.precision, "; ", plan::kind_of_numbers(report.cluster),
              "\n");
}

Value memory_value(const plan::StepMemory& memory) {
  return Value::map({{"weights", memory.weights},
                     {"gradients", memory.gradients},
                     {"optimizer", memory.optimizer},
                     {"units", memory.units},
                     {"activations", memory.activations},
                     {"logits", memory.logits},
                     {"reserve", memory.reserve},
                     {"total", memory.total()}});
}

Value seconds_value(const plan::StepSeconds& s) {
  return Value::map({{"products", s.products},
                     {"attention", s.attention},
                     {"passes", s.passes},
                     {"tensor", s.tensor},
                     {"context", s.context},
                     {"pipeline", s.pipeline},
                     {"data", s.data},
                     {"update", s.update},
                     {"total", s.total()}});
}

Value candidate_value(const Candidate& candidate) {
  const plan::Strategy& strategy = candidate.strategy;
  const Prediction& p = candidate.prediction;
  Value layout = Value::map();
  for (const plan::Axis axis : plan::kAxes) layout[plan::axis_name(axis)] = strategy.sizes[axis];
  layout["chunks"] = strategy.chunks;
  layout["data_parallel"] = plan::data_parallel_name(strategy.data_parallel);
  layout["sequence_parallel"] = strategy.sequence_parallel;
  layout["recompute"] = plan::recompute_name(strategy.recompute);
  layout["micro_batch"] = strategy.micro_batch;
  Value out = Value::map({{"name", plan::strategy_text(strategy)}, {"layout", layout}, {"fits", candidate.fits()}});
  if (!candidate.fits()) out["reason"] = candidate.reason;
  if (p.memory.total() == 0) return out;
  out["microbatches"] = p.microbatches;
  out["memory_bytes"] = memory_value(p.memory);
  out["seconds"] = seconds_value(p.seconds);
  out["tokens_per_second_device"] = p.tokens_per_second;
  out["mfu"] = p.mfu;
  Value wires = Value::list();
  for (const plan::Wire& wire : p.wires) {
    if (wire.bytes > 0)
      wires.push_back(Value::map({{"kind", wire.kind},
                                  {"bytes", wire.bytes},
                                  {"bandwidth", wire.bandwidth},
                                  {"within_host", wire.within_host}}));
  }
  out["wires"] = wires;
  return out;
}

// The nearest layout if nothing fits, and what it lacks.
std::string nearest_line(const PlanReport& report) {
  const Candidate& nearest = *report.result.nearest;
  const double usable = plan::usable_bytes(report.cluster, report.options.usable_share);
  return text("Nothing fits. The nearest is ", plan::strategy_text(nearest.strategy), " with recompute ",
              plan::recompute_name(nearest.strategy.recompute), ": ",
              core::fixed_text(nearest.prediction.memory.total() / kGiB, 1), " GiB a device, ",
              core::fixed_text((nearest.prediction.memory.total() - usable) / kGiB, 1), " GiB more than ",
              core::fixed_text(100 * report.options.usable_share, 0),
              " % of its memory. Take more devices, or fewer tokens a step.\n");
}

}  // namespace

std::string plan_text(const PlanReport& report) {
  const plan::SearchResult& result = report.result;
  std::string out = title(report);
  for (const std::string& caveat : plan::caveats(report.model, report.cluster, report.options.devices))
    out += text("note: ", caveat, "\n");
  const auto shown = shown_rows(report);
  const bool context =
      std::any_of(shown.begin(), shown.end(), [&](size_t i) { return result.fitting[i].strategy.sizes.cp > 1; });
  if (!shown.empty()) {
    std::vector<Row> rows = {header_row(context)};
    std::vector<std::string> tails = {""};
    for (const size_t i : shown) {
      rows.push_back(row_of(result.fitting[i], context));
      tails.push_back(i == result.taken ? result.why : "");
    }
    out += aligned(rows, tails);
  }
  for (const Candidate& pure : result.pure)
    out += text("  ", plan::strategy_text(pure.strategy), "  ", pure.reason, "\n");
  if (result.fitting.empty()) return out + (result.nearest ? nearest_line(report) : "");
  const plan::Strategy& taken = result.fitting[result.taken].strategy;
  return out + text("\n  ", launch_line(report, taken), "\n  and in the program: ", program_line(taken), "\n");
}

std::string plan_json(const PlanReport& report) {
  const plan::SearchResult& result = report.result;
  Value out =
      Value::map({{"model", Value::map({{"name", report.model.name}, {"parameters", report.model.parameters()}})},
                  {"cluster", plan::cluster_json(report.cluster)},
                  {"devices", report.options.devices},
                  {"batch", report.options.batch},
                  {"precision", report.precision},
                  {"numbers", plan::kind_of_numbers(report.cluster)},
                  {"notes", plan::caveats(report.model, report.cluster, report.options.devices)},
                  {"considered", result.considered}});
  Value rows = Value::list();
  size_t taken = 0;
  for (const size_t i : shown_rows(report)) {
    if (i == result.taken) taken = rows.size();
    rows.push_back(candidate_value(result.fitting[i]));
  }
  out["rows"] = rows;
  Value pure = Value::list();
  for (const Candidate& candidate : result.pure) pure.push_back(candidate_value(candidate));
  out["not_fitting"] = pure;
  if (!result.fitting.empty()) {
    out["take"] = taken;
    out["why"] = result.why;
    out["launch_flags"] = Value(plan::launch_flags(result.fitting[result.taken].strategy));
  } else if (result.nearest) {
    out["nearest"] = candidate_value(*result.nearest);
    out["missing_bytes"] =
        result.nearest->prediction.memory.total() - plan::usable_bytes(report.cluster, report.options.usable_share);
  }
  return out.to_json(2) + "\n";
}

}  // namespace hasten::cli
