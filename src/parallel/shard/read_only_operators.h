// Operators that take a mutable pointer of a weight and only read it: oneDNN's LSTM.
//
// To a watched storage that is a write, and each rank would get a private copy of the weight in every forward.
#pragma once

#include <memory>
#include <unordered_map>

#include "hasten/interception/interceptor.h"
#include "hasten/offload/units/home.h"

namespace hasten::parallel::shard {

/// Opens the homes of the operator's arguments for the time of its call. A single object serves all parameters of a
/// model.
class ReadOnlyOperators : public interception::Interceptor {
 public:
  std::vector<std::string_view> operators() const override {
    return {"aten::mkldnn_rnn_layer", "aten::mkldnn_rnn_layer_backward"};
  }
  bool intercept(const c10::OperatorHandle& op, interception::Stack& stack) override;

  /// The home must outlive this object or the next clear().
  void add(const at::Tensor& tensor, offload::Home& home) { homes_[tensor.storage().unsafeGetStorageImpl()] = &home; }
  void clear() { homes_.clear(); }

 private:
  std::unordered_map<const c10::StorageImpl*, offload::Home*> homes_;
};

}  // namespace hasten::parallel::shard
