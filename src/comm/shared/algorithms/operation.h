// Operation: one collective over shared memory, in two parts.
//
// contribute() is its first step. It writes the others' first data and posts it, without waiting for another rank once
// the step may begin. complete() does the rest and waits where it must. Between the two a rank may compute. An
// operation of a single step needs nothing more from this rank, so the others go on meanwhile. All are pure functions
// of headers and memory. queue.h decides which thread runs them.
#pragma once

#include <ATen/core/Tensor.h>

#include <memory>
#include <vector>

#include "comm/shared/memory/copying.h"
#include "comm/shared/memory/phase_protocol.h"
#include "comm/types/collective_fingerprint.h"

namespace hasten::comm::shared {

class Operation {
 public:
  explicit Operation(const Header& header) : header_(header) {}
  virtual ~Operation() = default;
  Operation(const Operation&) = delete;
  Operation& operator=(const Operation&) = delete;

  void contribute(PhaseProtocol& steps);
  void complete(PhaseProtocol& steps);
  /// Returns true if the others need nothing of this rank but its contribution.
  virtual bool is_one_step(const PhaseProtocol& steps) const = 0;

 protected:
  /// Writes the first step's data.
  virtual void write_first(PhaseProtocol& steps) = 0;
  /// All ranks have posted the first step of the same operation.
  virtual void go_on(PhaseProtocol& steps) = 0;

  Header header_;
};

std::unique_ptr<Operation> all_reduce(at::Tensor tensor, ReduceOp op, int64_t heap_offset);
std::unique_ptr<Operation> reduce(at::Tensor tensor, int root, ReduceOp op);
std::unique_ptr<Operation> broadcast(at::Tensor bytes, int root);
std::unique_ptr<Operation> all_gather(at::Tensor output, at::Tensor input);
std::unique_ptr<Operation> reduce_scatter(at::Tensor output, at::Tensor input, ReduceOp op);
std::unique_ptr<Operation> all_to_all(at::Tensor output, std::vector<int64_t> output_counts,
                                      std::vector<at::Tensor> inputs);
std::unique_ptr<Operation> barrier();

}  // namespace hasten::comm::shared
