// Group: a set of ranks and the collective operations on tensors among them.
//
// A Group is a small value handle over a hidden implementation, always passed in, never looked up. It takes plain
// dense tensors of any dtype, strides and device. Input that the backend (backend.h) cannot take is converted here, in
// one place. Operations can be checked before any data moves: all ranks first agree on one small record
// (collective_fingerprint.h). Without that, a mismatch in Gloo ends the process or gives wrong numbers. A failing rank
// leaves its words in the store, so that the others can name the failed rank and the reason. Structures: nested.h;
// objects: objects.h.
#pragma once

#include <ATen/core/Tensor.h>

#include <functional>
#include <memory>
#include <optional>
#include <source_location>
#include <string>
#include <vector>

#include "hasten/comm/store/store.h"
#include "hasten/comm/types/collective.h"
#include "hasten/comm/types/group_options.h"
#include "hasten/comm/types/work.h"

namespace hasten::comm {

/// A message of a batch (batch_send_recv): `tensor` goes to or comes from `peer`.
struct PointToPoint {
  enum class Kind { kSend, kReceive } kind;
  at::Tensor tensor;
  int peer;
};

/// How all_to_all_into_ cuts its tensors along dim 0: rows for each rank and from each rank, one number a
/// rank. Empty: equal parts.
struct AllToAllRows {
  std::vector<int64_t> input = {};
  std::vector<int64_t> output = {};
};

/// Called with the name of a collective ("all_reduce") before its data moves (Group::with_observer).
using CollectiveObserver = std::function<void(const char* operation)>;

class Group {
 public:
  using Site = std::source_location;

  /// A world of one: no backend, every operation is local and free.
  Group();
  // Moves copy: a handle that was moved from is one still.
  Group(const Group&) = default;
  Group& operator=(const Group&) = default;

  /// Returns the group of all ranks that call with the same store and `options.name`.
  /// Collective: yes. Blocks: until all ranks have come. Throws: CommError naming the missing ranks after the timeout,
  /// UsageError for a rank outside the world or a backend this libtorch lacks.
  static Group connect(const Store& store, int rank, int world_size, const GroupOptions& options = {});

  int rank() const noexcept;
  int world_size() const noexcept;
  const GroupOptions& options() const noexcept;
  /// Returns true if operations agree before data moves (options().check, resolved).
  bool checked() const noexcept;
  /// Returns the same group with checks on or off, for code that has agreed on its operations by other means.
  Group with_check(bool check) const;
  /// The same group; each collective through this handle and its copies first calls `observer` and throws what that
  /// throws. Empty: none. Not called: in a world of one, for messages between two ranks, for subgroups.
  Group with_observer(CollectiveObserver observer) const;
  /// "shm", "shm+gloo" (several hosts), "gloo", "nccl", or "none" in a world of one.
  std::string backend_name() const;

  /// Returns the group of `ranks` (of this group, in this order; they are renumbered 0…). Ranks not in the list get
  /// nullopt. Collective: yes, over this group. Blocks: until the listed ranks are connected. Throws: UsageError for an
  /// empty list, a rank outside the group or one named twice.
  std::optional<Group> subgroup(const std::vector<int>& ranks, Site site = Site::current()) const;
  std::optional<Group> subgroup(const std::vector<int>& ranks, const SubgroupOptions& options,
                                Site site = Site::current()) const;

  /// Makes a group for each color, of the ranks that gave it, ordered by key and then by rank (MPI_Comm_split). A rank
  /// with a negative color is in none and gets nullopt (MPI_UNDEFINED).
  /// Collective: yes, over this group. Blocks: until all have called, and unless lazy until the group is connected.
  /// Throws: CommError.
  std::optional<Group> split(int color, int key = 0, const SubgroupOptions& options = {},
                             Site site = Site::current()) const;

  /// Connects a lazy group, which its first collective does otherwise; nothing if that is done.
  /// Collective: yes, then. Blocks: until all ranks have come. Throws: as connect.
  void connect_backends() const;

