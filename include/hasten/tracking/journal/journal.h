// Journal: the file that everything logged goes to first, one line of JSON a record; docs/formats/journal.md.
//
// It is the queue between a training and its trackers. A line is a single write to a file that is open for appending.
// So a killed process loses nothing that was written, and the step waits for no disk and no server. Trackers follow the
// file from other threads and processes with a JournalReader.
#pragma once

#include <cstdint>
#include <filesystem>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "hasten/core/value.h"

namespace hasten::tracking {

/// A place in a journal: its parts count from 1, since a journal goes on in a further file when one has grown.
struct JournalPosition {
  int part = 1;
  int64_t offset = 0;
  bool operator==(const JournalPosition&) const = default;
};

/// One line of a journal.
struct Record {
  std::string op = {};  ///< "start", "config", "log", "images", …
  double time_s = 0;    ///< Unix time
  std::optional<int64_t> step = {};
  core::Value body = {};          ///< the whole line
  JournalPosition position = {};  ///< of its first byte
  JournalPosition next = {};      ///< behind its end
};

struct JournalOptions {
  /// A part that has grown beyond this is followed by another.
  int64_t rotate_bytes = 64 << 20;
  /// Time after a failed write (a full disk) during which lines are dropped and counted; then a write is tried again.
  double retry_interval_s = 10;
};

/// Returns the path of part `part` of the journal whose first part is `path`: journal.jsonl, journal.2.jsonl …
std::filesystem::path journal_part(const std::filesystem::path& path, int part);

class Journal {
 public:
  /// Opens the journal for appending behind its last line, or makes it and its folder. One process at a time holds it.
  /// Throws: DataError with the path if it cannot be made, UsageError with the pid of the
  /// process that holds it.
  explicit Journal(std::filesystem::path path, const JournalOptions& options = {});
  ~Journal();
  Journal(const Journal&) = delete;
  Journal& operator=(const Journal&) = delete;

  /// Writes a record. Returns false if the line was dropped, as after a failed write. From any thread.
  /// Blocks: for one write(2).
  bool append(const core::Value& record);
  /// Writes one or more whole lines, each with its '\n'. As append.
  bool append_lines(std::string_view lines);

  /// Returns how many lines were dropped in all, and why the last one was ("" if none was).
  int64_t num_lost() const;
  std::string error() const;
  const std::filesystem::path& path() const noexcept { return path_; }

 private:
  struct Impl;
  std::filesystem::path path_;
  std::unique_ptr<Impl> impl_;
};

/// A line that is no record, and why.
struct JournalProblem {
  JournalPosition position = {};
  std::string reason = {};
};

/// Reads a journal while another process writes it.
class JournalReader {
 public:
  /// Starts at `from`, which is where a record begins. A file that is not there yet is an empty one.
  explicit JournalReader(std::filesystem::path path, JournalPosition from = {});
  ~JournalReader();
  JournalReader(JournalReader&&) noexcept;
  JournalReader& operator=(JournalReader&&) noexcept;

  /// Returns the next record, or nothing at the end of what has been written so far. Lines that are no records are
  /// skipped and listed in problems(). A last line without its end is not there yet.
  /// Throws: DataError if the file cannot be read.
  std::optional<Record> next();

  /// Returns the place behind the last record.
  JournalPosition position() const;
  /// Returns how many bytes of the journal lie behind position(), all parts together.
  int64_t num_bytes_left() const;
  const std::vector<JournalProblem>& problems() const;

 private:
  struct Impl;
  std::unique_ptr<Impl> impl_;
};

}  // namespace hasten::tracking
