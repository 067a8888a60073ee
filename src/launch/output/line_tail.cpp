// See line_tail.h.
#include "launch/output/line_tail.h"

namespace hasten::launcher {
namespace {

bool is_control(char c) {
  return (static_cast<unsigned char>(c) < ' ' && c != '\t') || c == 0x7f;
}

// Without escape sequences (ESC [ … letter, ESC ] … BEL, ESC ( letter, ESC letter) and other control bytes.
std::string visible(const std::string& line) {
  std::string result;
  for (size_t i = 0; i < line.size(); ++i) {
    if (line[i] != '\x1b') {
      if (!is_control(line[i])) result += line[i];
      continue;
    }
    const char kind = ++i < line.size() ? line[i] : '\0';
    if (kind == '[') {
      while (++i < line.size() && (line[i] < '@' || line[i] > '~')) continue;
    } else if (kind == ']') {
      while (++i < line.size() && line[i] != '\a' && line[i] != '\x1b') continue;
    } else if (kind >= ' ' && kind <= '/') {
      ++i;
    }
  }
  return result;
}

}  // namespace

void LineTail::add(std::string_view bytes) {
  for (const char c : bytes) {
    if (c == '\n') {
      end_line();
    } else if (c == '\r') {
      returned_ = true;
    } else {
      if (returned_) current_.clear();
      returned_ = false;
      if (current_.size() < kLineBytes) current_ += c;
      if (current_.size() == kLineBytes) current_ += "…";  // and from now on it is too long to grow
    }
  }
}

std::string LineTail::lines() const {
  std::string result;
  const std::string last = visible(current_);
  const size_t first = finished_.size() == kNumLines && !last.empty() ? 1 : 0;
  for (size_t i = first; i < finished_.size(); ++i) result += finished_[i] + "\n";
  return last.empty() ? result : result + last + "\n";
}

void LineTail::end_line() {
  if (finished_.size() == kNumLines) finished_.pop_front();
  finished_.push_back(visible(current_));
  current_.clear();
  returned_ = false;
}

}  // namespace hasten::launcher
