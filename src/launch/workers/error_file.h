// A worker's failure message: the JSON file named by TORCHELASTIC_ERROR_FILE, in torchrun's format.
//
// Python's `@record` writes {"message": {"message": text, "extraInfo": {"py_callstack": …, "timestamp": …}}}, older
// programs {"message": text}. Both are read, the first is written. The launcher makes the folder and removes it
// (local_run.h). failure_report.h gives the words their final form.
#pragma once

#include <optional>
#include <string>

namespace hasten::launcher {

/// What of a message is read.
constexpr size_t kMaxMessageBytes = 16 * 1024;

/// Returns the message in `path`; of a longer one its first kMaxMessageBytes and its length. Returns nothing if there
/// is no such file or it holds no message. A worker that ends while it writes must not hide the cause of its end.
std::optional<std::string> read_error_message(const std::string& path);

/// Writes `message` with the current time to `path`. Does nothing if the file cannot be written, since the caller is
/// ending because of a worse error.
void write_error_file(const std::string& path, const std::string& message);

}  // namespace hasten::launcher
