// See group_backend.h. The barrier that names the missing ranks is in monitored_barrier.cpp.
#include "hasten/comm/c10d/group_backend.h"

#include <ATen/ATen.h>
#include <unistd.h>

#include <utility>

#include "comm/c10d/group_work.h"
#include "comm/c10d/titles.h"
#include "comm/types/combined_work.h"
#include "hasten/core/error.h"

namespace hasten::comm {
namespace {

using Tensors = GroupBackend::Tensors;
using Limit = std::optional<std::chrono::milliseconds>;

// A reduction of libtorch's: one of Group's, and the factor of a pre-multiplied sum.
struct Reduction {
  ReduceOp op;
  std::optional<at::Tensor> factor = {};

  at::Tensor scale(const at::Tensor& tensor) const { return factor ? tensor * factor->to(tensor.dtype()) : tensor; }
};

Reduction premultiplied(const c10d::ReduceOp& op) {
  const auto* given = static_cast<const c10d::NCCLPreMulSumSupplement*>(op.supplement_.get());
  if (given == nullptr) throw UsageError(Origin{"comm"}, "a pre-multiplied sum has no factor. Make it with one.");
  const at::Tensor& tensor = given->tensor_factor;
  return {ReduceOp::kSum, tensor.defined() ? tensor.reshape({}) : at::scalar_tensor(given->double_factor, at::kDouble)};
}

Reduction reduction_of(const c10d::ReduceOp& op) {
  switch (op.op_) {
    case c10d::ReduceOp::SUM:
      return {ReduceOp::kSum};
    case c10d::ReduceOp::AVG:
      return {ReduceOp::kMean};
    case c10d::ReduceOp::PRODUCT:
      return {ReduceOp::kProduct};
    case c10d::ReduceOp::MIN:
      return {ReduceOp::kMin};
    case c10d::ReduceOp::MAX:
      return {ReduceOp::kMax};
    case c10d::ReduceOp::BAND:
      return {ReduceOp::kBitAnd};
    case c10d::ReduceOp::BOR:
      return {ReduceOp::kBitOr};
    case c10d::ReduceOp::BXOR:
      return {ReduceOp::kBitXor};
    case c10d::ReduceOp::PREMUL_SUM:
      return premultiplied(op);
    default:
      throw UsageError(Origin{"comm"}, "reduction number ", static_cast<int>(op.op_),
                       " of torch.distributed is none of ",
                       "SUM, AVG, PRODUCT, MIN, MAX, BAND, BOR, BXOR and PREMUL_SUM.");
  }
}

// The tensor without its version counter, which does not move under Gloo either.
at::Tensor plain(const at::Tensor& tensor) {
  return tensor.variable_data();
}

int64_t total(const std::vector<int64_t>& counts) {
  int64_t sum = 0;
  for (const int64_t count : counts) sum += count;
  return sum;
}

std::vector<int64_t> counts_of(const Tensors& tensors) {
  std::vector<int64_t> counts;
  for (const at::Tensor& tensor : tensors) counts.push_back(tensor.numel());
  return counts;
}

at::Tensor joined_flat(const Tensors& tensors) {
  const at::NoGradGuard no_grad;
  Tensors flat;
  for (const at::Tensor& tensor : tensors) flat.push_back(plain(tensor).reshape({-1}));
  return at::cat(flat);
}

// Writes parts of `flat`, one behind the other, to the tensors.
void cut_into(const at::Tensor& flat, const Tensors& tensors) {
  const at::NoGradGuard no_grad;
  int64_t begin = 0;
  for (const at::Tensor& tensor : tensors) {
    plain(tensor).copy_(flat.narrow(0, begin, tensor.numel()).view(tensor.sizes()));
    begin += tensor.numel();
  }
}

void check_one(const Tensors& tensors, const char* operation) {
  if (tensors.size() == 1) return;
  throw UsageError(Origin{"comm"}, operation, " of ", tensors.size(), " tensors; a rank takes part with one.");
}

// Lists have one tensor a rank, each of as many elements as `like`.
const Tensors& list_for(const std::vector<Tensors>& lists, const at::Tensor& like, int world_size,
                        const char* operation) {
  if (lists.size() != 1 || lists[0].size() != static_cast<size_t>(world_size)) {
    throw UsageError(Origin{"comm"}, operation, ": the list has ", lists.empty() ? 0 : lists[0].size(),
                     " tensors; one is needed for each of the ", world_size, " ranks.");
  }
  for (size_t rank = 0; rank < lists[0].size(); ++rank) {
    const at::Tensor& tensor = lists[0][rank];
    if (tensor.numel() == like.numel() && tensor.scalar_type() == like.scalar_type()) continue;
    throw UsageError(Origin{"comm"}, operation, ": tensor ", rank, " of the list is ", tensor.scalar_type(), " of ",
                     tensor.numel(), " elements; ", like.scalar_type(), " of ", like.numel(), " are needed.");
  }
  return lists[0];
}

Work<> reduce_sparse(const Group& group, const at::Tensor& tensor, ReduceOp op) {
  if (op != ReduceOp::kSum) {
    throw UsageError(Origin{"comm"}, "all_reduce of a sparse tensor gives the sum, not the ", name_of(op),
                     ". Use ReduceOp.SUM, or a dense tensor.");
  }
  const at::NoGradGuard no_grad;
  const at::Tensor own = tensor.coalesce();
  auto indices = std::make_shared<Tensors>(), values = std::make_shared<Tensors>();
  std::vector<Work<>> works;
  works.push_back(group.all_gather_async(own.indices().t().contiguous()).then([indices](Tensors all) {
    *indices = std::move(all);
  }));
  works.push_back(group.all_gather_async(own.values()).then([values](Tensors all) { *values = std::move(all); }));
  return when_all(std::move(works)).then([tensor, indices, values] {
    const at::NoGradGuard without_graph;
    tensor.copy_(at::sparse_coo_tensor(at::cat(*indices).t(), at::cat(*values), tensor.sizes()).coalesce());
  });
}

// The fields of libtorch's options of Gloo, for readers that take the backend for Gloo's.
struct GlooLikeOptions : c10d::Backend::Options {
  using Options::Options;
  std::vector<std::shared_ptr<void>> devices = {};
  int threads = 2;
};

}  // namespace

struct GroupBackend::Call {
  c10d::OpType type;
  std::chrono::milliseconds timeout = c10d::kUnsetTimeout;
  /// Shown in profiles; the outputs if it is empty.
  Tensors inputs = {};
  std::shared_ptr<int> from = {};
};

GroupBackend::GroupBackend(Group group, std::string name)
    : c10d::Backend(group.rank(), group.world_size()),
      seen_as_gloos_([&] {
        const c10::intrusive_ptr<Options> options =
            c10::make_intrusive<GlooLikeOptions>(std::move(name), group.options().timeout);
        return std::array{options, options, options};
      }()),
      options_(seen_as_gloos_[0]),
      group_(std::move(group)),
      completer_(std::make_shared<FutureCompleter>()),
      owner_(getpid()) {}

GroupBackend::~GroupBackend() = default;

void GroupBackend::check_process() const {
  if (getpid() == owner_) return;
  throw UsageError({"comm", getRank(), getSize()},
                   "this process was forked after its process group was made, and is none of the group's ranks. Make "
                   "a group of its own, or use the group in the parent alone.");
}

GroupBackend::Started GroupBackend::start(const Call& call, Work<> work, Tensors outputs) {
  ++sequence_;
  const bool is_limited = call.timeout > std::chrono::milliseconds(0) && call.timeout < options_->timeout;
  return c10::make_intrusive<GroupWork>(GroupWork::Setup{.rank = getRank(),
                                                         .type = call.type,
                                                         .title = title_of(call.type, options_->backend),
                                                         .inputs = call.inputs.empty() ? outputs : call.inputs,
                                                         .outputs = outputs,
                                                         .limit = is_limited ? Limit(call.timeout) : Limit(),
                                                         .from = call.from},
                                        std::move(work), completer_);
}

GroupBackend::Started GroupBackend::broadcast(Tensors& tensors, const c10d::BroadcastOptions& options) {
  check_process();
  check_one(tensors, "broadcast");
  return start({c10d::OpType::BROADCAST, options.timeout},
               group_.broadcast_async_(plain(tensors[0]), static_cast<int>(options.rootRank)), tensors);
}

GroupBackend::Started GroupBackend::allreduce(Tensors& tensors, const c10d::AllreduceOptions& options) {
  check_process();
  check_one(tensors, "all_reduce");
  const Reduction reduction = reduction_of(options.reduceOp);
  if (tensors[0].is_sparse()) {
    return start({c10d::OpType::_ALLREDUCE_SPARSE, options.timeout},
                 reduce_sparse(group_, tensors[0], reduction.factor ? ReduceOp::kProduct : reduction.op), tensors);
  }
  const at::Tensor tensor = plain(tensors[0]);
  if (reduction.factor) tensor.mul_(*reduction.factor);
  return start({c10d::OpType::ALLREDUCE, options.timeout}, group_.all_reduce_async_(tensor, reduction.op), tensors);
}

GroupBackend::Started GroupBackend::allreduce_coalesced(Tensors& tensors,
                                                        const c10d::AllreduceCoalescedOptions& options) {
  check_process();
  const Reduction reduction = reduction_of(options.reduceOp);
  std::vector<Work<>> works;
  for (const at::Tensor& given : tensors) {
    const at::Tensor tensor = plain(given);
    if (reduction.factor) tensor.mul_(*reduction.factor);
    works.push_back(group_.all_reduce_async_(tensor, reduction.op));
  }
  return start({c10d::OpType::ALLREDUCE_COALESCED, options.timeout}, when_all(std::move(works)), tensors);
}

GroupBackend::Started GroupBackend::reduce(Tensors& tensors, const c10d::ReduceOptions& options) {
  check_process();
  check_one(tensors, "reduce");
  const Reduction reduction = reduction_of(options.reduceOp);
  const int root = static_cast<int>(options.rootRank);
  const at::Tensor tensor = plain(tensors[0]), scaled = reduction.scale(tensor);
  auto work = group_.reduce_async_(scaled, root, reduction.op);
  if (reduction.factor && getRank() == root) {
    work = std::move(work).then([tensor, scaled] { tensor.copy_(scaled); });
  }
  return start({c10d::OpType::REDUCE, options.timeout}, std::move(work), tensors);
}

GroupBackend::Started GroupBackend::allgather(std::vector<Tensors>& outputs, Tensors& inputs,
                                              const c10d::AllgatherOptions& options) {
  check_process();
  check_one(inputs, "all_gather");
  const Tensors list = list_for(outputs, inputs[0], getSize(), "all_gather");
  const at::Tensor flat = at::empty({inputs[0].numel() * getSize()}, inputs[0].options().requires_grad(false));
  auto work = group_.all_gather_into_async_(flat, plain(inputs[0])).then([flat, list] { cut_into(flat, list); });
  return start({c10d::OpType::ALLGATHER, options.timeout, inputs}, std::move(work), list);
}

GroupBackend::Started GroupBackend::_allgather_base(at::Tensor& output, at::Tensor& input,
                                                    const c10d::AllgatherOptions& options) {
  check_process();
  return start({c10d::OpType::_ALLGATHER_BASE, options.timeout, {input}},
               group_.all_gather_into_async_(plain(output), plain(input)), {output});
}

GroupBackend::Started GroupBackend::allgather_coalesced(std::vector<Tensors>& outputs, Tensors& inputs,
                                                        const c10d::AllgatherOptions& options) {
  check_process();
  std::vector<Work<>> works;
  Tensors all;
  for (size_t i = 0; i < inputs.size(); ++i) {
    std::vector<Tensors> of_input(1);
    for (const Tensors& of_rank : outputs) of_input[0].push_back(of_rank.at(i));
    const Tensors list = list_for(of_input, inputs[i], getSize(), "all_gather_coalesced");
    const at::Tensor flat = at::empty({inputs[i].numel() * getSize()}, inputs[i].options().requires_grad(false));
    works.push_back(group_.all_gather_into_async_(flat, plain(inputs[i])).then([flat, list] { cut_into(flat, list); }));
    all.insert(all.end(), list.begin(), list.end());
  }
  return start({c10d::OpType::ALLGATHER_COALESCED, options.timeout, inputs}, when_all(std::move(works)), all);
}

GroupBackend::Started GroupBackend::allgather_into_tensor_coalesced(Tensors& outputs, Tensors& inputs,
                                                                    const c10d::AllgatherOptions& options) {
  check_process();
  std::vector<Work<>> works;
  for (size_t i = 0; i < inputs.size(); ++i) {
    works.push_back(group_.all_gather_into_async_(plain(outputs.at(i)), plain(inputs[i])));
  }
  return start({c10d::OpType::COALESCED, options.timeout, inputs}, when_all(std::move(works)), outputs);
}

GroupBackend::Started GroupBackend::gather(std::vector<Tensors>& outputs, Tensors& inputs,
                                           const c10d::GatherOptions& options) {
  check_process();
  check_one(inputs, "gather");
  const bool is_root = getRank() == options.rootRank;
  const Tensors list = is_root ? list_for(outputs, inputs[0], getSize(), "gather") : Tensors{};
  const int64_t count = inputs[0].numel();
  AllToAllRows rows{.input = std::vector<int64_t>(getSize(), 0),
                    .output = std::vector<int64_t>(getSize(), is_root ? count : 0)};
  rows.input.at(options.rootRank) = count;
  const at::Tensor flat = at::empty({total(rows.output)}, inputs[0].options().requires_grad(false));
  auto work = group_.all_to_all_into_async_(flat, plain(inputs[0]).reshape({-1}), rows).then([flat, list] {
    cut_into(flat, list);
  });
  return start({c10d::OpType::GATHER, options.timeout, inputs}, std::move(work), list);
}

GroupBackend::Started GroupBackend::scatter(Tensors& outputs, std::vector<Tensors>& inputs,
                                            const c10d::ScatterOptions& options) {
  check_process();
  check_one(outputs, "scatter");
  const bool is_root = getRank() == options.rootRank;
  const int64_t count = outputs[0].numel();
  AllToAllRows rows{.input = std::vector<int64_t>(getSize(), is_root ? count : 0),
                    .output = std::vector<int64_t>(getSize(), 0)};
  rows.output.at(options.rootRank) = count;
  const auto dtype = outputs[0].options().requires_grad(false);
  const at::Tensor given =
      is_root ? joined_flat(list_for(inputs, outputs[0], getSize(), "scatter")) : at::empty({0}, dtype);
  const at::Tensor flat = at::empty({count}, dtype);
  auto work = group_.all_to_all_into_async_(flat, given, rows).then([flat, outputs] { cut_into(flat, outputs); });
  return start({c10d::OpType::SCATTER, options.timeout}, std::move(work), outputs);
}

GroupBackend::Started GroupBackend::reduce_scatter(Tensors& outputs, std::vector<Tensors>& inputs,
                                                   const c10d::ReduceScatterOptions& options) {
  check_process();
  check_one(outputs, "reduce_scatter");
  const Reduction reduction = reduction_of(options.reduceOp);
  const at::Tensor given = reduction.scale(joined_flat(list_for(inputs, outputs[0], getSize(), "reduce_scatter")));
  return start({c10d::OpType::REDUCE_SCATTER, options.timeout},
               group_.reduce_scatter_into_async_(plain(outputs[0]), given, reduction.op), outputs);
}

GroupBackend::Started GroupBackend::_reduce_scatter_base(at::Tensor& output, at::Tensor& input,
                                                         const c10d::ReduceScatterOptions& options) {
  check_process();
  const Reduction reduction = reduction_of(options.reduceOp);
  return start({c10d::OpType::_REDUCE_SCATTER_BASE, options.timeout, {input}},
               group_.reduce_scatter_into_async_(plain(output), reduction.scale(plain(input)), reduction.op), {output});
}

GroupBackend::Started GroupBackend::reduce_scatter_tensor_coalesced(Tensors& outputs, Tensors& inputs,
                                                                    const c10d::ReduceScatterOptions& options) {
  check_process();
  const Reduction reduction = reduction_of(options.reduceOp);
  std::vector<Work<>> works;
  for (size_t i = 0; i < inputs.size(); ++i) {
    const at::Tensor given = reduction.scale(plain(inputs[i]));
    works.push_back(group_.reduce_scatter_into_async_(plain(outputs.at(i)), given, reduction.op));
  }
  return start({c10d::OpType::COALESCED, options.timeout, inputs}, when_all(std::move(works)), outputs);
}

GroupBackend::Started GroupBackend::alltoall_base(at::Tensor& output, at::Tensor& input,
                                                  std::vector<int64_t>& output_rows, std::vector<int64_t>& input_rows,
                                                  const c10d::AllToAllOptions& options) {
  check_process();
  return start({c10d::OpType::ALLTOALL_BASE, options.timeout, {input}},
               group_.all_to_all_into_async_(plain(output), plain(input), {input_rows, output_rows}), {output});
}

GroupBackend::Started GroupBackend::alltoall(Tensors& outputs, Tensors& inputs, const c10d::AllToAllOptions& options) {
  check_process();
  if (inputs.size() != static_cast<size_t>(getSize()) || outputs.size() != inputs.size()) {
    throw UsageError(Origin{"comm"}, "all_to_all: the lists have ", inputs.size(), " and ", outputs.size(),
                     " tensors; each needs one for each of the ", getSize(), " ranks.");
  }
  const at::Tensor given = joined_flat(inputs);
  const at::Tensor flat = at::empty({total(counts_of(outputs))}, given.options());
  auto work = group_.all_to_all_into_async_(flat, given, {counts_of(inputs), counts_of(outputs)}).then([flat, outputs] {
    cut_into(flat, outputs);
  });
  return start({c10d::OpType::ALLTOALL, options.timeout, inputs}, std::move(work), outputs);
}

GroupBackend::Started GroupBackend::send(Tensors& tensors, int to, int tag) {
  check_process();
  check_one(tensors, "send");
  return start({c10d::OpType::SEND}, group_.send_async(plain(tensors[0]), to, tag), tensors);
}

GroupBackend::Started GroupBackend::recv(Tensors& tensors, int from, int tag) {
  check_process();
  check_one(tensors, "recv");
  return start({.type = c10d::OpType::RECV, .from = std::make_shared<int>(from)},
               group_.receive_async_(plain(tensors[0]), from, tag), tensors);
}

GroupBackend::Started GroupBackend::recvAnysource(Tensors& tensors, int tag) {
  check_process();
  check_one(tensors, "recv");
  const auto from = std::make_shared<int>(-1);
  auto work = group_.receive_any_async_(plain(tensors[0]), tag).then([from](int rank) { *from = rank; });
  return start({.type = c10d::OpType::RECVANYSOURCE, .from = from}, std::move(work), tensors);
}

GroupBackend::Started GroupBackend::barrier(const c10d::BarrierOptions& options) {
  check_process();
  return start({c10d::OpType::BARRIER, options.timeout}, group_.barrier_async(), {});
}

void GroupBackend::setTimeout(std::chrono::milliseconds timeout) {
  options_->timeout = timeout;
  group_.set_timeout(timeout);
}

void GroupBackend::abort() {
  group_.fail("the process group was aborted");
}

at::Tensor GroupBackend::allocateTensor(long size, at::TensorOptions options) {
  return group_.buffer(size, options);
}

}  // namespace hasten::comm
