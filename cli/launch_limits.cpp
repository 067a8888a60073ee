// The list behind launch_limits.h.
#include "launch_limits.h"

#include "hasten/core/text.h"

namespace hasten::cli {

std::vector<std::string> what_cannot_be_done(const launcher::LaunchSettings& settings) {
  std::vector<std::string> problems;
  const auto refuse = [&](const char* option, const char* reason) {
    problems.push_back(text("--", option, " ", *settings.text(option), ": ", reason));
  };
  if (settings.has("logs_specs"))
    refuse("logs_specs", "it names a Python class, and the launcher runs no Python; leave it out");
  if (settings.text("event_log_handler") != "null") {
    refuse("event_log_handler", "it names a Python function, and the launcher runs no Python; leave it out");
  }
  if (settings.on("tpu_cluster"))
    problems.push_back("--tpu_cluster: the machines of a TPU pod are reached by hasten tpu-config");
  if (settings.on_sagemaker()) {
    problems.push_back("compute_environment AMAZON_SAGEMAKER: jobs for SageMaker are submitted with its Python SDK");
  }
  return problems;
}

}  // namespace hasten::cli
