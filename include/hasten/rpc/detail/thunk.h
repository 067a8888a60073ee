// How a function becomes something that is served: its signature as text, and a thunk that reads, calls and answers.
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <string_view>
#include <tuple>
#include <type_traits>
#include <utility>

#include "hasten/rpc/detail/core.h"
#include "hasten/rpc/future.h"
#include "hasten/rpc/values.h"

namespace hasten::rpc {

/// Where a handler runs. kPool: in one of the agent's threads. kInline: in the thread that reads messages; for handlers
/// that are short and never wait. kSerial: in the pool, one at a time of all functions with the same `strand`, in the
/// order in which a caller's calls came. kPerObject: in the pool, one at a time of the calls on one RRef's value.
enum class Where { kPool, kInline, kSerial, kPerObject };

struct FunctionOptions {
  Where where = Where::kPool;
  /// Functions of kSerial with one name share one strand; empty: the function has its own.
  std::string strand = {};
  /// Number of waiting calls beyond which further ones are refused with CommError.
  int64_t most_waiting = 10'000;
  /// May run twice for one call. Between dynamic agents a call outside autograd whose worker is lost then waits for
  /// another worker of that name, and is sent again.
  bool idempotent = false;
};

namespace detail {

template <class F>
struct Signature;
template <class R, class... A>
struct Signature<R (*)(A...)> {
  using Result = R;
  using Object = void;
  using Parameters = std::tuple<A...>;
};
template <class R, class... A>
struct Signature<R (*)(A...) noexcept> : Signature<R (*)(A...)> {};
template <class R, class C, class... A>
struct Signature<R (C::*)(A...)> {
  using Result = R;
  using Object = C;
  using Parameters = std::tuple<A...>;
};
template <class R, class C, class... A>
struct Signature<R (C::*)(A...) const> : Signature<R (C::*)(A...)> {};
template <class R, class C, class... A>
struct Signature<R (C::*)(A...) noexcept> : Signature<R (C::*)(A...)> {};
template <class R, class C, class... A>
struct Signature<R (C::*)(A...) const noexcept> : Signature<R (C::*)(A...)> {};
/// The signature of a lambda or function object.
template <class F>
  requires requires { &F::operator(); }
struct Signature<F> : Signature<decltype(&F::operator())> {
  using Object = void;
};

/// The type that a caller gets for a handler's result: Future<T> answers later with a T.
template <class R>
using Answer = typename Unwrapped<std::remove_cvref_t<R>>::type;

template <class R, class... P>
std::string describe_call(std::tuple<P...>*) {
  std::string text;
  if constexpr (std::is_void_v<R>) {
    text = "void";
  } else {
    text = detail::describe<R>();
  }
  text += "(";
  [[maybe_unused]] const char* comma = "";
  ((text += comma, text += detail::describe<std::remove_cvref_t<P>>(), comma = ","), ...);
  return text + ")";
}

/// How a parameter travels where the caller does not see its type (calls by name, constructors): integers as 64 bits,
/// floating-point numbers as doubles.
template <class P>
struct WideOf {
  using type = std::remove_cvref_t<P>;
};
template <class P>
  requires(std::is_arithmetic_v<std::remove_cvref_t<P>> && !std::is_same_v<std::remove_cvref_t<P>, bool>)
struct WideOf<P> {
  using type = std::conditional_t<std::is_floating_point_v<std::remove_cvref_t<P>>, double, int64_t>;
};
template <class P>
using Wide = typename WideOf<P>::type;
template <class T>
struct WideTuple;
template <class... P>
struct WideTuple<std::tuple<P...>> {
  using type = std::tuple<Wide<P>...>;
};

template <class F, bool kWide = false>
std::string describe_function() {
  using S = Signature<F>;
  using R = typename S::Result;
  static_assert(!std::is_reference_v<R> || std::is_const_v<std::remove_reference_t<R>>,
                "hasten::rpc: a result that is a reference cannot travel. Return a value, or an RRef.");
  if constexpr (kWide) {
    return describe_call<Answer<R>>(static_cast<typename WideTuple<typename S::Parameters>::type*>(nullptr));
  } else {
    return describe_call<Answer<R>>(static_cast<typename S::Parameters*>(nullptr));
  }
}

template <auto F>
constexpr std::string_view spelling_of() {
  return __PRETTY_FUNCTION__;
}
/// Returns the compiler's name of a function.
template <auto F>
constexpr std::string_view function_name() {
  const std::string_view all = spelling_of<F>();
  const size_t begin = all.find("F = ") + 4;
  return all.substr(begin, all.find_first_of(";]", begin) - begin);
}
template <auto F>
uint32_t function_hash() {
  static const uint32_t hash = signature_hash(describe_function<decltype(F)>());
  return hash;
}

template <class T>
concept Encodable = !std::is_abstract_v<T> && travels<T>();

template <class T>
Object make_object(std::shared_ptr<T> value) {
  Object object{.value = value,
                .type = type_name<T>(),
                .type_id = &typeid(T),
                .throw_pointer = [](void* pointer) { throw static_cast<T*>(pointer); },
                .encode = nullptr,
                .description = {}};
  if constexpr (Encodable<T>) {
    object.encode = [](Writer& to, const void* pointer) { Codec<T>::write(to, *static_cast<const T*>(pointer)); };
    object.description = describe<T>();
  }
  return object;
}

/// Returns the object as a T, which may be a public base of what it is.
template <class T>
T& object_as(const Object& object) {
  if (*object.type_id == typeid(T)) return *static_cast<T*>(object.value.get());
  if constexpr (std::is_class_v<T>) {
    try {
      object.throw_pointer(object.value.get());
    } catch (T* base) {
      return *base;
    } catch (...) {
    }
  }
  throw_wrong_object(object, type_name<T>());
}

template <class R>
void finish_call(const std::shared_ptr<ServedCall>& call, Stored<R>& value) {
  if (call->creates()) {
    call->store(make_object(std::make_shared<Stored<R>>(std::move(value))));
    return;
  }
  Packed packed;
  Writer writer(packed);
  if constexpr (!std::is_void_v<R>) detail::write(writer, value);
  call->reply(std::move(packed));
}

/// Calls `body` and answers with its result, at once or when its future is done.
template <class Raw, class Body>
void answer_with(const std::shared_ptr<ServedCall>& call, Body&& body) {
  using R = Answer<Raw>;
  if constexpr (Unwrapped<std::remove_cvref_t<Raw>>::is_future) {
    auto future = body();
    future.state()->on_done([call, state = future.state()] {
      try {
        if (state->error()) {
          call->fail(state->error());
        } else {
          finish_call<R>(call, state->value());
        }
      } catch (...) {
        call->fail(std::current_exception());
      }
    });
  } else if constexpr (std::is_void_v<R>) {
    body();
    Unit unit;
    finish_call<void>(call, unit);
  } else {
    std::remove_cvref_t<Raw> value = body();
    finish_call<std::remove_cvref_t<Raw>>(call, value);
  }
}

using Thunk = std::function<void(const std::shared_ptr<ServedCall>&)>;

template <class P, bool kWide>
std::remove_cvref_t<P> read_argument(Reader& from) {
  using T = std::remove_cvref_t<P>;
  if constexpr (kWide && !std::is_same_v<T, Wide<P>>) {
    const Wide<P> value = detail::read<Wide<P>>(from);
    if constexpr (std::is_integral_v<T>) {
      if (!std::in_range<T>(value)) from.fail("has a number that does not fit the parameter");
    }
    return static_cast<T>(value);
  } else {
    return detail::read<T>(from);
  }
}

template <bool kWide, class... P>
std::tuple<std::remove_cvref_t<P>...> read_arguments(Reader& from, std::tuple<P...>*) {
  static_assert(((!std::is_lvalue_reference_v<P> || std::is_const_v<std::remove_reference_t<P>>)&&...),
                "hasten::rpc: a parameter that is a reference to be changed cannot travel. Take a value, or an RRef.");
  return std::tuple<std::remove_cvref_t<P>...>{read_argument<P, kWide>(from)...};
}

template <bool kWide, class F>
Thunk make_thunk(F function) {
  using S = Signature<F>;
  return [function = std::move(function)](const std::shared_ptr<ServedCall>& call) mutable {
    Reader reader(call->packed(), call->core());
    auto arguments = read_arguments<kWide>(reader, static_cast<typename S::Parameters*>(nullptr));
    answer_with<typename S::Result>(call, [&]() -> decltype(auto) {
      if constexpr (std::is_void_v<typename S::Object>) {
        return std::apply([&](auto&&... one) -> decltype(auto) { return function(std::move(one)...); },
                          std::move(arguments));
      } else {
        auto& object = object_as<typename S::Object>(call->object());
        return std::apply([&](auto&&... one) -> decltype(auto) { return (object.*function)(std::move(one)...); },
                          std::move(arguments));
      }
    });
  };
}

template <class T>
std::string constructor_name() {
  return "construct " + type_name<T>();
}

struct Served {
  std::string name;
  std::string signature;
  FunctionOptions options;
  Thunk thunk;
  bool of_object = false;
};

}  // namespace detail

namespace detail {
template <class R>
void ReplyState<R>::decode(Reader& from) {
  if constexpr (std::is_void_v<R>) {
    this->value_.emplace();
  } else {
    this->value_.emplace(detail::read<R>(from));
  }
}
}  // namespace detail
}  // namespace hasten::rpc
