// See read_state.h.
#include "optim/schedulers/read_state.h"

#include "hasten/core/error.h"
#include "hasten/core/sentence.h"

namespace hasten::optim::detail {

std::vector<double> doubles_of(const core::Value& list) {
  std::vector<double> numbers;
  for (const core::Value& number : list.as_list()) numbers.push_back(number.as_double());
  return numbers;
}

void read_state(const std::string& scheduler, const std::function<void()>& read) {
  try {
    read();
  } catch (const UsageError& error) {
    throw UsageError(Origin{"optim"}, scheduler, ": the state cannot be read: ", inner_words(error.what()),
                     ". Expected what state() gave.");
  }
}

}  // namespace hasten::optim::detail
