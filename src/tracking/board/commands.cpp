// See commands.h.
#include "hasten/tracking/board/commands.h"

#include <fcntl.h>
#include <poll.h>
#include <sys/file.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <thread>

#include "hasten/core/error.h"

namespace hasten::tracking {
namespace {

using FollowClock = std::chrono::steady_clock;

// A lock on a file beside a journal, for as long as it exists.
class FileLock {
 public:
  FileLock(std::filesystem::path path, double patience_s)
      : file_(open(path.c_str(), O_RDWR | O_CREAT | O_CLOEXEC, 0644)) {
    if (file_ < 0)
      throw DataError(Origin{"tracking"}, path, path, " cannot be made: ", std::strerror(errno),
                      ". Make the folder writable.");
    const auto until = FollowClock::now() + std::chrono::duration<double>(patience_s);
    while (!(held_ = flock(file_, LOCK_EX | LOCK_NB) == 0) && FollowClock::now() < until)
      std::this_thread::sleep_for(std::chrono::milliseconds(50));
    if (!held_) return;
    const std::string pid = text(getpid(), '\n');
    if (ftruncate(file_, 0) != 0 || pwrite(file_, pid.data(), pid.size(), 0) < 0)
      held_ = true;  // the pid is for people only
  }
  ~FileLock() { close(file_); }
  FileLock(const FileLock&) = delete;
  FileLock& operator=(const FileLock&) = delete;
  bool held() const noexcept { return held_; }
  std::string holder() const {
    char pid[32] = {};
    return pread(file_, pid, sizeof pid - 1, 0) > 0 ? std::string(pid, std::strcspn(pid, "\n")) : "?";
  }

 private:
  const int file_;
  bool held_ = false;
};

std::filesystem::path beside(std::filesystem::path journal, const char* extension) {
  return journal.replace_extension(extension);
}

// Returns true if a training process holds the journal.
bool is_written(const std::filesystem::path& journal) {
  const int file = open(beside(journal, ".lock").c_str(), O_RDWR | O_CLOEXEC);
  if (file < 0) return false;
  const bool free = flock(file, LOCK_EX | LOCK_NB) == 0;
  close(file);
  return !free;
}

bool input_ended(std::chrono::milliseconds timeout) {
  pollfd ready{0, POLLIN, 0};
  if (poll(&ready, 1, static_cast<int>(timeout.count())) <= 0) return false;
  char byte = 0;
  return read(0, &byte, 1) <= 0;
}

void sync_journal(const std::filesystem::path& journal) {
  int part = 1;
  while (std::filesystem::exists(journal_part(journal, part + 1))) ++part;
  const int file = open(journal_part(journal, part).c_str(), O_RDONLY | O_CLOEXEC);
  if (file < 0) return;
  fdatasync(file);
  close(file);
}

[[noreturn]] void refuse_second_follower(const std::filesystem::path& journal, const FileLock& lock) {
  throw UsageError(Origin{"tracking"}, journal, " is followed by process ", lock.holder(),
                   "; expected one follower. Wait for its end.");
}

}  // namespace

std::vector<std::filesystem::path> find_journals(const std::filesystem::path& folder) {
  std::vector<std::filesystem::path> journals;
  const auto is_first_part = [](const std::filesystem::path& path) {
    const std::string stem = path.stem().string();
    return path.extension() == ".jsonl" &&
           (stem == "journal" || (stem.starts_with("journal-rank") && stem.find('.') == std::string::npos));
  };
  std::error_code failed;
  if (std::filesystem::is_regular_file(folder, failed)) journals.push_back(folder);
  for (auto entry = std::filesystem::recursive_directory_iterator(
           folder, std::filesystem::directory_options::skip_permission_denied, failed);
       !failed && entry != std::filesystem::recursive_directory_iterator(); entry.increment(failed)) {
    if (is_first_part(entry->path())) journals.push_back(entry->path());
  }
  std::sort(journals.begin(), journals.end());
  if (journals.empty() && !std::filesystem::exists(folder)) {
    throw UsageError(Origin{"tracking"}, "there is no folder '", folder.string(), "'. Correct the path.");
  }
  if (journals.empty()) {
    throw DataError(Origin{"tracking"}, folder, "'", folder.string(),
                    "' holds no journal (journal.jsonl) of a run. Name a run's folder, or one above it.");
  }
  return journals;
}

JournalStatus read_status(const std::filesystem::path& journal) {
  JournalStatus status{.journal = journal, .is_running = is_written(journal)};
  JournalReader reader(journal);
  std::vector<std::string> further;
  while (const auto record = reader.next()) {
    const auto word = [&](const char* key) {
      const core::Value* found = record->body.find(key);
      return found != nullptr && found->is_string() ? found->as_string() : "";
    };
    if (record->op == "start") {
      status.project = word("project");
      status.run_id = word("run_id");
      const core::Value* rank = record->body.find("rank");
      if (rank != nullptr && rank->is_int()) status.rank = static_cast<int>(rank->as_int());
    }
    if (record->op == "finish") status.end = word("end");
    if (record->op == "resume") status.end.clear();
  }
  status.problems = reader.problems();
  std::vector<SinkConfig> sinks = read_sinks(journal, built_in());
  // Trackers that were fed later (track sync) have an acknowledgement, too.
  for (const std::string& name : built_in().names()) {
    const bool listed =
        std::any_of(sinks.begin(), sinks.end(), [&](const SinkConfig& sink) { return sink.name == name; });
    if (!listed && std::filesystem::exists(ack_path(journal, name)))
      sinks.push_back({.name = name, .options = {}, .tracker = {}});
  }
  for (const SinkConfig& sink : sinks) {
    if (sink.name == "journal") continue;
    const SinkState state = read_ack(journal, sink.name);
    status.sinks.push_back({state, JournalReader(journal, state.position).num_bytes_left()});
  }
  return status;
}

int follow_until_end(const std::filesystem::path& journal, double drain_timeout_s, const Environment& environment,
                     const WarnLine& warn) {
  // A follower that has just been killed may not have let go.
  const FileLock lock(beside(journal, ".follow"), 5);
  if (!lock.held()) refuse_second_follower(journal, lock);
  Follower follower({.journal = journal, .environment = environment, .warn = warn});
  auto sync_at = FollowClock::now() + std::chrono::seconds(10);
  bool ended = false;
  while (!ended && !follower.is_done()) {
    ended = input_ended(std::chrono::milliseconds(50));
    if (FollowClock::now() < sync_at) continue;
    sync_journal(journal);
    sync_at = FollowClock::now() + std::chrono::seconds(10);
  }
  if (ended) follower.close();
  const bool all = follower.wait(std::chrono::milliseconds(static_cast<int64_t>(drain_timeout_s * 1e3)));
  sync_journal(journal);
  return all ? 0 : 3;
}

bool complete(const std::filesystem::path& journal, const std::vector<SinkConfig>& to, double timeout_s,
              const Environment& environment, const WarnLine& warn) {
  if (is_written(journal)) {
    throw UsageError(Origin{"tracking"}, journal,
                     " belongs to a run that is still going on; its trackers are fed by themselves. Wait for its end.");
  }
  const FileLock lock(beside(journal, ".follow"), 1);
  if (!lock.held()) refuse_second_follower(journal, lock);
  Follower follower({.journal = journal,
                     .sinks = to,
                     .environment = environment,
                     .warn = warn,
                     .first_backoff_s = 0.2,
                     .most_failures = 5});
  follower.close();
  return follower.wait(std::chrono::milliseconds(static_cast<int64_t>(timeout_s * 1e3)));
}

}  // namespace hasten::tracking
