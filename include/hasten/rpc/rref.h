// RRef: a reference to a value that another worker owns.
//
// Copies are free; the owner keeps the value while any worker has a copy. Passing one to a third worker costs one small
// message and no wait (docs/rpc.md, "References"). The value is at its owner; calls go there.
#pragma once

#include <ATen/core/Tensor.h>

#include <memory>
#include <string>
#include <type_traits>
#include <utility>

#include "hasten/rpc/detail/calling.h"
#include "hasten/rpc/detail/core.h"
#include "hasten/rpc/functions.h"

namespace hasten::rpc {

class AutogradContext;
struct BackwardOptions {
  /// Keeps the graph for a further pass.
  bool retain_graph = false;
};

namespace detail {
void backward_from(const Reference& root, const AutogradContext& context, const BackwardOptions& options);
}

template <class T>
class RRef {
 public:
  RRef() = default;
  explicit RRef(std::shared_ptr<detail::Reference> reference, CallOptions options = {})
      : reference_(std::move(reference)), options_(options) {}
  /// An RRef to a derived class serves where one to its base is wanted.
  template <class D>
    requires(std::is_base_of_v<T, D> && !std::is_same_v<T, D>)
  RRef(const RRef<D>& other) : reference_(other.reference()) {}

  explicit operator bool() const noexcept { return reference_ != nullptr; }
  const WorkerInfo& owner() const { return known().core->worker(known().owner); }
  bool is_owner() const { return known().owner == known().core->rank(); }
  /// Returns true once the owner has confirmed the value; at other workers than the creator always.
  bool confirmed() const {
    const auto created = known().ready();
    return !created || created->done();
  }
  /// Done when the owner has the value; carries the error of its creation.
  Future<void> ready() const {
    auto created = known().ready();
    if (!created) {
      created = std::make_shared<detail::State<void>>(known().core->executor());
      created->set(detail::Unit{});
    }
    return Future<void>(created);
  }
  /// The same reference with settings for the calls through it.
  RRef with(CallOptions options) const { return RRef(reference_, options); }

  /// Returns a copy of the value. In an autograd context it is a recorded call.
  /// Blocks: until it has come. Throws: the creation's error, RemoteError, CommError.
  T to_here() const { return to_here_async().wait(); }
  Future<T> to_here_async() const {
    auto reply = std::make_shared<detail::ReplyState<T>>(known().core->executor());
    known().core->fetch(known(), detail::describe<T>(), options_, reply);
    return Future<T>(reply);
  }
  /// Returns the value itself, at its owner. Blocks: until it is created. Throws: UsageError that names
  /// the owner elsewhere; the creation's error.
  T& local_value() const { return detail::object_as<T>(known().core->local_object(known())); }

  /// Calls a member function of T at the owner. Throws: RemoteError, CommError, UsageError (not served there).
  template <auto F, class... A>
  auto async(A&&... arguments) const {
    return detail::call_function<F>(*known().core, spec(), std::forward<A>(arguments)...);
  }
  template <auto F, class... A>
  auto sync(A&&... arguments) const {
    const detail::WaitedFor waited_for;
    return async<F>(std::forward<A>(arguments)...).wait();
  }
  /// Calls it and leaves the result at the owner.
  template <auto F, class... A>
  auto remote(A&&... arguments) const {
    using R = detail::Answer<typename detail::Signature<decltype(F)>::Result>;
    return RRef<R>(detail::create_by_function<F>(*known().core, spec(), std::forward<A>(arguments)...));
  }

  /// Backward pass with the value, a scalar tensor, as its root. In a context it starts at the owner, and gradients
  /// come into the context as of AutogradContext::backward. Without one it is the owner's local backward into .grad().
  /// Blocks: until it has ended. Throws: UsageError (elsewhere than at the owner without a context),
  /// CommError.
  void backward(const AutogradContext& context, const BackwardOptions& options = {}) const
    requires std::is_same_v<T, at::Tensor>
  {
    detail::backward_from(known(), context, options);
  }
  void backward() const
    requires std::is_same_v<T, at::Tensor>
  {
    local_value().backward();
  }

  const std::shared_ptr<detail::Reference>& reference() const noexcept { return reference_; }

 private:
  const detail::Reference& known() const {
    if (!reference_) detail::throw_empty_rref(detail::type_name<T>());
    return *reference_;
  }
  detail::CallSpec spec() const {
    detail::CallSpec result;
    result.to = known().owner;
    result.object = known().id;
    result.options = options_;
    return result;
  }

  std::shared_ptr<detail::Reference> reference_;
  CallOptions options_ = {};
};

template <class T>
struct Codec<RRef<T>> {
  // A byte, so that a count of references is checked against the bytes as any other count.
  static void write(Writer& to, const RRef<T>& value) {
    to.number<uint8_t>(0);
    to.reference(value.reference());
  }
  static RRef<T> read(Reader& from) {
    from.number<uint8_t>();
    return RRef<T>(from.reference());
  }
  static std::string describe() { return "rref<" + detail::type_name<T>() + ">"; }
};

}  // namespace hasten::rpc