  // ---- Collectives. Every rank of the group calls, in the same order. The `_async` form returns once the operation is
  // under way. The plain form is the `_async` form followed by wait(). Tensors may be of any dtype, device and strides;
  // scalars and empty tensors are fine. Throws (all): CommError with the failing rank's words; CommError naming both
  // sides of a mismatch if operations are checked; UsageError for input that no conversion can mend (the mean of
  // integers).

  /// `tensor` becomes the reduction over all ranks; same shape and dtype everywhere. Booleans: sum and max are "or",
  /// product and min "and". kMean is for floating and complex dtypes. kMin and kMax are not for complex ones nor
  /// uint64. They give NaN if any rank has NaN. The bitwise ones are for whole numbers and booleans.
  void all_reduce_(at::Tensor tensor, ReduceOp op = ReduceOp::kSum, Site site = Site::current()) const;
  Work<> all_reduce_async_(at::Tensor tensor, ReduceOp op = ReduceOp::kSum, Site site = Site::current()) const;

  /// As all_reduce_, but only `root` gets the result; the tensors of the others keep their values.
  void reduce_(at::Tensor tensor, int root, ReduceOp op = ReduceOp::kSum, Site site = Site::current()) const;
  Work<> reduce_async_(at::Tensor tensor, int root, ReduceOp op = ReduceOp::kSum, Site site = Site::current()) const;

  /// `tensor` becomes root's; same shape and dtype everywhere.
  void broadcast_(at::Tensor tensor, int root, Site site = Site::current()) const;
  Work<> broadcast_async_(at::Tensor tensor, int root, Site site = Site::current()) const;

  /// Returns every rank's tensor, by rank. First sizes may differ (the sizes are exchanged first); the others are
  /// equal.
  std::vector<at::Tensor> all_gather(const at::Tensor& tensor, Site site = Site::current()) const;
  Work<std::vector<at::Tensor>> all_gather_async(const at::Tensor& tensor, Site site = Site::current()) const;

  /// The flat form for equal shapes, without an exchange of sizes: `output` is [world * input.size(0), …].
  /// `input` may be this rank's own part of it, but no other.
  void all_gather_into_(at::Tensor output, const at::Tensor& input, Site site = Site::current()) const;
  Work<> all_gather_into_async_(at::Tensor output, const at::Tensor& input, Site site = Site::current()) const;

  /// Returns every rank's tensor, by rank, on `root`; an empty vector elsewhere. First sizes may differ.
  std::vector<at::Tensor> gather(const at::Tensor& tensor, int root, Site site = Site::current()) const;
  Work<std::vector<at::Tensor>> gather_async(const at::Tensor& tensor, int root, Site site = Site::current()) const;

  /// Rank r gets root's parts[r], on the CPU. `parts` is read on root only, and the parts may have any shapes of one
  /// dtype.
  at::Tensor scatter(const std::vector<at::Tensor>& parts, int root, Site site = Site::current()) const;
  Work<at::Tensor> scatter_async(const std::vector<at::Tensor>& parts, int root, Site site = Site::current()) const;

  /// Rank r gets the reduction of all ranks' r-th part of `input`, cut along dim 0 into world_size equal parts.
  at::Tensor reduce_scatter(const at::Tensor& input, ReduceOp op = ReduceOp::kSum, Site site = Site::current()) const;
  Work<at::Tensor> reduce_scatter_async(const at::Tensor& input, ReduceOp op = ReduceOp::kSum,
                                        Site site = Site::current()) const;

  /// The same into a tensor that is there: `input` has world_size times as many elements as `output`, and the
  /// same dtype. It may be a part of `input`.
  void reduce_scatter_into_(at::Tensor output, const at::Tensor& input, ReduceOp op = ReduceOp::kSum,
                            Site site = Site::current()) const;
  Work<> reduce_scatter_into_async_(at::Tensor output, const at::Tensor& input, ReduceOp op = ReduceOp::kSum,
                                    Site site = Site::current()) const;

  /// parts[r] goes to rank r; the result's r-th tensor came from rank r. First sizes may differ, the rest is
  /// equal.
  std::vector<at::Tensor> all_to_all(const std::vector<at::Tensor>& parts, Site site = Site::current()) const;
  Work<std::vector<at::Tensor>> all_to_all_async(const std::vector<at::Tensor>& parts,
                                                 Site site = Site::current()) const;

