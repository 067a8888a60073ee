// TransferOf: a Backend::Transfer of an operation that another object carries out.
#pragma once

#include <memory>
#include <utility>

#include "comm/backend/backend.h"

namespace hasten::comm {

/// Forwards done() and wait() to `owner`, which must outlive it, with the operation.
template <class Owner, class Operation>
class TransferOf : public Backend::Transfer {
 public:
  TransferOf(Owner& owner, std::shared_ptr<Operation> operation) : owner_(owner), operation_(std::move(operation)) {}
  bool done() override {
    if constexpr (requires { owner_.done(operation_); })
      return owner_.done(operation_);
    else
      return owner_.done(*operation_);
  }
  void wait() override {
    if constexpr (requires { owner_.wait(operation_); })
      owner_.wait(operation_);
    else
      owner_.wait(*operation_);
  }

 private:
  Owner& owner_;
  std::shared_ptr<Operation> operation_;
};

template <class Owner, class Operation>
Backend::Started transfer_of(Owner& owner, std::shared_ptr<Operation> operation) {
  return std::make_unique<TransferOf<Owner, Operation>>(owner, std::move(operation));
}

}  // namespace hasten::comm
