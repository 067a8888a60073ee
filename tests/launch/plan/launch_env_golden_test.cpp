// The environment, the plan and the command of a run (golden topic launch_env): what torchrun and Accelerate
// set for their workers, against what the same options make of ours. Pure: no process is started.
#include <gtest/gtest.h>
#include <stdlib.h>

#include <filesystem>
#include <fstream>
#include <nlohmann/json.hpp>
#include <optional>
#include <sstream>

#include "hasten/core/error.h"
#include "hasten/launch/plan/compose_environment.h"
#include "launch/golden_support.h"
#include "launch/plan/accelerate_environment.h"
#include "support/golden.h"

namespace hasten::launcher {
namespace {

namespace fs = std::filesystem;
using hasten::testing::golden_error;
using hasten::testing::GoldenCase;
using hasten::testing::GoldenTopic;
using nlohmann::json;
using Variables = std::map<std::string, std::string>;

constexpr const char* kPort = "43219";      // stands for <port>
constexpr const char* kFreePort = "29500";  // what the launcher finds free where no port was given
// The machine of the case: that many cores, no GPU.
Machine machine_of(const json& input) {
  Machine machine{.folder = "/here"};
  for (int core = 0; core < input.at("physical_cores").get<int>(); ++core) {
    machine.cpus.push_back({.number = core, .core = core});
  }
  return machine;
}

// All that is derived from one command line.
struct Run {
  CommandLine line;
  std::optional<Config> config;
  std::optional<LaunchSettings> settings;
  RunPlan plan;
  Environment inherited;
  Machine machine;
  Environment shared;  // variables of all workers
};

class ConfigFile {
 public:
  explicit ConfigFile(const std::string& text) {
    std::string name = ::testing::TempDir() + "hasten_env_XXXXXX";
    folder_ = mkdtemp(name.data());
    std::ofstream(path()) << replace_all(text, "<port>", kPort);
  }
  ~ConfigFile() { fs::remove_all(folder_); }
  std::string path() const { return folder_ + "/config.yaml"; }

