// See resolve.h.
#include "tracking/follower/resolve.h"

#include <algorithm>
#include <set>

#include "hasten/core/error.h"
#include "hasten/core/path_search.h"
#include "hasten/core/sentence.h"
#include "hasten/core/strings.h"
#include "tracking/follower/child.h"

namespace hasten::tracking {
namespace {

const Origin kOrigin{"tracking"};

bool is_secret(const std::string& name) {
  const std::string key = core::lower(name);
  return key.find("api_key") != std::string::npos || key.find("apikey") != std::string::npos ||
         key.find("password") != std::string::npos || key.find("secret") != std::string::npos || key == "token" ||
         key.ends_with("_token");
}

void refuse_secrets(const core::Value& options, const std::string& tracker) {
  for (const auto& [key, value] : flatten(options)) {
    const std::string last = key.substr(key.rfind('/') + 1);
    if (is_secret(last)) {
      throw UsageError(
          kOrigin, "init_kwargs for '", tracker, "' has '", key,
          "', which looks like a secret and would stand in the journal; expected none. Set the client's own variable "
          "of the environment (WANDB_API_KEY, COMET_API_KEY …).");
    }
  }
}

void check_options(const RegistryEntry& entry, const core::Value& options) {
  const std::string& name = entry.traits.name;
  if (!options.is_null() && !options.is_map()) {
    throw UsageError(kOrigin, "init_kwargs for '", name, "' is ", options.to_json(),
                     "; expected a map of its options.");
  }
  refuse_secrets(options, name);
  if (!options.is_map() || !entry.make || !entry.is_built_in) return;
  for (const auto& [key, value] : options.as_map()) {
    if (std::find(entry.options.begin(), entry.options.end(), key) != entry.options.end()) continue;
    throw UsageError(kOrigin, "the tracker '", name, "' has no option '", key, "'", guess_end(key, entry.options),
                     " It has: ", entry.options.empty() ? "none" : join(entry.options), ".");
  }
}

// The meaning of "all" here.
std::vector<std::string> all_trackers(const TrackersSetup& setup, bool probe, std::vector<std::string>& infos) {
  std::vector<std::string> names, modules;
  if (!setup.logging_dir.empty()) names.push_back("tensorboard");
  if (setup.environment.has("MLFLOW_TRACKING_URI")) names.push_back("mlflow");
  for (const std::string& name : setup.options.registry.names()) {
    const auto& entry = setup.options.registry.at(name);
    if (!entry.python_module.empty() && name != "mlflow") modules.push_back(entry.python_module);
  }
  const auto python = tracker_python(setup.environment);
  if (probe && !python.empty()) {
    for (const std::string& module : python_modules(python, modules, setup.environment)) {
      if (module != "aim" || !setup.logging_dir.empty()) names.push_back(module);
    }
  }
  infos.push_back("log_with \"all\" stands for: " + (names.empty() ? "nothing" : join(names)));
  return names;
}

// Python clients that are requested and are not there.
void require_clients(const TrackersSetup& setup, const std::vector<std::string>& names) {
  std::vector<std::string> modules;
  for (const std::string& name : names) {
    const auto& entry = setup.options.registry.at(name);
    const bool over_rest =
        name == "mlflow" && setup.environment.text("MLFLOW_TRACKING_URI").value_or("").starts_with("http");
    if (!entry.python_module.empty() && !over_rest) modules.push_back(entry.python_module);
  }
  if (modules.empty()) return;
  const auto python = tracker_python(setup.environment);
  if (python.empty()) {
    throw UsageError(kOrigin, "the trackers ", join(modules),
                     " are clients in Python, and there is no python3 on PATH. Install Python, or set "
                     "HASTEN_TRACKER_PYTHON to one that has them.");
  }
  const auto found = python_modules(python, modules, setup.environment);
  std::erase_if(
      modules, [&](const std::string& module) { return std::find(found.begin(), found.end(), module) != found.end(); });
  if (modules.empty()) return;
  std::vector<std::string> packages = modules;
  std::replace(packages.begin(), packages.end(), std::string("comet_ml"), std::string("comet-ml"));
  throw UsageError(
      kOrigin, "the Python ", python, " lacks ", join(modules), ", which log_with asks for. Install: ", python.string(),
      " -m pip install ", join(packages, " "), "; or set HASTEN_TRACKER_PYTHON to one that has them.",
      names.size() == 1 && names.front() == "mlflow" ? " A server at http:// (MLFLOW_TRACKING_URI) needs none." : "");
}

}  // namespace

std::vector<std::string> ResolvedTrackers::names() const {
  std::vector<std::string> all;
  for (const auto* list : {&own, &built_in}) {
    for (const SinkConfig& sink : *list) all.push_back(sink.name);
  }
  return all;
}

ResolvedTrackers resolve_trackers(const TrackersSetup& setup, const core::Value& init_kwargs, bool probe) {
  const Registry& registry = setup.options.registry;
  ResolvedTrackers resolved;
  for (const std::string& name : registry.overwritten()) {
    resolved.infos.push_back(text("the tracker '", name, "' was registered twice; the last one counts"));
  }
  std::set<std::string> seen;
  std::vector<std::string> named;
  for (const LogWith& one : setup.log_with) {
    if (one.tracker()) {
      if (seen.insert(one.name()).second) resolved.own.push_back({one.name(), {}, one.tracker()});
      continue;
    }
    const bool all = one.name() == "all";
    for (const std::string& name :
         all ? all_trackers(setup, probe, resolved.infos) : std::vector<std::string>{one.name()}) {
      const RegistryEntry& entry = registry.at(name);
      if (!seen.insert(name).second) continue;
      if (entry.traits.requires_logging_directory && setup.logging_dir.empty()) {
        throw UsageError(kOrigin, "the tracker '", name,
                         "' needs a folder. Set AcceleratorOptions.project.project_dir or logging_dir.");
      }
      const core::Value* options = init_kwargs.find(name);
      SinkConfig sink{name, options != nullptr ? *options : core::Value(), {}};
      check_options(entry, sink.options);
      if (!entry.is_built_in) sink.tracker = entry.make(sink.options, setup.environment);
      if (entry.is_built_in && !all) named.push_back(name);
      (entry.is_built_in ? resolved.built_in : resolved.own).push_back(std::move(sink));
    }
  }
  if (init_kwargs.is_map()) {
    for (const auto& [name, options] : init_kwargs.as_map()) {
      if (seen.count(name) != 0) continue;
      const auto used = resolved.names();
      throw UsageError(kOrigin, "init_kwargs is for '", name, "', which log_with does not name", guess_end(name, used),
                       " It names: ", used.empty() ? "nothing" : join(used), ".");
    }
  } else if (!init_kwargs.is_null() && !init_kwargs.empty()) {
    throw UsageError(kOrigin, "init_kwargs is ", init_kwargs.to_json(),
                     "; expected a map with a map of options a tracker.");
  }
  if (probe) require_clients(setup, named);
  return resolved;
}

void require_project_name(const std::string& project) {
  const bool bad = project.empty() || project.find('/') != std::string::npos ||
                   project.find("..") != std::string::npos || project.find('\0') != std::string::npos ||
                   project.size() > 200 || project.front() == '.';
  if (bad) {
    throw UsageError(kOrigin, "the project name '", project.substr(0, 200),
                     "' is no name of a folder; expected 1 to 200 bytes without "
                     "'/', '..' and NUL that do not begin with '.'. Choose another one.");
  }
}

std::filesystem::path tracker_python(const Environment& environment) {
  if (const auto python = environment.text("HASTEN_TRACKER_PYTHON")) {
    const auto found = core::find_on_path(*python, environment);
    if (found.empty()) {
      throw UsageError(kOrigin, "HASTEN_TRACKER_PYTHON=", *python,
                       " is no program; expected a Python with the trackers' clients. "
                       "Correct or unset it.");
    }
    return found;
  }
  return core::find_on_path("python3", environment);
}

std::vector<std::string> python_modules(const std::filesystem::path& python, const std::vector<std::string>& modules,
                                        const Environment& environment) {
  std::vector<std::string> arguments = {python.string(), "-c",
                                        "import importlib.util as u, sys\n"
                                        "for m in sys.argv[1:]:\n"
                                        "    if u.find_spec(m): print(m, flush=True)\n"};
  arguments.insert(arguments.end(), modules.begin(), modules.end());
  Child child({.arguments = std::move(arguments), .environment = environment});
  std::vector<std::string> found;
  const auto until = std::chrono::steady_clock::now() + std::chrono::seconds(30);
  while (!child.output_ended() && std::chrono::steady_clock::now() < until) {
    for (std::string& line : child.read_lines(std::chrono::milliseconds(100))) found.push_back(std::move(line));
  }
  if (!child.output_ended()) child.kill();
  child.wait(std::chrono::seconds(5));
  return found;
}

std::filesystem::path journal_root(const TrackersSetup& setup) {
  if (!setup.options.journal_dir.empty()) return setup.options.journal_dir;
  if (!setup.logging_dir.empty()) return setup.logging_dir;
  if (const auto state = setup.environment.text("XDG_STATE_HOME")) return std::filesystem::path(*state) / "hasten";
  if (const auto home = setup.environment.text("HOME")) return std::filesystem::path(*home) / ".local/state/hasten";
  throw UsageError(kOrigin,
                   "there is no folder for the journal: neither journal_dir, project_dir nor HOME is set. Set "
                   "AcceleratorOptions.project.project_dir.");
}

}  // namespace hasten::tracking
