// Writing and reading a journal; see journal.h.
#include "hasten/tracking/journal/journal.h"

#include <fcntl.h>
#include <sys/file.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <chrono>
#include <cstring>
#include <mutex>

#include "hasten/core/error.h"
#include "tracking/journal/json.h"

namespace hasten::tracking {
namespace {

using Clock = std::chrono::steady_clock;

constexpr size_t kReadBytes = 1 << 18;
constexpr int64_t kMostLineBytes = 64 << 20;

[[noreturn]] void journal_error(const std::filesystem::path& path, const char* what) {
  const int error = errno;
  throw DataError(Origin{"tracking"}, path, path, " cannot be ", what, ": ", std::strerror(error),
                  ". Choose another folder (AcceleratorOptions.tracking.journal_dir), or make this one writable.");
}

// Locks the journal for this process; the descriptor holds the lock.
int lock_journal(std::filesystem::path path) {
  path.replace_extension(".lock");
  const int lock = open(path.c_str(), O_RDWR | O_CREAT | O_CLOEXEC, 0644);
  if (lock < 0) journal_error(path, "made");
  if (flock(lock, LOCK_EX | LOCK_NB) != 0) {
    char pid[32] = {};
    if (pread(lock, pid, sizeof pid - 1, 0) < 0) pid[0] = '?';
    close(lock);
    throw UsageError(Origin{"tracking"}, "the run in ", path.parent_path(), " is written by another process (pid ",
                     std::string(pid, std::strcspn(pid, "\n")),
                     "); expected one writer. End it, or choose another run_id.");
  }
  const std::string pid = text(getpid(), '\n');
  if (ftruncate(lock, 0) != 0 || pwrite(lock, pid.data(), pid.size(), 0) < 0) {
    close(lock);
    journal_error(path, "written");
  }
  return lock;
}

}  // namespace

std::filesystem::path journal_part(const std::filesystem::path& path, int part) {
  if (part <= 1) return path;
  return path.parent_path() / text(path.stem().string(), '.', part, path.extension().string());
}

struct Journal::Impl {
  Impl(const std::filesystem::path& own_path, const JournalOptions& own) : path(own_path), options(own) {
    std::error_code failed;
    std::filesystem::create_directories(path.parent_path(), failed);
    if (failed) {
      errno = failed.value();
      journal_error(path.parent_path(), "made");
    }
    lock = lock_journal(path);
    try {
      while (std::filesystem::exists(journal_part(path, part + 1))) ++part;
      open_part();
    } catch (...) {
      close(lock);
      throw;
    }
  }
  ~Impl() {
    if (file >= 0) close(file);
    close(lock);
  }

  void open_part() {
    const auto name = journal_part(path, part);
    const int opened = open(name.c_str(), O_RDWR | O_CREAT | O_APPEND | O_CLOEXEC, 0644);
    if (opened < 0) journal_error(name, "opened");
    if (file >= 0) close(file);
    file = opened;
    size = lseek(file, 0, SEEK_END);
    char last = '\n';
    torn = size > 0 && pread(file, &last, 1, size - 1) == 1 && last != '\n';
  }

  // Writes all or gives up in the middle, which tears the line.
  bool write_all(std::string_view bytes) {
    while (!bytes.empty()) {
      const ssize_t n = write(file, bytes.data(), bytes.size());
      if (n < 0 && errno == EINTR) continue;
      if (n <= 0) {
        error = std::strerror(n == 0 ? ENOSPC : errno);
        return false;
      }
      size += n;
      torn = bytes[static_cast<size_t>(n) - 1] != '\n';
      bytes.remove_prefix(static_cast<size_t>(n));
    }
    return true;
  }

  void pause() {
    retry_at = Clock::now() +
               std::chrono::duration_cast<Clock::duration>(std::chrono::duration<double>(options.retry_interval_s));
    paused = true;
  }

  // Returns true if lines can be written again. Records in the journal how many were lost.
  bool resume() {
    if (Clock::now() < retry_at) return false;
    const double now = std::chrono::duration<double>(std::chrono::system_clock::now().time_since_epoch()).count();
    std::string note = torn ? "\n" : "";
    append_json(note, core::Value::map({{"op", "note"},
                                        {"t", now},
                                        {"level", "warning"},
                                        {"text", text(lost - reported, " lines of the journal were lost: ", error)}}));
    note += '\n';
    if (!write_all(note)) return pause(), false;
    reported = lost;
    paused = false;
    return true;
  }

  bool append_lines(std::string_view lines) {
    const std::lock_guard guard(mutex);
    if (paused && !resume()) return lost += std::count(lines.begin(), lines.end(), '\n'), false;
    if (torn && !write_all("\n")) return ++lost, pause(), false;
    if (!write_all(lines)) return lost += std::count(lines.begin(), lines.end(), '\n'), pause(), false;
    if (size >= options.rotate_bytes) rotate();
    return true;
  }

  void rotate() {
    ++part;
    try {
      open_part();
    } catch (const DataError&) {
      --part;  // goes on in this one
    }
  }

