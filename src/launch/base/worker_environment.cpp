// torchrun's variables for one worker; see worker_environment.h.
#include "hasten/launch/base/worker_environment.h"

#include <map>

#include "hasten/core/text.h"

namespace hasten::launcher {

Environment worker_environment(const Environment& inherited, const RunSettings& settings,
                               const WorkerPlace& place, const std::string& error_file) {
  std::map<std::string, std::string> variables = inherited.variables();
  const auto set = [&](const char* name, const auto& value) { variables[name] = text(value); };
  const auto set_if_unset = [&](const std::string& name, const std::string& value) {
    if (!inherited.has(name)) variables[name] = value;
  };
  set("RANK", place.rank);
  set("LOCAL_RANK", place.local_rank);
  set("WORLD_SIZE", place.world_size);
  set("LOCAL_WORLD_SIZE", place.local_world_size);
  set("GROUP_RANK", place.node_rank);
  set("GROUP_WORLD_SIZE", place.num_nodes);
  // With one role a worker's place in it is its place in the world.
  RoleCount role{settings.role, place.world_size};
  int role_rank = place.rank;
  for (const RoleCount& one : settings.roles) {
    role = one;
    if (role_rank < one.count) break;
    role_rank -= one.count;
  }
  set("ROLE_NAME", role.name);
  set("ROLE_RANK", role_rank);
  set("ROLE_WORLD_SIZE", role.count);
  if (!settings.run_key.empty()) set("HASTEN_RUN_KEY", settings.run_key);
  set("MASTER_ADDR", settings.master_addr);
  set("MASTER_PORT", settings.master_port);
  set("TORCHELASTIC_RESTART_COUNT", settings.restart_count);
  set("TORCHELASTIC_MAX_RESTARTS", settings.max_restarts);
  set("TORCHELASTIC_RUN_ID", settings.run_id);
  set("TORCHELASTIC_USE_AGENT_STORE", "False");
  set("TORCHELASTIC_ERROR_FILE", error_file);
  set("TORCHELASTIC_SIGNALS_TO_HANDLE", settings.signals);
  set_if_unset("TORCH_NCCL_ASYNC_ERROR_HANDLING", "1");
  if (place.local_world_size > 1) set_if_unset("OMP_NUM_THREADS", "1");
  return Environment::of(std::move(variables));
}

}  // namespace hasten::launcher
