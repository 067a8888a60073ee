// EventFile: one TensorBoard file that is written, record by record, and can be cut back to a known length.
#pragma once

#include <cstdint>
#include <filesystem>
#include <string>
#include <string_view>

namespace hasten::tracking {

class EventFile {
 public:
  /// Opens the file, or makes it and its folder, and cuts it to `length` bytes. A file of length 0 gets the record that
  /// names the format's version. Throws: DataError with the path.
  EventFile(std::filesystem::path path, int64_t length, double time_s);
  ~EventFile();
  EventFile(EventFile&& other) noexcept;
  EventFile& operator=(EventFile&&) = delete;

  /// Frames the event and keeps it until flush, or until 256 KiB have come together. Throws: DataError (a full disk).
  void append(std::string_view event);
  /// The same for the event of one scalar.
  void append_scalar(double time_s, int64_t step, std::string_view tag, float value);
  /// Throws: DataError.
  void flush();
  /// Returns the bytes that are written and stay.
  int64_t length() const noexcept { return length_ + static_cast<int64_t>(buffer_.size()); }
  const std::filesystem::path& path() const noexcept { return path_; }

 private:
  std::filesystem::path path_;
  int file_ = -1;
  int64_t length_ = 0;
  std::string buffer_;
};

/// "events.out.tfevents.1769000000.host.1234.0" + suffix.
std::string event_file_name(double time_s, const std::string& host, int64_t pid, int counter,
                            const std::string& suffix = "");

}  // namespace hasten::tracking