  const std::filesystem::path path;
  const JournalOptions options;
  mutable std::mutex mutex;
  int lock = -1, file = -1, part = 1;
  int64_t size = 0, lost = 0, reported = 0;
  bool torn = false, paused = false;
  Clock::time_point retry_at = {};
  std::string error;
};

Journal::Journal(std::filesystem::path path, const JournalOptions& options)
    : path_(std::move(path)), impl_(std::make_unique<Impl>(path_, options)) {}
Journal::~Journal() = default;

bool Journal::append(const core::Value& record) {
  std::string line;
  append_json(line, record);
  line += '\n';
  return append_lines(line);
}

bool Journal::append_lines(std::string_view lines) {
  return impl_->append_lines(lines);
}

int64_t Journal::num_lost() const {
  const std::lock_guard guard(impl_->mutex);
  return impl_->lost;
}

std::string Journal::error() const {
  const std::lock_guard guard(impl_->mutex);
  return impl_->error;
}

struct JournalReader::Impl {
  ~Impl() {
    if (file >= 0) close(file);
  }

  bool open_part() {
    if (file >= 0) return true;
    file = open(journal_part(path, position.part).c_str(), O_RDONLY | O_CLOEXEC);
    if (file < 0 && errno != ENOENT) journal_error(journal_part(path, position.part), "read");
    return file >= 0;
  }

  // Reads on; false at the end of the file.
  bool fill() {
    if (!open_part()) return false;
    buffer.erase(0, begin);
    begin = 0;
    const size_t old = buffer.size();
    buffer.resize(old + kReadBytes);
    const ssize_t n = pread(file, buffer.data() + old, kReadBytes, position.offset + static_cast<int64_t>(old));
    buffer.resize(old + static_cast<size_t>(std::max<ssize_t>(n, 0)));
    if (n < 0) journal_error(path, "read");
    return n > 0;
  }

  // Goes on in the next part, if there is one. Lines written to this part meanwhile come first.
  bool next_part() {
    if (!std::filesystem::exists(journal_part(path, position.part + 1))) return false;
    if (fill()) return true;
    if (begin < buffer.size()) problems.push_back({position, "the line has no end"});
    if (file >= 0) close(file);
    file = -1;
    buffer.clear();
    begin = scanned = 0;
    position = {position.part + 1, 0};
    return true;
  }

  // The next whole line without its end, in the buffer.
  std::optional<std::string_view> line() {
    while (true) {
      const size_t end = buffer.find('\n', std::max(begin, scanned));
      if (end != std::string::npos) {
        scanned = end + 1;
        return std::string_view(buffer).substr(begin, end - begin);
      }
      if (static_cast<int64_t>(buffer.size() - begin) > kMostLineBytes) {
        problems.push_back({position, "the line is longer than 64 MiB"});
        position.offset += static_cast<int64_t>(buffer.size() - begin);
        buffer.clear();
        begin = 0;
      }
      scanned = buffer.size() - begin;
      if (!fill() && !next_part()) return std::nullopt;
    }
  }

  bool parse(std::string_view bytes, Record& record, std::string& reason) const {
    auto body = read_json(bytes, &reason);
    if (!body) return false;
    const core::Value* op = body->find("op");
    const core::Value* time = body->find("t");
    const core::Value* step = body->find("step");
    if (op == nullptr || !op->is_string()) return reason = "no \"op\"", false;
    if (time != nullptr && !time->is_number()) return reason = "\"t\" is no number", false;
    if (step != nullptr && !step->is_int()) return reason = "\"step\" is no integer", false;
    record.op = op->as_string();
    record.time_s = time != nullptr ? time->as_double() : 0;
    if (step != nullptr) record.step = step->as_int();
    record.body = *std::move(body);
    return true;
  }

  std::optional<Record> next() {
    while (const auto bytes = line()) {
      Record record;
      record.position = position;
      position.offset += static_cast<int64_t>(bytes->size()) + 1;
      std::string reason;
      const bool empty = bytes->empty();
      const bool good = !empty && parse(*bytes, record, reason);
      begin = scanned;
      record.next = position;
      if (good) return record;
      if (!empty && problems.size() < 1000) problems.push_back({record.position, reason});
    }
    return std::nullopt;
  }

  std::filesystem::path path;
  JournalPosition position;
  int file = -1;
  std::string buffer;
  size_t begin = 0, scanned = 0;
  std::vector<JournalProblem> problems;
};

JournalReader::JournalReader(std::filesystem::path path, JournalPosition from) : impl_(std::make_unique<Impl>()) {
  impl_->path = std::move(path);
  impl_->position = from;
}
JournalReader::~JournalReader() = default;
JournalReader::JournalReader(JournalReader&&) noexcept = default;
JournalReader& JournalReader::operator=(JournalReader&&) noexcept = default;

std::optional<Record> JournalReader::next() {
  return impl_->next();
}

JournalPosition JournalReader::position() const {
  return impl_->position;
}

int64_t JournalReader::num_bytes_left() const {
  int64_t left = -impl_->position.offset;
  for (int part = impl_->position.part;; ++part) {
    std::error_code failed;
    const auto size = std::filesystem::file_size(journal_part(impl_->path, part), failed);
    if (failed) return std::max<int64_t>(left, 0);
    left += static_cast<int64_t>(size);
  }
}

const std::vector<JournalProblem>& JournalReader::problems() const {
  return impl_->problems;
}

}  // namespace hasten::tracking
