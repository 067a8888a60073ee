// Replay: an operator of a region with its arguments, which can be called again, and tickets for parts of its results.
#pragma once

#include <ATen/core/Generator.h>
#include <ATen/core/Tensor.h>
#include <ATen/core/dispatch/Dispatcher.h>

#include <algorithm>
#include <cstdint>
#include <functional>
#include <memory>
#include <mutex>
#include <optional>
#include <vector>

#include "hasten/interception/interceptor.h"
#include "parallel/recompute/away.h"

namespace hasten::parallel {

class ReplayedCall;

/// The strided view of a result's storage that a tensor is.
struct StridedView {
  explicit StridedView(const at::Tensor& tensor);
  at::Tensor of(const at::Tensor& base) const;

  std::vector<int64_t> sizes, strides;
  int64_t offset = 0;
};

/// A tensor that is dropped: a view of the storage of a call's result.
struct Ticket {
  std::shared_ptr<ReplayedCall> call;
  size_t result = 0;
  StridedView view;

  at::Tensor tensor() const;
};

/// A tensor that is kept, here or on the host, and the version that it had.
class KeptTensor {
 public:
  /// `away`: the tensor's storage on the host; null for one that stays.
  explicit KeptTensor(const at::Tensor& tensor, std::shared_ptr<AwayTensor> away = {});
  /// Throws: c10::Error if the tensor has been changed in place since.
  at::Tensor tensor() const;
  /// Returns the tensor as it is now; undefined if it is on the host.
  const at::Tensor& now() const noexcept { return tensor_; }

 private:
  at::Tensor tensor_;
  std::shared_ptr<AwayTensor> away_;
  std::optional<StridedView> view_;
  at::ScalarType dtype_;
  c10::VariableVersion counter_;
  int64_t version_;
};

/// A tensor argument of a call.
struct ReplayArgument {
  std::optional<Ticket> ticket;
  std::optional<KeptTensor> kept;

  at::Tensor tensor() const { return ticket ? ticket->tensor() : kept->tensor(); }
};

/// The state of a random generator before a call.
struct GeneratorState {
  at::Generator generator;
  at::Tensor state;
};

/// Replaces each tensor of a value, in lists too; `replace` takes and returns a tensor.
template <class Replace>
c10::IValue replace_tensors(const c10::IValue& value, const Replace& replace) {
  if (value.isTensor()) return value.toTensor().defined() ? c10::IValue(replace(value.toTensor())) : value;
  if (value.isTensorList()) {
    c10::List<at::Tensor> list;
    for (const at::Tensor& tensor : value.toTensorVector()) list.push_back(tensor.defined() ? replace(tensor) : tensor);
    return list;
  }
  if (!value.isList()) return value;
  const auto items = value.toListRef();
  if (std::none_of(items.begin(), items.end(), [](const c10::IValue& item) { return item.isTensor(); })) return value;
  c10::List<c10::IValue> list(value.toList().elementType());  // tensors, some of which may be none
  for (const c10::IValue& item : items) list.push_back(replace_tensors(item, replace));
  return list;
}

/// One call of an operator. Results are computed at most once and live as long as the call or a ticket of it.
class ReplayedCall {
 public:
  /// What another library computes of one tensor, such as an exchange between ranks.
  using Function = std::function<at::Tensor(const at::Tensor&)>;
  struct Recorded {
    /// Nothing: `function` is called with the only entry of `tensors`.
    std::optional<c10::OperatorHandle> op;
    /// Tensors stand for their places only; their values are in `tensors`, in the order of the arguments.
    interception::Stack arguments;
    std::vector<ReplayArgument> tensors;
    std::optional<GeneratorState> generator;
    /// The tensor argument, as an index of `tensors`, that the operator writes to; it is copied first.
    std::optional<size_t> written;
    Function function = {};
  };
  /// Calls of one thread's region share the mutex: device threads of a backward may want the same one.
  ReplayedCall(Recorded recorded, std::shared_ptr<std::recursive_mutex> mutex);

  /// Returns the result, whose storage is laid out as the first time. Runs the operator, and before it those that it
  /// depends on. Throws: c10::Error if a kept argument has been changed in place.
  at::Tensor result(size_t index);

 private:
  void run();

  Recorded recorded_;
  std::shared_ptr<std::recursive_mutex> mutex_;
  std::vector<at::Tensor> results_;
};

/// Calls run again since the process started.
int64_t replayed_calls() noexcept;
/// Returns true inside of a replay on this thread, where nothing is recorded.
bool is_replaying() noexcept;

}  // namespace hasten::parallel
