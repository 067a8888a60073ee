// The rules behind option_conflicts.h, one function a subject.
#include "launch/plan/option_conflicts.h"

#include <algorithm>
#include <sstream>

#include "hasten/core/number.h"
#include "hasten/core/strings.h"
#include "hasten/core/text.h"
#include "hasten/launch/base/signals.h"
#include "hasten/launch/output/stream_choice.h"

namespace hasten::launcher {
namespace {

using core::split;
using Problems = std::vector<std::string>;

// "--fsdp_version 1" or "fsdp_version 1 (c.yaml: …)".
std::string shown(const LaunchSettings& settings, const char* name) {
  const Setting& setting = settings.of(name);
  const bool is_switch = setting.option->kind == OptionKind::kSwitch;
  const std::string value = is_switch || setting.values.empty() ? "" : " " + setting.values.back();
  if (setting.source == Source::kOption) return text("--", name, value);
  return text(name, value, " (", setting.origin, ")");
}

void ways_of_training(const LaunchSettings& settings, Problems& problems) {
  std::vector<std::string> chosen;
  for (const char* name : {"cpu", "multi_gpu", "tpu", "use_deepspeed", "use_fsdp"}) {
    if (settings.on(name) && settings.of(name).source == Source::kOption) chosen.push_back(text("--", name));
  }
  if (chosen.size() > 1) problems.push_back(text(join(chosen, " and "), " exclude each other; give one"));
  const auto num_processes = settings.integer("num_processes");
  if (settings.of("multi_gpu").source == Source::kOption && num_processes && *num_processes < 2) {
    problems.push_back(text("--multi_gpu needs at least 2 processes, but there is ", shown(settings, "num_processes")));
  }
  const bool one_gpu =
      settings.has("gpu_ids") && *settings.text("gpu_ids") != "all" && split(*settings.text("gpu_ids"), ',').size() < 2;
  const bool one_machine = settings.integer("num_machines").value_or(1) <= 1;
  if (settings.from_config() && settings.on("multi_gpu") && one_gpu && one_machine) {
    problems.push_back(text(shown(settings, "gpu_ids"), " is one GPU, but ", shown(settings, "multi_gpu"),
                            " needs two; give more, or all"));
  }
}

void sharding(const LaunchSettings& settings, Problems& problems) {
  if (settings.of("use_parallelism_config").source == Source::kOption && !settings.on("use_fsdp")) {
    problems.push_back("--use_parallelism_config needs --use_fsdp with --fsdp_version 2");
  }
  if (settings.on("use_fsdp") && settings.on("fsdp_cpu_ram_efficient_loading") &&
      !settings.on("fsdp_sync_module_states")) {
    problems.push_back(text(shown(settings, "fsdp_cpu_ram_efficient_loading"), " needs fsdp_sync_module_states",
                            " true, but there is ", shown(settings, "fsdp_sync_module_states")));
  }
}

void precision(const LaunchSettings& settings, const Machine& machine, Problems& problems) {
  if (settings.text("mixed_precision") != "fp8") return;
  if (machine.num_gpus() == 0 || settings.on("cpu")) {
    problems.push_back(text(shown(settings, "mixed_precision"), " needs a GPU, and ",
                            settings.on("cpu") ? "this run stays on the CPU" : "this machine has none"));
  }
}

// "0,2", "all", and the names that CUDA gives GPUs and their parts.
void devices(const LaunchSettings& settings, Problems& problems) {
  const std::string ids = settings.text("gpu_ids").value_or("all");
  if (ids == "all") return;
  for (const std::string& part : split(ids, ',')) {
    const std::string word = std::string(core::trim(part));
    const auto number = core::whole_number<int64_t>(word);
    if (number ? *number >= 0 : word.starts_with("GPU-") || word.starts_with("MIG-")) continue;
    problems.push_back(text(shown(settings, "gpu_ids"), " names '", word,
                            "', which is no GPU; expected numbers such as 0,2, names such as GPU-8932f937, or all"));
  }
}

void program(const LaunchSettings& settings, Problems& problems) {
  const bool no_python = settings.on("no_python");
  if (settings.on("module") && no_python && !settings.on("run_path")) {
    problems.push_back("--module needs Python, which --no_python leaves out; give one");
  }
  if (settings.on("use_env") && settings.on("pass_local_rank")) {
    problems.push_back("--use_env leaves out the argument that --pass_local_rank asks for; give one");
  }
  if (settings.on("use_env") && settings.has("pass_local_rank_as")) {
    problems.push_back("--use_env leaves out the argument that --pass_local_rank_as asks for; give one");
  }
  if (settings.on("tpu") && no_python) problems.push_back("--tpu starts Python scripts, so it excludes --no_python");
}

void rendezvous(const LaunchSettings& settings, Problems& problems) {
  static const std::vector<std::string> backends = {"static", "c10d", "etcd", "etcd-v2"};
  const std::string backend = *settings.text("rdzv_backend");
  if (std::find(backends.begin(), backends.end(), backend) == backends.end()) {
    problems.push_back(
        text("--rdzv_backend: '", backend, "' is not one of ", join(backends), did_you_mean(backend, backends)));
  }
  for (const std::string& pair : split(settings.text("rdzv_conf").value_or(""), ',')) {
    if (pair.find('=') == std::string::npos || pair.starts_with("=")) {
      problems.push_back(text("--rdzv_conf: '", pair, "' is not KEY=VALUE"));
    }
  }
}

// Returns true if the choice has the stream (1 or 2) for any worker.
bool has_stream(const StreamChoice& choice, int stream) {
  return (choice.of_all & stream) != 0 || std::any_of(choice.by_local_rank.begin(), choice.by_local_rank.end(),
                                                      [stream](const auto& one) { return (one.second & stream) != 0; });
}

void output(const LaunchSettings& settings, Problems& problems) {
  for (const char* name : {"redirects", "tee"}) {
    if (!read_stream_choice(*settings.text(name))) {
      problems.push_back(text("--", name, ": '", *settings.text(name),
                              "' names no streams; expected 0 to 3, or RANK:0 to 3 for some ranks (0:1,1:3)"));
    }
  }
  const StreamChoice teed = read_stream_choice(*settings.text("tee")).value_or(StreamChoice());
  const std::pair<const char*, int> filters[] = {{"duplicate_stdout_filters", 1}, {"duplicate_stderr_filters", 2}};
  for (const auto& [name, stream] : filters) {
    if (!settings.has(name) || has_stream(teed, stream)) continue;
    problems.push_back(
        text(shown(settings, name), " copies lines of what --tee takes; give --tee ", stream, " or 3 as well"));
  }
  const std::string filter = settings.text("local_ranks_filter").value_or("");
  if (!read_local_ranks(filter))
    problems.push_back(text("--local_ranks_filter: '", filter, "' is no list of local ranks such as 0,2"));
}

void supervision(const LaunchSettings& settings, Problems& problems) {
  auto signals = split(*settings.text("signals_to_handle"), ',');
  if (signals.empty()) signals.emplace_back();  // it has no part, but is no signal
  for (const std::string& name : signals) {
    const std::string problem = problem_with_signal(name);
    if (!problem.empty()) problems.push_back(text("--signals_to_handle: ", problem));
  }
  const auto threads = settings.text("num_cpu_threads_per_process");
  const bool typed = settings.of("num_cpu_threads_per_process").source == Source::kOption;
  if (typed && *threads != "auto" && core::whole_number<int>(*threads).value_or(0) < 1) {
    problems.push_back(
        text("--num_cpu_threads_per_process: '", *threads, "' is neither a number of at least 1 nor auto"));
  }
}

}  // namespace

std::vector<std::string> option_conflicts(const LaunchSettings& settings, const Machine& machine) {
  Problems problems;
  ways_of_training(settings, problems);
  sharding(settings, problems);
  precision(settings, machine, problems);
  devices(settings, problems);
  program(settings, problems);
  rendezvous(settings, problems);
  output(settings, problems);
  supervision(settings, problems);
  return problems;
}

}  // namespace hasten::launcher
