// Backend: the one interface behind Group that moves bytes between ranks.
//
// A backend sees only what it can do well: flat contiguous tensors on its own kind of device, dtypes it
// reduces natively, equal sizes. Everything else (strides, booleans, complex numbers, means, unequal sizes,
// other devices, agreement, errors with names) is done once, in Group. A new backend is one file that
// implements this interface and one line in make_cpu_backend (group/cpu_backend.cpp) or in group.cpp; where a build
// lacks it, a stub file of the same name says so.
#pragma once

#include <ATen/core/Tensor.h>
#include <c10/core/Device.h>

#include <memory>
#include <stdexcept>
#include <string>
#include <vector>

#include "hasten/comm/store/store.h"
#include "hasten/comm/types/collective.h"
#include "hasten/comm/types/group_options.h"

namespace hasten::comm {

class Backend {
 public:
  /// A started transfer. It keeps the tensors it works on alive.
  class Transfer {
   public:
    virtual ~Transfer() = default;
    virtual bool done() = 0;
    /// Returns at the end. Throws: std::exception with the backend's own words; Group adds the rank and the reason.
    virtual void wait() = 0;
  };
  using Started = std::unique_ptr<Transfer>;

  /// What wait() throws where it knows: the ranks do not do the same (the text names both sides; the others
  /// know too, and the group can go on), or a rank has not come within the group's timeout.
  struct Mismatch : std::runtime_error {
    using std::runtime_error::runtime_error;
  };
  struct TimedOut : std::runtime_error {
    using std::runtime_error::runtime_error;
  };

  virtual ~Backend() = default;

  virtual const char* name() const = 0;
  virtual c10::DeviceType device_type() const = 0;
  /// Whether all_reduce, reduce and reduce_scatter take this dtype; Group converts if not.
  virtual bool reduces(at::ScalarType dtype) const = 0;

  /// Whether those give the mean of this dtype, too; Group divides if not.
  virtual bool averages(at::ScalarType) const { return false; }

  /// Whether minimum and maximum are NaN where any input is; Group hands floats over as integers of the same
  /// order if not.
  virtual bool keeps_nan() const { return false; }

  /// Whether reduce leaves what other ranks than the root hand it as it is; Group hands it copies if not.
  virtual bool reduce_keeps_inputs() const { return false; }

  // Collectives; `op` is kMean only for what averages. Tensors are contiguous; data movers get flat uint8.
  virtual Started all_reduce(at::Tensor tensor, ReduceOp op) = 0;
  virtual Started reduce(at::Tensor tensor, int root, ReduceOp op) = 0;
  virtual Started broadcast(at::Tensor bytes, int root) = 0;
  /// `output` is [world_size * input.numel()].
  virtual Started all_gather(at::Tensor output, at::Tensor input) = 0;
  /// `input` is [world_size * output.numel()].
  virtual Started reduce_scatter(at::Tensor output, at::Tensor input, ReduceOp op) = 0;
  /// `inputs[r]` goes to rank r; what comes from rank r are the next `output_counts[r]` bytes of `output`,
  /// one rank behind the other. Zeros are fine.
  virtual Started all_to_all(at::Tensor output, std::vector<int64_t> output_counts,
                             std::vector<at::Tensor> inputs) = 0;
  virtual Started barrier() = 0;
  virtual Started send(at::Tensor bytes, int to, int tag) = 0;
  virtual Started receive(at::Tensor bytes, int from, int tag) = 0;

  /// Memory that all_reduce can use in place, where the backend has such memory left; plain memory otherwise.
  virtual at::Tensor allocate(int64_t num_bytes);

  /// Closes the connections, so that transfers under way here and at the peers end with an error soon.
  virtual void close() noexcept = 0;
};

/// What errors call a backend's ranks: `shown` by rank where the group knows them by other numbers, or else
/// their own.
struct RankNames {
  std::vector<std::string> shown = {};
  std::string of(int rank) const;
  std::string of(const std::vector<int>& ranks) const;
};

/// The facts by which a backend finds its peers.
struct BackendSetup {
  Store store;
  int rank;
  int world_size;
  GroupOptions options;
  RankNames names = {};
};

/// Gloo: CPU tensors over TCP. Unless GroupOptions::ignore_sigpipe is false, this process ignores SIGPIPE from then on, if it has no handler.
/// Collective: yes. Blocks: until the ranks are connected. Throws: what c10d throws.
std::unique_ptr<Backend> make_gloo(const BackendSetup& setup);

/// Shared memory: CPU tensors of ranks on one host.
/// Collective: yes. Blocks: until all ranks share the memory. Throws: UsageError for too little
/// shared_bytes; std::exception, on all ranks, where no memory can be shared.
std::unique_ptr<Backend> make_shared_memory(const BackendSetup& setup);

/// The backend for CPU tensors that setup.options.backend asks for: shared memory where all ranks are on one
/// host, with Gloo between hosts that have several ranks each, Gloo alone where each rank is on its own.
/// Collective: yes. Blocks: until the ranks are connected. Throws: UsageError where what was asked for by
/// name cannot be had; what the backends throw.
std::unique_ptr<Backend> make_cpu_backend(const BackendSetup& setup);

/// NCCL: CUDA tensors, where libtorch is a CUDA build; nullptr from the stub file otherwise.
std::unique_ptr<Backend> make_nccl(const BackendSetup& setup);
/// Whether make_nccl can work in this build.
bool nccl_is_built();

}  // namespace hasten::comm
