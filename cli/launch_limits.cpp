// The list behind launch_limits.h.
#include "launch_limits.h"

#include "hasten/core/text.h"

namespace hasten::cli {
namespace {

struct Limit {
  const char* option;
  const char* allowed;  // the value that asks for nothing
  const char* reason;
};

constexpr Limit kLimits[] = {
    {"duplicate_stdout_filters", "", "output cannot be filtered"},
    {"duplicate_stderr_filters", "", "output cannot be filtered"},
    {"logs_specs", "", "it names a Python class, and the launcher runs no Python"},
    {"event_log_handler", "null", "it names a Python function, and the launcher runs no Python"},
    {"mpirun_hostfile", "",
     "give it as --hostfile, with --launcher openmpi, or run mpirun hasten launch … yourself"},
};

}  // namespace

void refuse_what_cannot_be_done(const launcher::LaunchSettings& settings) {
  std::vector<std::string> problems;
  for (const Limit& limit : kLimits) {
    const auto value = settings.text(limit.option);
    if (value && *value != limit.allowed)
      problems.push_back(text("--", limit.option, " ", *value, ": ", limit.reason));
  }
  if (settings.on("tpu_cluster"))
    problems.push_back("--tpu_cluster: the machines of a TPU pod are reached by hasten tpu-config");
  if (settings.on_sagemaker()) {
    problems.push_back(
        "compute_environment AMAZON_SAGEMAKER: jobs for SageMaker are submitted with its Python SDK");
  }
  if (!problems.empty()) launcher::refuse("launch", problems, "Leave it out, or see docs/launch.md.");
}

}  // namespace hasten::cli
