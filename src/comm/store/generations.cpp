// See generations.h.
#include "hasten/comm/store/generations.h"

#include <algorithm>
#include <string>

#include "hasten/comm/types/wait_check.h"
#include "hasten/core/error.h"
#include "hasten/core/number.h"
#include "hasten/core/text.h"

namespace hasten::comm {
namespace {

constexpr const char* kNumberKey = "generation";
// Group's key for the words of a rank that failed.
constexpr const char* kWordsKey = "hasten/failure";

}  // namespace

Store Generations::enter(std::chrono::milliseconds timeout) {
  using std::chrono::milliseconds;
  const auto deadline = std::chrono::steady_clock::now() + timeout;
  while (true) {
    const auto left = std::chrono::duration_cast<milliseconds>(deadline - std::chrono::steady_clock::now());
    if (!store_) store_ = open_(std::max(left, milliseconds(1)));
    try {
      return enter_known();
    } catch (const CommError&) {
      // A store that has died is not used again: its client writes a stack at each call.
      store_.reset();
      if (std::chrono::steady_clock::now() >= deadline) throw;
    }
  }
}

Store Generations::enter_known() {
  store_->compare_set(kNumberKey, "", "0");
  while (true) {
    const std::string now = store_->get(kNumberKey).value_or("0");
    const Store keys = store_->scoped("meeting/" + now);
    number_ = core::whole_number<int64_t>(now).value_or(0);
    if (keys.set_once(text("place/", rank_), "1")) return keys;
    // In this order: a rank that is killed in between leaves nothing that the next would wait for.
    if (!keys.get(kWordsKey)) keys.set(kWordsKey, text("a rank has ended, and the others meet again"));
    store_->compare_set(kNumberKey, now, text(number_ + 1));
    WaitCheck::run();
  }
}

}  // namespace hasten::comm
