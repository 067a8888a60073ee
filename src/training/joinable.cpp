// See joinable.h.
#include "hasten/training/joinable.h"

#include "hasten/core/text.h"

namespace hasten::training {

std::string describe(const JoinCall& call) {
  if (call.component.empty()) return "nothing";
  std::string text_of = text(call.component, '.', call.operation);
  if (!call.integers.empty()) text_of += text(" [", join(call.integers), ']');
  if (!call.reals.empty()) text_of += text(" (", join(call.reals), ')');
  return text_of;
}

}  // namespace hasten::training
