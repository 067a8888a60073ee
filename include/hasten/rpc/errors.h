// RemoteError: an error that a handler threw at another worker.
#pragma once

#include <string>
#include <utility>

#include "hasten/core/error.h"

namespace hasten::rpc {

/// UsageError and DataError cross as themselves; everything else that a handler throws arrives as a RemoteError.
class RemoteError : public Error {
 public:
  RemoteError(const std::string& message, std::string type, std::string worker, std::string function)
      : Error(message), type_(std::move(type)), worker_(std::move(worker)), function_(std::move(function)) {}
  /// The class of what was thrown, "std::out_of_range".
  const std::string& type() const noexcept { return type_; }
  const std::string& worker() const noexcept { return worker_; }
  const std::string& function() const noexcept { return function_; }

 private:
  std::string type_, worker_, function_;
};

}  // namespace hasten::rpc
