// The variables of one worker; see compose_environment.h. Accelerate's are accelerate_environment.h's.
#include "hasten/launch/plan/compose_environment.h"

#include <sstream>
#include <utility>

#include "hasten/core/strings.h"
#include "hasten/core/text.h"
#include "launch/plan/accelerate_environment.h"

namespace hasten::launcher {
namespace {

using Variables = std::map<std::string, std::string>;

void set_if_unset(Variables& variables, const char* name, const std::string& value) {
  std::string& current = variables[name];
  if (current.empty()) current = value;  // an empty value counts as unset (Environment::has)
}

// With one role a worker's rank in it is its rank in the world.
void set_role(Variables& variables, const RunSettings& run, const WorkerPlace& place) {
  RoleCount role{run.role, place.world_size};
  int role_rank = place.rank;
  for (const RoleCount& one : run.roles) {
    role = one;
    if (role_rank < one.count) break;
    role_rank -= one.count;
  }
  variables["ROLE_NAME"] = role.name;
  variables["ROLE_RANK"] = text(role_rank);
  variables["ROLE_WORLD_SIZE"] = text(role.count);
}

void set_torchrun(Variables& variables, const RunSettings& run, const WorkerPlace& place) {
  const auto set = [&](const char* name, const auto& value) { variables[name] = text(value); };
  set("RANK", place.rank);
  set("LOCAL_RANK", place.local_rank);
  set("WORLD_SIZE", place.world_size);
  set("LOCAL_WORLD_SIZE", place.local_world_size);
  set("GROUP_RANK", place.node_rank);
  set("GROUP_WORLD_SIZE", place.num_nodes);
  set_role(variables, run, place);
  if (!run.run_key.empty()) set("HASTEN_RUN_KEY", run.run_key);
  set("MASTER_ADDR", run.master_addr);
  set("MASTER_PORT", run.master_port);
  set("TORCHELASTIC_RESTART_COUNT", run.restart_count);
  set("TORCHELASTIC_MAX_RESTARTS", run.max_restarts);
  if (run.survive > 0) {
    set("HASTEN_SURVIVE", run.survive);
    set("HASTEN_RUN_STARTED", run.started_us);
  }
  set("TORCHELASTIC_RUN_ID", run.run_id);
  set("TORCHELASTIC_USE_AGENT_STORE", "False");
  set("TORCHELASTIC_ERROR_FILE", place.error_file);
  set("TORCHELASTIC_SIGNALS_TO_HANDLE", run.signals);
  set_if_unset(variables, "TORCH_NCCL_ASYNC_ERROR_HANDLING", "1");
  if (place.local_world_size > 1) set_if_unset(variables, "OMP_NUM_THREADS", "1");
}

// The watch's options reach the workers as variables.
void set_watch(Variables& variables, const LaunchSettings& settings) {
  for (const auto& [name, variable] : {std::pair("watch", "HASTEN_WATCH"), std::pair("hang_after", "HASTEN_HANG_AFTER"),
                                       std::pair("on_hang", "HASTEN_ON_HANG")}) {
    if (settings.of(name).source == Source::kOption) variables[variable] = *settings.text(name);
  }
}

// The worker's GPU among the visible ones: its number, or its name.
void show_own_gpu_only(Variables& variables, const WorkerPlace& place) {
  const auto visible = core::split(variables["CUDA_VISIBLE_DEVICES"], ',');
  const auto index = static_cast<size_t>(place.local_rank);
  variables["CUDA_VISIBLE_DEVICES"] = index < visible.size() ? visible[index] : text(place.local_rank);
  variables["LOCAL_RANK"] = text(0);
}

}  // namespace

Environment compose_environment(const EnvironmentPlan& plan, const WorkerPlace& place) {
  Variables variables = plan.inherited.variables();
  for (const std::string& name : plan.withheld) variables.erase(name);
  if (plan.launch) {
    const auto& [settings, run_plan, machine] = *plan.launch;
    variables = accelerate_environment(Environment::of(variables), settings, run_plan, machine).variables();
  }
  set_torchrun(variables, plan.run, place);
  if (plan.launch) set_watch(variables, plan.launch->settings);
  if (!plan.network_interface.empty()) set_if_unset(variables, "GLOO_SOCKET_IFNAME", plan.network_interface);
  if (plan.launch && plan.launch->settings.on("for_gloo")) variables["HASTEN_FOR_GLOO"] = text(1);
  if (plan.launch && plan.launch->settings.on("virtual_local_rank")) show_own_gpu_only(variables, place);
  return Environment::of(std::move(variables));
}

std::vector<std::string> worker_arguments(const LaunchSettings& settings, const WorkerPlace& place) {
  const auto name = settings.text("pass_local_rank_as");
  if (!name && !settings.on("pass_local_rank")) return {};
  return {text("--", name.value_or("local-rank"), "=", place.local_rank)};
}

}  // namespace hasten::launcher
