// hasten::launch; see launch.h.
#include "hasten/launch/run/launch.h"

#include <algorithm>
#include <cstdio>
#include <exception>
#include <filesystem>
#include <iostream>

#include "hasten/core/count_text.h"
#include "hasten/core/error.h"
#include "hasten/core/sentence.h"
#include "hasten/launch/base/standard_descriptors.h"
#include "launch/workers/error_file.h"

namespace hasten::launcher {
namespace {

void require_one_thread() {
  const std::filesystem::directory_iterator threads("/proc/self/task");
  const auto num_threads = std::distance(begin(threads), end(threads));
  if (num_threads == 1) return;
  throw UsageError({"launch"}, "this process has ", count_text(num_threads, "thread"),
                   ", and a fork takes only one along; ",
                   "expected 1. Call hasten::launch first in main, before libtorch computes anything, or start the ",
                   "program with `hasten launch -n …`.");
}

// In the worker's process, which has no handler for exceptions.
int run_and_report(const std::function<int(int)>& function, int rank, const Environment& environment) {
  const auto fail = [&](const char* message, int exit_code) {
    std::cerr << std::string(message) + "\n" << std::flush;
    write_error_file(environment.text("TORCHELASTIC_ERROR_FILE").value_or(""), message);
    return exit_code;
  };
  try {
    return function(rank);
  } catch (const UsageError& error) {
    return fail(error.what(), 2);
  } catch (const std::exception& error) {
    return fail(error.what(), 1);
  } catch (...) {
    return fail("an exception that is no std::exception", 1);
  }
}

Environment with_options(const Environment& inherited, const LaunchOptions& options) {
  static const std::vector<std::string> kPrecisions = {"no", "fp16", "bf16", "fp8"};
  auto variables = inherited.variables();
  if (const std::string& precision = options.mixed_precision; !precision.empty()) {
    if (std::find(kPrecisions.begin(), kPrecisions.end(), precision) == kPrecisions.end()) {
      throw UsageError({"launch"}, "mixed_precision is '", precision, "'", guess_end(precision, kPrecisions),
                       " Expected one of ", join(kPrecisions), '.');
    }
    variables["ACCELERATE_MIXED_PRECISION"] = precision;
  }
  if (options.cpu) variables["ACCELERATE_USE_CPU"] = "True";
  return Environment::of(std::move(variables));
}

}  // namespace

int launch_function(int num_processes, const std::function<int(int)>& function, const LaunchOptions& options) {
  const Environment inherited = with_options(Environment::current(), options);
  require_one_thread();
  open_standard_descriptors();
  return run_local(num_processes, options, {.inherited = inherited},
                   [&](const WorkerPlace& place, const Environment& environment) {
                     environment.apply();
                     const int exit_code = run_and_report(function, place.rank, environment);
                     std::cout.flush();
                     std::fflush(nullptr);
                     return exit_code;
                   });
}

}  // namespace hasten::launcher
