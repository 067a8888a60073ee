// See line_filter.h.
#include "launch/output/line_filter.h"

#include <algorithm>

namespace hasten::launcher {

std::string LineFilter::add(std::string_view bytes) {
  std::string picked;
  if (words_.empty()) return picked;
  while (!bytes.empty()) {
    const size_t end = bytes.find('\n');
    const bool ends = end != std::string_view::npos;
    line_ += bytes.substr(0, end);
    bytes.remove_prefix(ends ? end + 1 : bytes.size());
    if (ends || line_.size() > kLongLine) end_line(picked);
  }
  return picked;
}

std::string LineFilter::finish() {
  std::string picked;
  if (!line_.empty()) end_line(picked);
  return picked;
}

void LineFilter::end_line(std::string& picked) {
  const bool requested = std::any_of(words_.begin(), words_.end(),
                                     [this](const std::string& word) { return line_.find(word) != std::string::npos; });
  if (requested) picked += prefix_ + line_ + '\n';
  line_.clear();
}

}  // namespace hasten::launcher
