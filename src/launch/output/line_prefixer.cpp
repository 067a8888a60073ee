// See line_prefixer.h.
#include "launch/output/line_prefixer.h"

namespace hasten::launcher {

std::string LinePrefixer::add(std::string_view bytes) {
  if (prefix_.empty()) return std::string(bytes);
  std::string result;
  is_new_ = line_.empty();
  while (!bytes.empty()) {
    const size_t end = bytes.find_first_of("\r\n");
    const size_t size = end == std::string_view::npos ? bytes.size() : end + 1;
    line_ += bytes.substr(0, size);
    bytes.remove_prefix(size);
    if (end != std::string_view::npos || line_.size() > kLongLine) hand_on(result);
  }
  return result;
}

std::string LinePrefixer::flush() {
  std::string result;
  if (waiting()) hand_on(result);
  return result;
}

std::string LinePrefixer::finish() {
  std::string result = flush();
  if (inside_ || after_return_) result += '\n';
  inside_ = after_return_ = false;
  return result;
}

void LinePrefixer::hand_on(std::string& result) {
  // The \n of \r\n, which would be an empty line of its own.
  const bool only_end = line_ == "\n";
  if (!inside_ && !(only_end && after_return_)) result += prefix_;
  result += line_;
  after_return_ = line_.back() == '\r';
  inside_ = line_.back() != '\n' && !after_return_;
  line_.clear();
  is_new_ = true;
}

}  // namespace hasten::launcher
