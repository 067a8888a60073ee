// The caller's side of a typed call: arguments are converted to the parameters' types and written.
#pragma once

#include <memory>
#include <string>
#include <tuple>
#include <type_traits>
#include <utility>

#include "hasten/rpc/detail/core.h"
#include "hasten/rpc/functions.h"

namespace hasten::rpc::detail {

[[noreturn]] void throw_empty_rref(const std::string& type);

template <class P>
inline constexpr bool may_be_left_out = false;
template <class T>
inline constexpr bool may_be_left_out<std::optional<T>> = true;

template <size_t I, class... P, class... A>
void write_arguments(Writer& to, std::tuple<P...>* parameters, A&&... arguments) {
  if constexpr (I < sizeof...(P)) {
    using Parameter = std::remove_cvref_t<std::tuple_element_t<I, std::tuple<P...>>>;
    if constexpr (I < sizeof...(A)) {
      using Argument = std::tuple_element_t<I, std::tuple<A&&...>>;
      static_assert(std::is_convertible_v<Argument, Parameter>,
                    "hasten::rpc: an argument of this call does not convert to the function's parameter.");
      auto all = std::forward_as_tuple(std::forward<A>(arguments)...);
      if constexpr (std::is_same_v<std::remove_cvref_t<Argument>, Parameter>) {
        write<Parameter>(to, std::get<I>(all));
      } else {
        const Parameter converted = static_cast<Parameter>(std::get<I>(all));
        write<Parameter>(to, converted);
      }
    } else {
      static_assert(may_be_left_out<Parameter>,
                    "hasten::rpc: too few arguments. Only trailing std::optional parameters may be left out.");
      write<Parameter>(to, Parameter{});
    }
    write_arguments<I + 1>(to, parameters, std::forward<A>(arguments)...);
  }
}

template <class... P, class... A>
Packed pack_arguments(std::tuple<P...>* parameters, A&&... arguments) {
  static_assert(sizeof...(A) <= sizeof...(P), "hasten::rpc: too many arguments for the function.");
  Packed packed;
  Writer writer(packed);
  write_arguments<0>(writer, parameters, std::forward<A>(arguments)...);
  return packed;
}

template <auto F>
CallSpec with_function(CallSpec spec) {
  spec.function = function_name<F>();
  spec.signature = function_hash<F>();
  spec.describe = &describe_function<decltype(F)>;
  return spec;
}

template <auto F, class... A>
auto call_function(Core& core, const CallSpec& spec, A&&... arguments) {
  using S = Signature<decltype(F)>;
  using R = Answer<typename S::Result>;
  auto reply = std::make_shared<ReplyState<R>>(core.executor());
  core.call(with_function<F>(spec),
            pack_arguments(static_cast<typename S::Parameters*>(nullptr), std::forward<A>(arguments)...), reply);
  return Future<R>(std::move(reply));
}

template <auto F, class... A>
std::shared_ptr<Reference> create_by_function(Core& core, const CallSpec& spec, A&&... arguments) {
  using S = Signature<decltype(F)>;
  return core.create(with_function<F>(spec),
                     pack_arguments(static_cast<typename S::Parameters*>(nullptr), std::forward<A>(arguments)...));
}

/// The types of arguments as they travel where the parameters are not known: text is a string, numbers are wide.
template <class A>
using Travelling = std::conditional_t<std::is_convertible_v<A, std::string_view>, std::string, Wide<A>>;

template <class R, class... A>
auto call_named(Core& core, CallSpec spec, const std::string& name, A&&... arguments) {
  using Parameters = std::tuple<Travelling<A>...>;
  static const uint32_t hash = signature_hash(describe_call<R>(static_cast<Parameters*>(nullptr)));
  spec.function = name;
  spec.signature = hash;
  spec.describe = [] { return describe_call<R>(static_cast<Parameters*>(nullptr)); };
  auto reply = std::make_shared<ReplyState<R>>(core.executor());
  core.call(spec, pack_arguments(static_cast<Parameters*>(nullptr), std::forward<A>(arguments)...), reply);
  return Future<R>(std::move(reply));
}

template <class T, class... A>
std::shared_ptr<Reference> create_object(Core& core, CallSpec spec, A&&... arguments) {
  using Parameters = std::tuple<Travelling<A>...>;
  static const std::string name = constructor_name<T>();
  static const uint32_t hash = signature_hash(describe_call<void>(static_cast<Parameters*>(nullptr)));
  spec.function = name;
  spec.signature = hash;
  spec.describe = [] { return describe_call<void>(static_cast<Parameters*>(nullptr)); };
  return core.create(spec, pack_arguments(static_cast<Parameters*>(nullptr), std::forward<A>(arguments)...));
}

}  // namespace hasten::rpc::detail
