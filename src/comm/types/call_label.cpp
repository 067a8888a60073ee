// See call_label.h.
#include "comm/types/call_label.h"

#include <algorithm>
#include <charconv>
#include <string_view>

#include "hasten/comm/types/purpose.h"
#include "hasten/core/text.h"

namespace hasten::comm {
namespace {

CallLabel& label_of_thread() noexcept {
  thread_local CallLabel label;
  return label;
}

// Appends to words that leave a zero at their end.
class Writer {
 public:
  explicit Writer(CallLabel& label) : next_(label.words.data()), end_(next_ + label.words.size() - 1) {}
  void add(std::string_view text) noexcept {
    next_ = std::copy_n(text.begin(), std::min<size_t>(text.size(), static_cast<size_t>(end_ - next_)), next_);
  }
  void add(int64_t number) noexcept {
    if (const auto [end, error] = std::to_chars(next_, end_, number); error == std::errc()) next_ = end;
  }

 private:
  char *next_, *end_;
};

std::string_view file_of(const std::source_location& site) noexcept {
  std::string_view file(site.file_name());
  if (const size_t slash = file.rfind('/'); slash != std::string_view::npos) file.remove_prefix(slash + 1);
  return file;
}

}  // namespace

CallLabel CallLabel::of(const std::source_location& site) noexcept {
  CallLabel label;
  Writer writer(label);
  if (const auto purpose = Purpose::current(); purpose.text != nullptr) {
    writer.add(purpose.text);
    if (purpose.number >= 0) writer.add(" "), writer.add(purpose.number);
  } else {
    // The line is worth more than the beginning of a long name.
    std::string_view file = file_of(site);
    constexpr size_t kOfLine = 8;
    file.remove_prefix(file.size() - std::min(file.size(), label.words.size() - kOfLine));
    writer.add(file), writer.add(":"), writer.add(static_cast<int64_t>(site.line()));
  }
  return label;
}

std::string CallLabel::in_brackets() const {
  return words[0] == '\0' ? std::string() : text(" (", words.data(), ')');
}

void set_call_label(const CallLabel& label) noexcept {
  label_of_thread() = label;
}

const CallLabel& call_label() noexcept {
  return label_of_thread();
}

}  // namespace hasten::comm
