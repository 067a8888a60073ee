// The std::terminate handler behind failure_reporter.h.
//
// A terminate handler is a property of the process, so what it needs is too: the one function-local static
// of this room. It holds weak pointers, so that no group outlives its Process into the end of the program. A program
// may have several Processes, which end in any order: those that are there count.
#include "process/failure_reporter.h"

#include <c10/util/Type.h>
#include <cxxabi.h>
#include <unistd.h>

#include <atomic>
#include <chrono>
#include <cstdio>
#include <cstdlib>
#include <exception>
#include <fstream>
#include <mutex>
#include <optional>
#include <thread>
#include <typeinfo>
#include <utility>
#include <vector>

#include "compat/exception_message.h"
#include "hasten/core/error.h"
#include "hasten/core/value.h"
#include "hasten/flight/recorder.h"

namespace hasten::process {
namespace {

using Clock = std::chrono::steady_clock;

constexpr auto kLongestEnd = std::chrono::seconds(8);
constexpr auto kLongestWait = std::chrono::seconds(5);
constexpr const char* kHereKey = "hasten/last_words/here";

struct Installed {
  std::mutex mutex;
  /// In the order in which they were installed.
  std::vector<std::weak_ptr<const FailureReporter>> reporters;
  std::terminate_handler previous = nullptr;
  std::atomic<bool> ending = false;
};

Installed& installed() {
  static Installed* const state = new Installed;  // never destroyed: std::terminate may come at the very end
  return *state;
}

using Reporters = std::vector<std::shared_ptr<const FailureReporter>>;

// Returns those whose owners are there, the last installed one first.
Reporters living_reporters() {
  Installed& state = installed();
  const std::lock_guard lock(state.mutex);
  Reporters living;
  for (auto each = state.reporters.rbegin(); each != state.reporters.rend(); ++each) {
    if (auto reporter = each->lock()) living.push_back(std::move(reporter));
  }
  return living;
}

struct End {
  std::string message;
  int exit_code = 1;
};

// The name of the exception's type, as the program has it.
std::string type_of_exception() {
  const std::type_info* const type = abi::__cxa_current_exception_type();
  return type == nullptr ? "unknown type" : c10::demangle(type->name());
}

/// Returns the exception that ends the process, if there is one.
std::optional<End> uncaught() {
  const std::exception_ptr exception = std::current_exception();
  if (!exception) return std::nullopt;
  try {
    std::rethrow_exception(exception);
  } catch (const UsageError& error) {
    return End{error.what(), 2};
  } catch (const std::exception& error) {
    return End{compat::message_of(error)};
  } catch (...) {
    return End{text("an exception that is no std::exception (", type_of_exception(), ')')};
  }
}

void write_error_file(const std::string& path, const std::string& message) {
  if (path.empty()) return;
  const auto now = std::chrono::system_clock::now().time_since_epoch();
  std::ofstream(path) << error_file_text(message, std::chrono::duration_cast<std::chrono::seconds>(now).count());
}

/// Lets the others read the reason, and lets the failed rank end first, so that the launcher reports its exit code. The
/// process that serves the store waits for all others to come here. Those that only follow wait for it.
void wait_for_turn(const FailureReporter& last, bool follows, Clock::time_point deadline) {
  const bool serves = !last.identity.agent_store && last.identity.rank == 0;
  int64_t here = serves ? 0 : last.store->add(kHereKey, 1);
  if (!serves && (!follows || last.identity.agent_store)) return;
  while (Clock::now() < deadline && (!serves || here < last.identity.world_size - 1)) {
    std::this_thread::sleep_for(std::chrono::milliseconds(5));
    here = last.store->add(kHereKey, 0);  // throws when the process that serves it has ended
  }
}

// Posts the words to the groups of all Processes, since the others may wait in any of them.
void speak(const Reporters& reporters, const End& end) {
  if (const auto recorder = flight::process_recorder()) recorder->set_state(flight::PageState::kFailed);
  write_error_file(reporters.front()->error_file, end.message);
  std::vector<std::pair<const FailureReporter*, bool>> posted;
  for (const auto& reporter : reporters) {
    if (!reporter->group || !reporter->store) continue;
    const bool follows = reporter->group->failure().has_value();
    try {
      reporter->group->fail(end.message);
      posted.emplace_back(reporter.get(), follows);
    } catch (const std::exception&) {
      // The store has gone before; no rank is left to notify.
    }
  }
  const auto deadline = Clock::now() + kLongestWait;
  for (const auto& [reporter, follows] : posted) {
    try {
      wait_for_turn(*reporter, follows, deadline);
    } catch (const std::exception&) {
      // As above.
    }
  }
}

void print_once(const FailureReporter& last, const End& end) {
  const std::string who = text("rank ", last.identity.rank, '/', last.identity.world_size);
  // hasten's own messages name the rank already.
  const bool named = last.identity.world_size == 1 || end.message.find(who) != std::string::npos;
  const std::string line = text("hasten: ", named ? "" : who + ": ", end.message, '\n');
  [[maybe_unused]] const auto written = write(STDERR_FILENO, line.data(), line.size());
}

/// The program's output so far belongs before its end. But a lock that another thread holds is not waited for.
void flush_output() {
  if (ftrylockfile(stdout) != 0) return;
  fflush_unlocked(stdout);
  funlockfile(stdout);
}

[[noreturn]] void end_process(const Reporters& reporters, const End& end) {
  std::thread([code = end.exit_code] {
    std::this_thread::sleep_for(kLongestEnd);
    _exit(code);
  }).detach();
  flush_output();
  print_once(*reporters.front(), end);
  speak(reporters, end);
  _exit(end.exit_code);
}

[[noreturn]] void on_terminate() {
  Installed& state = installed();
  const auto reporters = living_reporters();
  const auto end = uncaught();
  if (!reporters.empty() && end) {
    // A second thread that fails meanwhile waits for the first to end the process.
    while (state.ending.exchange(true)) pause();
    end_process(reporters, *end);
  }
  if (state.previous) state.previous();
  std::abort();
}

}  // namespace

void install_terminate_handler(const std::shared_ptr<const FailureReporter>& reporter) {
  Installed& state = installed();
  const std::lock_guard lock(state.mutex);
  std::erase_if(state.reporters, [](const auto& each) { return each.expired(); });
  state.reporters.push_back(reporter);
  if (!state.previous) state.previous = std::set_terminate(on_terminate);
}

bool has_reporter() {
  return !living_reporters().empty();
}

std::string error_file_text(const std::string& message, int64_t seconds_since_1970) {
  const auto extra = core::Value::map({{"py_callstack", message}, {"timestamp", std::to_string(seconds_since_1970)}});
  return core::Value::map({{"message", core::Value::map({{"message", message}, {"extraInfo", extra}})}}).to_json();
}

}  // namespace hasten::process
