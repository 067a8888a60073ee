// Functions: the closed list of what a worker serves.
//
// A function is named by the compiler's spelling of `&f`, or by the program. The caller compares the signature with the
// callee's before it sends. There is no global registry: the list is handed to the Agent.
#pragma once

#include <memory>
#include <string>
#include <tuple>
#include <type_traits>
#include <utility>
#include <vector>

#include "hasten/rpc/detail/thunk.h"

namespace hasten::rpc {

/// A list of functions, classes and optimizers. Copyable; the Agent keeps a copy, so later additions do not reach it.
class Functions {
 public:
  Functions();
  /// Serves a free function, or a member function of an RRef's value, under the compiler's name for it.
  /// Throws: UsageError if it is there already.
  template <auto F>
  Functions& add(FunctionOptions options = {}) {
    using S = detail::Signature<decltype(F)>;
    return add_served({std::string(detail::function_name<F>()), detail::describe_function<decltype(F)>(),
                       std::move(options), detail::make_thunk<false>(F), !std::is_void_v<typename S::Object>});
  }
  /// Serves a function, lambda or closure under a name: functions.add("pull", [&model] { return model.weights(); }).
  template <class F>
  Functions& add(std::string name, F function, FunctionOptions options = {}) {
    return add_served({std::move(name), detail::describe_function<F, true>(), std::move(options),
                       detail::make_thunk<true>(std::move(function)), false});
  }
  /// Lets callers construct a T of these arguments: agent.remote<T>(to, arguments…).
  template <class T, class... Arguments>
  Functions& add_class(FunctionOptions options = {}) {
    auto thunk = [](const std::shared_ptr<detail::ServedCall>& call) {
      Reader reader(call->packed(), call->core());
      auto arguments = detail::read_arguments<true>(reader, static_cast<std::tuple<Arguments...>*>(nullptr));
      call->store(detail::make_object(
          std::apply([](auto&&... one) { return std::make_shared<T>(std::move(one)...); }, std::move(arguments))));
    };
    return add_served({detail::constructor_name<T>(),
                       detail::describe_call<void>(static_cast<std::tuple<detail::Wide<Arguments>...>*>(nullptr)),
                       std::move(options), thunk, false});
  }

  const std::vector<detail::Served>& served() const noexcept { return served_; }
  /// Adds what another list has and this one lacks.
  Functions& add_all(const Functions& other);
  /// For parts of hasten whose handlers read their own values.
  Functions& add_raw(std::string name, detail::Thunk thunk);
  Functions& add_thunk(std::string name, std::string signature, detail::Thunk thunk);

 private:
  Functions& add_served(detail::Served served);
  std::vector<detail::Served> served_;
};

}  // namespace hasten::rpc