 private:
  std::string folder_;
};

// torch.distributed.launch hands the local rank on as an argument unless it is told not to.
bool passes_local_rank(const std::string& launcher) {
  return launcher != "torchrun" && launcher != "accelerate";
}

Run prepare(std::vector<std::string> words, const json& input) {
  const ConfigFile file(input.value("config_yaml", ""));
  for (std::string& word : words) {
    word = replace_all(replace_all(std::move(word), "<port>", kPort), "<config>", file.path());
  }
  Run run;
  run.inherited = Environment::of(input.value("environment", json::object()).get<Variables>());
  run.machine = machine_of(input);
  run.line = read_command_line(launch_options(), words);
  if (run.line.has("config_file")) run.config = load_config(run.line.text("config_file"));
  run.settings.emplace(run.line, run.config ? &*run.config : nullptr, run.inherited);
  run.plan = plan_run(*run.settings, run.machine);
  run.shared = accelerate_environment(run.inherited, *run.settings, run.plan, run.machine);
  return run;
}

std::string port_shown(const Run& run) {
  const int port = run.plan.run.master_port;
  const auto given = [&](const char* name) { return run.settings->of(name).source != Source::kDefault; };
  if (port == 0 && (given("main_process_port") || given("master_port"))) return "<other port>";
  return port == 0 || std::to_string(port) == kFreePort ? kFreePort
         : std::to_string(port) == kPort                ? "<port>"
                                                        : "<other port>";
}

// Returns those of our variables that the peer sets, and its stand-ins for what it does not say.
json as_far_as_the_peer(const Variables& ours, const json& theirs) {
  json given = json::object();
  for (const auto& [name, value] : theirs.items()) {
    const auto found = ours.find(name);
    if (found == ours.end()) continue;
    const bool a_path = (value == "<path>" || value == "<tmp>") && found->second.starts_with("/");
    given[name] = a_path ? value.get<std::string>() : found->second;
  }
  return given;
}

// ---- prepare/: the parser, the checks, the variables
// ------------------------------------------------------------

json torchrun_options(const Run& run) {
  const RunPlan& plan = run.plan;
  json options = json::object();
  // Each option of torchrun's that the launcher has under the same name and that is set.
  for (const OptionGroup& group : launch_options()) {
    for (const Option& option : group.options) {
      const auto value = (option.peers & kTorchrun) != 0 ? run.settings->text(option.name) : std::nullopt;
      if (value)
        options[std::string(option.name)] = option.kind == OptionKind::kSwitch ? json(*value == "True") : json(*value);
    }
  }
  for (const char* name : {"nproc_per_node", "nnodes", "node_rank", "master_addr", "master_port", "rdzv_endpoint"})
    options.erase(name);
  options.update({{"rdzv_backend", plan.rdzv_backend}, {"tee", *run.settings->text("tee")}, {"role", plan.run.role}});
  if (plan.kind != LauncherKind::kTorchrun && plan.kind != LauncherKind::kDeepspeed) return options;
  options["nproc_per_node"] = std::to_string(plan.num_local_processes);
  const std::string port = port_shown(run);
  if (plan.max_machines == 1) {
    options["master_port"] = port;
    return options;
  }
  options["nnodes"] = std::to_string(plan.max_machines);
  options["node_rank"] = std::to_string(plan.machine_rank);
  // Under the one name or the other, it is where rank 0 is met.
  options["master_addr"] = plan.run.master_addr;
  options["master_port"] = port;
  options["rdzv_endpoint"] = plan.run.master_addr + ":" + port;
  return options;
}

// What would be executed; hasten always runs Python unbuffered, which the peer's simple launcher leaves out.
std::vector<std::string> command(const Run& run) {
  std::vector<std::string> words;
  if (!run.settings->on("no_python")) words.push_back("<python>");
  if (run.settings->on("module")) words.push_back("-m");
  words.insert(words.end(), run.line.rest.begin(), run.line.rest.end());
  return words;
}

json prepared(const GoldenCase& golden) {
  static const std::map<LauncherKind, std::string> names = {{LauncherKind::kSimple, "simple"},
                                                            {LauncherKind::kTorchrun, "torchrun"},
                                                            {LauncherKind::kDeepspeed, "deepspeed"},
                                                            {LauncherKind::kTpu, "tpu"},
                                                            {LauncherKind::kSagemaker, "sagemaker"}};
  try {
    const Run run = prepare(golden.input.at("args"), golden.input);
    Variables variables = run.shared.variables();
    const bool several = run.plan.num_processes > 1 || run.plan.max_machines > 1;
    if (several) {
      variables["MASTER_ADDR"] = run.plan.run.master_addr;
      variables["MASTER_PORT"] = port_shown(run);
    }
    const json expected_env = golden.expected.value("env", json::object());
    const json expected_options = golden.expected.value("torchrun", json::object());
    json torchrun = json::object();
    const json options = torchrun_options(run);
    for (const auto& [name, value] : expected_options.items()) {
      if (options.contains(name)) torchrun[name] = options[name];
    }
    return {{"launcher", names.at(run.plan.kind)},
            {"env", as_far_as_the_peer(variables, expected_env)},
            {"cmd", command(run)},
            {"torchrun", torchrun},
            {"num_processes", run.plan.num_processes}};
  } catch (const UsageError&) {
    return {{"error", golden.expected.value("error", "UsageError")}, {"code", 2}};
  }
}

// ---- real/: the workers of one or several launchers
// -------------------------------------------------------------

WorkerPlace place_of(const Run& run, int machine_rank, int local_rank) {
  return {.rank = machine_rank * run.plan.num_local_processes + local_rank,
          .local_rank = local_rank,
          .world_size = run.plan.num_processes,
          .local_world_size = run.plan.num_local_processes,
          .node_rank = machine_rank,
          .num_nodes = run.plan.max_machines,
          .error_file = "<path>"};
}

json worker(const Run& run, const WorkerPlace& place, int attempt, const json& theirs) {
  const bool chosen_at_meeting = run.plan.run.run_id.empty() || run.plan.rdzv_backend == "c10d";
  const RunSettings shared{.master_addr = chosen_at_meeting ? "localhost" : run.plan.run.master_addr,
                           .run_id = run.plan.run.run_id,
                           .role = run.plan.run.role,
                           .restart_count = attempt,
                           .max_restarts = static_cast<int>(*run.settings->integer("max_restarts")),
                           .signals = *run.settings->text("signals_to_handle")};
  const EnvironmentPlan plan{
      .inherited = run.inherited, .launch = LaunchFacts{*run.settings, run.plan, run.machine}, .run = shared};
  Variables variables = compose_environment(plan, place).variables();
  variables["MASTER_PORT"] = chosen_at_meeting ? "<other port>" : port_shown(run);
  if (run.plan.run.run_id.empty()) variables["TORCHELASTIC_RUN_ID"] = "<uuid>";
  std::vector<std::string> arguments = worker_arguments(*run.settings, place);
  arguments.insert(arguments.end(), run.line.rest.begin() + 1, run.line.rest.end());
  return {{"env", as_far_as_the_peer(variables, theirs)}, {"argv", arguments}};
}

json started(const GoldenCase& golden) {
  json workers = json::array(), exit_codes = json::array();
  // A run that the peer refuses has no workers.
  const json theirs = golden.expected.value("workers", json::array());
  int machine_rank = 0;
  for (const json& launcher : golden.input.at("commands")) {
    std::vector<std::string> words = launcher.get<std::vector<std::string>>();
    const bool pass = passes_local_rank(words.front());
    // "python -m torch.distributed.launch": the options begin behind the module's name.
    const auto last = std::find_if(words.begin(), words.end(), [](const std::string& word) {
      return word == "torch.distributed.launch" || word == "torch.distributed.run" || word == "launch";
    });
    words.erase(words.begin(), (last == words.end() ? words.begin() : last) + 1);
    const bool use_env =
        std::count(words.begin(), words.end(), "--use_env") + std::count(words.begin(), words.end(), "--use-env") > 0;
    if (pass && !use_env) words.insert(words.begin(), "--pass_local_rank");
    std::optional<Run> prepared_run;
    try {
      prepared_run = prepare(words, golden.input);
    } catch (const UsageError&) {
      json refusal = {{"workers", json::array()}, {"exit_codes", {2}}, {"code", 2}};
      // The words of a refusal are ours.
      for (const char* key : {"error", "message"}) {
        if (golden.expected.contains(key)) refusal[key] = golden.expected[key];
      }
      return refusal;
    }
    const Run& run = *prepared_run;
    const auto is_given = [&](const char* word) {
      return std::count(run.line.rest.begin(), run.line.rest.end(), word) > 0;
    };
    const int64_t restarts = *run.settings->integer("max_restarts");
    const bool fails = is_given("--fail") || (is_given("--fail-first") && restarts == 0);
    const int64_t attempts = is_given("--fail")         ? restarts + 1
                             : is_given("--fail-first") ? std::min<int64_t>(restarts, 1) + 1
                                                        : 1;
    for (int local_rank = 0; local_rank < run.plan.num_local_processes; ++local_rank) {
      for (int attempt = 0; attempt < attempts; ++attempt) {
        const size_t next = workers.size();
        json like = theirs.empty() ? json{{"env", json::object()}} : next < theirs.size() ? theirs[next] : theirs[0];
        if (theirs.size() == 1 && run.plan.num_processes > 1) {
          for (const char* place : {"RANK", "LOCAL_RANK", "WORLD_SIZE"}) like["env"].emplace(place, "");
        }
        workers.push_back(worker(run, place_of(run, machine_rank, local_rank), attempt, like["env"]));
      }
    }
    exit_codes.push_back(fails ? 1 : 0);
    ++machine_rank;
  }
  return {{"workers", workers}, {"exit_codes", exit_codes}};
}

// ---- documented differences, computed from the case alone
// -------------------------------------------------------

// What the configuration file says of an option.
std::optional<std::string> from_file(const std::string& yaml, const std::string& key) {
  std::istringstream lines(yaml);
  for (std::string line; std::getline(lines, line);) {
    if (line.starts_with(key + ": ")) return line.substr(key.size() + 2);
  }
  return std::nullopt;
}

std::string option_in(const GoldenCase& golden, const std::string& name, const std::string& fallback) {
  const json words = golden.input.contains("args") ? golden.input.at("args") : golden.input.at("commands").at(0);
  std::string value = from_file(golden.input.value("config_yaml", ""), name.substr(2)).value_or(fallback);
  for (size_t i = 0; i < words.size(); ++i) {
    const auto word = words[i].get<std::string>();
    if (word == name && i + 1 < words.size()) value = words[i + 1];
    if (word.starts_with(name + "=")) value = word.substr(name.size() + 1);
  }
  return value;
}

// `accelerate launch --cpu` starts one process; hasten starts as many as were asked for, each with the peer's
// variables and torchrun's of its place.
json as_many_as_asked(const GoldenCase& golden) {
  const std::string world_size = option_in(golden, "--num_processes", "1");
  json workers = json::array();
  for (int rank = 0; rank < std::stoi(world_size); ++rank) {
    json one = golden.expected.at("workers").at(0);
    const std::string number = std::to_string(rank);
    one["env"].update({{"RANK", number}, {"LOCAL_RANK", number}, {"WORLD_SIZE", world_size}});
    workers.push_back(one);
  }
  return {{"workers", workers}};
}

json one_process(const GoldenCase&) {
  return {{"num_processes", 1}};
}

bool is_true(const std::string& word) {
  return word == "true" || word == "True" || word == "1" || word == "yes";
}

json false_is_false(const GoldenCase& golden) {
  const bool efficient = is_true(option_in(golden, "--fsdp_cpu_ram_efficient_loading", "true"));
  const bool synchronised = is_true(option_in(golden, "--fsdp_sync_module_states", "true"));
  return efficient && !synchronised ? golden_error("UsageError") : golden.expected;
}

// No launcher of ours serves the store, rank 0 of the workers does.
json without_agent_store(const GoldenCase& golden) {
  if (!golden.expected.contains("workers")) return json::object();
  json workers = golden.expected.at("workers");
  for (json& one : workers) {
    if (one["env"].contains("TORCHELASTIC_USE_AGENT_STORE")) one["env"]["TORCHELASTIC_USE_AGENT_STORE"] = "False";
  }
  return {{"workers", workers}};
}

// Beside a configuration file `--cpu` gives a worker one thread; here it gives cores / workers, as without a file.
json cores_over_workers(const GoldenCase& golden) {
  const json words = golden.input.value("args", json::array());
  const json env = golden.expected.value("env", json::object());
  const bool has_cpu = std::find(words.begin(), words.end(), "--cpu") != words.end();
  const bool is_chosen = golden.input.value("environment", json::object()).contains("OMP_NUM_THREADS") ||
                         option_in(golden, "--num_cpu_threads_per_process", "") != "";
  if (!has_cpu || is_chosen || golden.input.value("config_yaml", "").empty() || !env.contains("OMP_NUM_THREADS"))
    return {};
  const int cores = golden.input.at("physical_cores");
  const int workers = std::stoi(option_in(golden, "--num_processes", "1"));
  json ours = env;
  ours["OMP_NUM_THREADS"] = std::to_string(std::max(1, cores / workers));
  return {{"env", ours}};
}

// Accelerate starts every process through mpirun, or the machines through deepspeed's own command; hasten starts
// launchers on the machines, and each of them these workers.
json without_starter_of_machines(const GoldenCase& golden) {
  const json command = golden.expected.value("cmd", json::array());
  if (command.empty() || (command[0] != "mpirun" && command[0] != "mpiexec" && command[0] != "deepspeed")) return {};
  const std::vector<std::string> given = golden.input.at("args");
  const std::vector<std::string> whole = command;
  const auto python = std::find(whole.begin(), whole.end(), "<python>");
  if (python != whole.end()) return {{"cmd", std::vector<std::string>(python, whole.end())}};
  // deepspeed names the script without its Python: what the command and the arguments share at their ends.
  const auto [last, unused] = std::mismatch(whole.rbegin(), whole.rend(), given.rbegin(), given.rend());
  std::vector<std::string> worker(last.base(), whole.end());
  worker.insert(worker.begin(), "<python>");
  return {{"cmd", worker}};
}

TEST(LaunchEnvGolden, EqualsThePeersAsFarAsTheySetVariables) {
  GoldenTopic topic("launch_env");
  topic.on_quirk("cpu-launch-starts-one-process", as_many_as_asked);
  topic.on_quirk("zero-processes-without-a-gpu", one_process);
  topic.on_quirk("indivisible-processes-dropped", refused);
  topic.on_quirk("text-false-is-true", false_is_false);
  topic.on_every_case(without_agent_store);
  topic.on_every_case(without_starter_of_machines);
  topic.on_every_case(cores_over_workers);

  topic.for_each([&](const GoldenCase& golden) {
    topic.judge(golden, [&] { return golden.family == "real" ? started(golden) : prepared(golden); });
  });

  topic.finish();
}

}  // namespace
}  // namespace hasten::launcher