  /// Exchanges parts of flat tensors without an exchange of sizes. The r-th part of `input` goes to rank r, the r-th
  /// part of `output` comes from rank r. Parts are rows; `rows` holds their numbers. If a rank sends rows to another,
  /// that rank must receive as many. The tensors have one dtype and, but for the first, equal sizes; they may not
  /// overlap. Over shared memory, and where operations are checked, parts that do not fit are reported on all ranks
  /// before data moves.
  void all_to_all_into_(at::Tensor output, const at::Tensor& input, const AllToAllRows& rows = {},
                        Site site = Site::current()) const;
  Work<> all_to_all_into_async_(at::Tensor output, const at::Tensor& input, const AllToAllRows& rows = {},
                                Site site = Site::current()) const;

  /// Returns when every rank has called.
  void barrier(Site site = Site::current()) const;
  Work<> barrier_async(Site site = Site::current()) const;

  /// Returns a flat tensor of `numel` elements, not initialised. On the CPU all_reduce_ works on it in place if the
  /// ranks share memory and have some left (GroupOptions::shared_bytes). Otherwise it is an ordinary tensor. For memory
  /// that is reduced again and again. It may outlive the group. Throws: the exceptions of
  /// the allocator.
  at::Tensor buffer(int64_t numel, const at::TensorOptions& options = {}) const;

  // ---- Point to point. Each message needs its other side. Messages between two ranks with one tag
  // arrive in order. Tags are 0 or more. Where operations are checked, the receiver compares dtype and shape before the
  // data moves.

  void send(const at::Tensor& tensor, int to, int tag = 0, Site site = Site::current()) const;
  Work<> send_async(const at::Tensor& tensor, int to, int tag = 0, Site site = Site::current()) const;
  void receive_(at::Tensor tensor, int from, int tag = 0, Site site = Site::current()) const;
  Work<> receive_async_(at::Tensor tensor, int from, int tag = 0, Site site = Site::current()) const;

  /// Receives the first message with this tag from any rank, and returns that rank. Of several messages that are there,
  /// the one that came first is taken. Of several receives that fit a message, the one that was started first gets
  /// it. Throws: UsageError for an empty tensor, and where some ranks share a host and others do not.
  int receive_any_(at::Tensor tensor, int tag = 0, Site site = Site::current()) const;
  Work<int> receive_any_async_(at::Tensor tensor, int tag = 0, Site site = Site::current()) const;

  /// Starts all messages at once, in any order on each rank. No order of the list ends in a deadlock.
  Work<> batch_send_recv(const std::vector<PointToPoint>& messages, Site site = Site::current()) const;

  /// Operations that start later may take this long (GroupOptions::timeout, which keeps its value). The same on all
  /// ranks.
  void set_timeout(std::chrono::milliseconds timeout) const;

  // ---- Failure.

  /// Leaves `message` in the store for the survivors and closes this rank's connections: their operations end
  /// with "rank r failed: words". Later operations of this rank throw. The first rank's words win.
  /// Blocks: for a round trip to the store.
  void fail(const std::string& message) const noexcept;

  /// Returns the run's store; nothing in a world of one. For threads that must not use the group's collectives.
  std::optional<Store> store() const;

  /// Returns the message of the run's first failing rank, "rank 2: …", if one did and the store still answers.
  std::optional<std::string> failure() const noexcept;

  struct Impl;

 private:
  /// Returns the group of these ranks of this one, under this group's name and `suffix`.
  std::optional<Group> child(const std::vector<int>& ranks, const std::string& suffix,
                             const SubgroupOptions& given) const;
  /// What each collective does once its arguments are known to be right.
  void begin(OpType kind) const;
  Group(std::shared_ptr<Impl> impl, bool check) : impl_(std::move(impl)), check_(check) {}
  std::shared_ptr<Impl> impl_;
  bool check_ = false;
  std::shared_ptr<const CollectiveObserver> observer_ = {};
};

}  // namespace hasten::comm
