// See report_errors.h.
#include "hasten/process/report_errors.h"

#include "hasten/core/error.h"
#include "process/failure_reporter.h"

namespace hasten::process {

std::shared_ptr<const void> report_errors(const Environment& environment) {
  FailureReporter facts{.error_file = environment.text("TORCHELASTIC_ERROR_FILE").value_or("")};
  try {
    facts.identity = read_rank_info(environment);
  } catch (const UsageError&) {
    // The Process refuses the variables; until then the rank has no number.
  }
  const auto reporter = std::make_shared<const FailureReporter>(std::move(facts));
  install_terminate_handler(reporter);
  return reporter;
}

std::shared_ptr<const void> report_errors_alone(const Environment& environment) {
  return has_reporter() ? nullptr : report_errors(environment);
}

}  // namespace hasten::process
