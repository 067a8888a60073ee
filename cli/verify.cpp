// `hasten verify`: runs a program on one process and on several, and names the first thing that differs.
#include <fstream>
#include <iostream>
#include <utility>

#include "hasten/core/count_text.h"
#include "hasten/core/error.h"
#include "hasten/core/file.h"
#include "hasten/core/number.h"
#include "hasten/core/text.h"
#include "hasten/launch/options/command_line.h"
#include "hasten/plan/verify_runs.h"
#include "help.h"
#include "verify.h"
#include "verify_run.h"

namespace hasten::cli {
namespace {

using launcher::CommandLine;

const HelpText kVerifyHelp = {
    "hasten verify [OPTIONS] PROGRAM [ARGUMENTS]\n       hasten verify --compare FILE FILE",
    "Runs PROGRAM on one process, which computes what N would, and on N, and compares the two step by step: samples, "
    "losses, gradients, rates, parameters, buffers. Names the first thing that differs, with the likely cause. Options "
    "end where the program begins.",
    "Exit code: 0 if all is the same, 1 if not, 2 for wrong usage, else that of the run that failed. What is recorded, "
    "and the causes, are in docs/verify.md."};

constexpr int kDiffers = 1;

launcher::Option number(std::string_view name, double least, double most, std::string_view fallback,
                        std::string_view help) {
  return {.name = name,
          .kind = launcher::OptionKind::kInteger,
          .peers = launcher::kHasten,
          .fallback = fallback,
          .least = least,
          .most = most,
          .help = help};
}

template <class T>
T number_of(const CommandLine& line, const std::string& name, T otherwise) {
  if (!line.has(name)) return otherwise;
  return core::whole_number<T>(line.text(name)).value();
}

// The launcher's options for what the second run has and the first has not.
std::vector<std::string> second_options(const CommandLine& line) {
  std::vector<std::string> words;
  if (line.has("precision")) words.insert(words.end(), {"--mixed_precision", line.text("precision")});
  const auto stage = number_of<int>(line, "stage", 0);
  if (stage == 1) words.insert(words.end(), {"--use_deepspeed", "--zero_stage", "1"});
  if (stage == 2) words.insert(words.end(), {"--use_fsdp", "--fsdp_sharding_strategy", "SHARD_GRAD_OP"});
  if (stage == 3) words.insert(words.end(), {"--use_fsdp", "--fsdp_sharding_strategy", "FULL_SHARD"});
  return words;
}

plan::VerifyRunsOptions comparison(const CommandLine& line) {
  if (!line.has("tolerance")) return {};
  return {.tolerance = core::real_number(line.text("tolerance")).value()};
}

int print_verdict(const plan::VerifyVerdict& verdict, const plan::VerifyRun& one, const plan::VerifyRun& many) {
  std::cout << plan::verify_text(verdict, one, many) << std::flush;
  return verdict.same() ? 0 : kDiffers;
}

// The last line of a file says how many bytes come before it. A part of a file has none.
std::string end_line(const std::string& record) {
  return text("end ", record.size(), '\n');
}

std::string record_in(const std::string& path) {
  auto lines = core::read_file(path);
  if (!lines) throw UsageError({"verify"}, "'", path, "' cannot be read. Give a file that --record wrote.");
  const size_t end = lines->rfind("end ");
  std::string record = lines->substr(0, end);
  if (end == std::string::npos || lines->substr(end) != end_line(record))
    throw UsageError({"verify"}, "'", path, "' is no whole record: its last line is missing. Record the run again.");
  return record;
}

int compare_files(const CommandLine& line) {
  if (line.rest.size() != 2) {
    throw UsageError({"verify"}, "--compare has ", count_text(line.rest.size(), "file"),
                     "; expected two that --record wrote. Name both.");
  }
  const auto one = plan::read_verify_run(record_in(line.rest[0]), line.rest[0]);
  const auto many = plan::read_verify_run(record_in(line.rest[1]), line.rest[1]);
  return print_verdict(plan::compare_runs(one, many, comparison(line)), one, many);
}

// Says which of the runs failed. `has_verdict`: of what the runs recorded until then.
int told_failure(int num_processes, int exit_code, bool has_verdict = false) {
  std::cerr << "hasten verify: " << (has_verdict ? "" : "not compared: ") << "the run on "
            << (num_processes == 1 ? "one process" : count_text(num_processes, "process")) << " ended with exit code "
            << exit_code << "; its report is above.\n";
  return exit_code;
}

VerifyRunOptions run_options(const CommandLine& line) {
  return {.num_steps = number_of<int64_t>(line, "steps", 20), .seed = number_of<int64_t>(line, "seed", 0)};
}

int record(const CommandLine& line, int num_processes) {
  VerifyRunOptions options = run_options(line);
  options.num_processes = num_processes;
  options.launch_options = second_options(line);
  const VerifyFolder folder;
  const auto result = run_recorded(folder, "run", options, line.rest);
  std::ofstream file(line.text("record"), std::ios::trunc);
  file << result.record << end_line(result.record) << std::flush;
  if (!file) throw UsageError({"verify"}, "'", line.text("record"), "' cannot be written. Give another file.");
  const auto run = plan::read_verify_run(result.record, line.text("record"));
  if (result.exit_code != 0) return told_failure(num_processes, result.exit_code, true);
  const size_t num_steps = run.ranks.empty() ? 0 : run.ranks.front().steps.size();
  std::cout << "hasten verify: " << num_steps << " steps on " << plan::processes_text(run) << " are in '"
            << line.text("record") << "'\n";
  return 0;
}

int verify_program(const CommandLine& line, int num_processes) {
  const VerifyFolder folder;
  VerifyRunOptions options = run_options(line);
  options.num_shares = num_processes;
  options.whole = line.has("whole");
  const auto first = run_recorded(folder, "one", options, line.rest);
  const auto one = plan::read_verify_run(first.record, "record of the first run");
  if (first.exit_code != 0) return told_failure(1, first.exit_code);
  // A second run would say no more than the first, which has no step.
  if (one.ranks.empty() || one.ranks.front().steps.empty())
    return print_verdict(plan::compare_runs(one, one), one, one);
  options = run_options(line);
  options.num_processes = num_processes;
  options.launch_options = second_options(line);
  const auto second = run_recorded(folder, "many", options, line.rest);
  const auto many = plan::read_verify_run(second.record, "record of the second run");
  const auto verdict = plan::compare_runs(one, many, comparison(line));
  if (second.exit_code == 0) return print_verdict(verdict, one, many);
  // A difference before the failure may be what it comes from.
  using enum plan::VerifyDifference;
  const bool differs = !verdict.same() && verdict.difference != kNoRecord && verdict.difference != kNumSteps;
  if (differs) print_verdict(verdict, one, many);
  const auto left = differs ? std::nullopt : plan::find_rank_that_left(many);
  if (left) print_verdict(*left, one, many);
  told_failure(num_processes, second.exit_code, differs || left);
  return differs || left ? kDiffers : second.exit_code;
}

}  // namespace

const std::vector<launcher::OptionGroup>& verify_options() {
  using enum launcher::OptionKind;
  static const std::vector<launcher::OptionGroup> groups = {
      {"Options",
       "",
       {{.name = "num_processes",
         .letter = 'n',
         .kind = kInteger,
         .fallback = "2",
         .least = 1,
         .most = 1 << 16,
         .help = "Processes of the second run"},
        number("steps", 1, 1 << 30, "20", "Steps of the optimizer after which a run ends by itself"),
        {.name = "whole",
         .kind = kSwitch,
         .peers = launcher::kHasten,
         .help = "The one process takes the batches of all ranks at once, not one after the other"},
        number("stage", 0, 3, "", "The second run shards: optimizer state (1), gradients (2), parameters (3)"),
        {.name = "precision",
         .kind = kChoice,
         .peers = launcher::kHasten,
         .choices = "no fp16 bf16 fp8",
         .help = "The second run computes in it"},
        {.name = "tolerance",
         .kind = kReal,
         .peers = launcher::kHasten,
         .least = 0,
         .most = 1e6,
         .help = "Relative difference that counts as none; default: 2e-5; 2e-2 in fp16 and bf16; 0.1 between two "
                 "precisions"},
        number("seed", 0, INT32_MAX, "0", "Of the generators, which begin anew with each batch"),
        {.name = "record",
         .peers = launcher::kHasten,
         .value = "FILE",
         .help = "Make one run, on -n processes, and write its record"},
        {.name = "compare", .kind = kSwitch, .peers = launcher::kHasten, .help = "Compare two records"}}}};
  return groups;
}

int verify_command(const std::vector<std::string>& words) {
  const CommandLine line = launcher::read_command_line(verify_options(), words);
  if (line.help) return std::cout << help_of(kVerifyHelp, verify_options(), colours_wanted()), 0;
  if (!line.problems.empty()) launcher::refuse("verify", line.problems, "See hasten verify --help.");
  if (line.has("compare")) return compare_files(line);
  if (line.rest.empty()) throw UsageError({"verify"}, "no program is given. Usage: ", kVerifyHelp.usage);
  const int num_processes = number_of<int>(line, "num_processes", 2);
  if (line.has("record")) return record(line, num_processes);
  if (num_processes < 2) {
    throw UsageError({"verify"}, "-n ", num_processes,
                     ": one process is compared with several. Give at least 2, or "
                     "--record and --compare for two runs on one process.");
  }
  return verify_program(line, num_processes);
}

}  // namespace hasten::cli
