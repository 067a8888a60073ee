// See functions.h.
#include "hasten/rpc/functions.h"

#include <utility>

#include "hasten/core/error.h"

namespace hasten::rpc {

Functions::Functions() = default;

Functions& Functions::add_served(detail::Served served) {
  for (const auto& known : served_) {
    if (known.name == served.name)
      throw UsageError({"rpc"}, "the function '", served.name, "' is added twice. Give one of them another name.");
  }
  served_.push_back(std::move(served));
  return *this;
}

Functions& Functions::add_raw(std::string name, detail::Thunk thunk) {
  std::string signature = name;
  return add_served({std::move(name), std::move(signature), {}, std::move(thunk), false});
}

Functions& Functions::add_thunk(std::string name, std::string signature, detail::Thunk thunk) {
  return add_served({std::move(name), std::move(signature), {}, std::move(thunk), false});
}

Functions& Functions::add_all(const Functions& other) {
  for (const auto& one : other.served_) {
    bool known = false;
    for (const auto& mine : served_) known = known || mine.name == one.name;
    if (!known) served_.push_back(one);
  }
  return *this;
}

}  // namespace hasten::rpc
