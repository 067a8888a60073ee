// See purpose.h.
#include "hasten/comm/types/purpose.h"

#include <utility>

#include "hasten/core/text.h"

namespace hasten::comm {
namespace {

Purpose::Words& current_words() noexcept {
  thread_local Purpose::Words words;
  return words;
}

}  // namespace

Purpose::Purpose(Words words) noexcept : outer_(std::exchange(current_words(), words)) {}

Purpose::~Purpose() {
  current_words() = outer_;
}

Purpose::Words Purpose::current() noexcept {
  return current_words();
}

std::string describe(const Purpose::Words& words) {
  if (words.text == nullptr) return {};
  return words.number < 0 ? std::string(words.text) : text(words.text, ' ', words.number);
}

}  // namespace hasten::comm
