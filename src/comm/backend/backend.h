// Backend: the one interface behind Group that moves bytes between ranks.
//
// A backend serves only calls it can do well: flat contiguous tensors on its own kind of device, dtypes it reduces
// natively, equal sizes. Everything else (strides, booleans, complex numbers, means, unequal sizes, other devices,
// agreement, errors with names) is done once, in Group. A new backend is a file that implements this interface and a
// line in make_cpu_backend (comm/group/cpu_backend.cpp) or in group.cpp. For a build that lacks it, a stub file of the
// same name reports that.
#pragma once

#include <ATen/core/Tensor.h>
#include <c10/core/Device.h>

#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
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
    /// A question whether the device has done a transfer. Its answer is nothing, or for how many nanoseconds the
    /// transfer was under way there; 0 if that is unknown.
    using EndOnDevice = std::function<std::optional<int64_t>()>;
    /// Returns that question, which keeps no tensor in memory, if wait() returns before the device has done the
    /// transfer. Returns nothing for others.
    virtual EndOnDevice end_on_device() { return {}; }
  };
  using Started = std::unique_ptr<Transfer>;

  /// Thrown by wait() in two known cases. First, the ranks' calls differ: the text names both sides, all ranks get it,
  /// and the group can go on. Second, a rank has not come within the group's timeout.
  struct Mismatch : std::runtime_error {
    using std::runtime_error::runtime_error;
  };
  struct TimedOut : std::runtime_error {
    using std::runtime_error::runtime_error;
  };

  virtual ~Backend() = default;

  virtual const char* name() const = 0;
  virtual c10::DeviceType device_type() const = 0;
  /// Returns true if all_reduce, reduce and reduce_scatter take this dtype; Group converts if not.
  virtual bool reduces(at::ScalarType dtype) const = 0;

  /// Returns true if those give the mean of this dtype, too; Group divides if not.
  virtual bool averages(at::ScalarType) const { return false; }

  /// Returns true if minimum and maximum are NaN where any input is. If not, Group passes floats as integers of the
  /// same order.
  virtual bool keeps_nan() const { return false; }

  /// Returns true if messages have tags. If not, those between two ranks arrive in the order in which they are sent.
  virtual bool has_tags() const { return true; }

  /// Returns true if reduce leaves the inputs of ranks other than the root unchanged. If not, Group passes copies.
  virtual bool reduce_keeps_inputs() const { return false; }

  // Collectives; `op` is kMean only for what averages. Tensors are contiguous; data movers get flat uint8.
  virtual Started all_reduce(at::Tensor tensor, ReduceOp op) = 0;
  virtual Started reduce(at::Tensor tensor, int root, ReduceOp op) = 0;
  virtual Started broadcast(at::Tensor bytes, int root) = 0;
  /// `output` is [world_size * input.numel()].
  virtual Started all_gather(at::Tensor output, at::Tensor input) = 0;
  /// `input` is [world_size * output.numel()].
  virtual Started reduce_scatter(at::Tensor output, at::Tensor input, ReduceOp op) = 0;
  /// Sends `inputs[r]` to rank r. The next `output_counts[r]` bytes of `output` come from rank r, in rank order. Zeros
  /// are fine.
  virtual Started all_to_all(at::Tensor output, std::vector<int64_t> output_counts, std::vector<at::Tensor> inputs) = 0;
  virtual Started barrier() = 0;
  virtual Started send(at::Tensor bytes, int to, int tag) = 0;
  virtual Started receive(at::Tensor bytes, int from, int tag) = 0;
  /// Receives from any rank. `*from` is that rank once wait() has returned. Only of a backend that receives_from_any().
  virtual Started receive_any(at::Tensor, int, std::shared_ptr<int>) { return nullptr; }
  virtual bool receives_from_any() const { return false; }

  /// Operations that start later have this timeout. Nothing where each of them is given one.
  virtual void set_timeout(std::chrono::milliseconds) {}

  /// A message of exchange, without a tag.
  struct Message {
    at::Tensor bytes;
    int peer;
    bool is_send;
  };
  /// Starts all messages together, so that no order of them can deadlock. Only of a backend that exchanges(): those of
  /// others can be started one by one in any order.
  virtual Started exchange(const std::vector<Message>&) { return nullptr; }
  virtual bool exchanges() const { return false; }

  /// Returns memory that all_reduce can use in place, or plain memory if the backend has none left.
  virtual at::Tensor allocate(int64_t num_bytes);

  /// Closes the connections, so that transfers under way here and at the peers end with an error soon.
  virtual void close() noexcept = 0;
};

/// Names of a backend's ranks in errors: `shown` by rank if the group numbers them otherwise, else their own.
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

/// Gloo: CPU tensors over TCP. Unless GroupOptions::ignore_sigpipe is false, this process ignores SIGPIPE from then on,
/// if it has no handler. Collective: yes. Blocks: until the ranks are connected. Throws: what c10d throws.
std::unique_ptr<Backend> make_gloo(const BackendSetup& setup);

/// Shared memory: CPU tensors of ranks on one host.
/// Collective: yes. Blocks: until all ranks share the memory. Throws: UsageError for too little
/// shared_bytes; std::exception, on all ranks, where no memory can be shared.
std::unique_ptr<Backend> make_shared_memory(const BackendSetup& setup);

/// Returns the backend for CPU tensors that setup.options.backend asks for. It is shared memory if all ranks are on one
/// host, and Gloo alone if each rank has a host of its own. Otherwise it is shared memory on each host with Gloo
/// between hosts.
/// Collective: yes. Blocks: until the ranks are connected. Throws: UsageError if a backend asked for by name is not
/// available; the exceptions of the backends.
std::unique_ptr<Backend> make_cpu_backend(const BackendSetup& setup);

/// NCCL: CUDA tensors, where libtorch is a CUDA build; nullptr from the stub file otherwise.
std::unique_ptr<Backend> make_nccl(const BackendSetup& setup);
/// Returns true if make_nccl can work in this build.
bool nccl_is_built();

}  // namespace hasten::comm
