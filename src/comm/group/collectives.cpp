// The collective operations of Group; see group.h for what each does.
//
// Each follows one pattern. It agrees, if checked or if sizes must be known. It converts the tensor to the backend's
// form (codec.h) and starts the transfer. It returns a Work whose finish converts the result back to the caller's form.
#include <torch/types.h>

#include <numeric>

#include "comm/backend/codec.h"
#include "comm/group/group_impl.h"

namespace hasten::comm {
namespace {

Work<> ended() {
  return Work<>([] {});
}

template <class T>
Work<T> ended(T value) {
  return Work<T>([value = std::move(value)] { return value; });
}

at::Tensor empty_bytes(int64_t count, const Backend& backend) {
  return torch::empty({count}, at::TensorOptions().dtype(at::kByte).device(backend.device_type()));
}

// A tensor of `like`'s dtype and shape but for the first size, which takes its values from part of `bytes`.
at::Tensor from_bytes(const at::Tensor& bytes, int64_t begin, int64_t count, std::vector<int64_t> shape,
                      const at::TensorOptions& options) {
  if (count == 0) return at::empty(shape, options);
  const auto part = bytes.narrow(0, begin, count);
  auto keep = [bytes](void*) {};
  const auto plain = torch::from_blob(part.data_ptr(), shape, keep, options.device(bytes.device()));
  return plain.to(options.device());
}

std::vector<int64_t> shape_with_first(const at::Tensor& like, int64_t first) {
  std::vector<int64_t> shape = like.sizes().vec();
  if (!shape.empty()) shape[0] = first;
  return shape;
}

// Bytes of one step along dim 0.
int64_t row_bytes(const at::Tensor& tensor) {
  int64_t count = tensor.element_size();
  for (int64_t i = 1; i < tensor.dim(); ++i) count *= tensor.size(i);
  return count;
}

// The result in a world of one, in new memory as any other.
std::vector<at::Tensor> copies_of(const std::vector<at::Tensor>& tensors) {
  std::vector<at::Tensor> copies;
  for (const at::Tensor& tensor : tensors) copies.push_back(tensor.detach().clone());
  return copies;
}

int64_t sum(const std::vector<int64_t>& list) {
  return std::accumulate(list.begin(), list.end(), int64_t{0});
}

// Cuts the received bytes into one tensor a rank.
std::vector<at::Tensor> cut(const at::Tensor& bytes, const std::vector<int64_t>& counts,
                            const std::vector<int64_t>& firsts, const at::Tensor& like, int64_t stride = -1) {
  std::vector<at::Tensor> parts;
  int64_t begin = 0;
  for (size_t rank = 0; rank < counts.size(); ++rank) {
    parts.push_back(from_bytes(bytes, begin, counts[rank], shape_with_first(like, firsts[rank]), like.options()));
    begin += stride < 0 ? counts[rank] : stride;
  }
  return parts;
}

}  // namespace

void Group::begin(OpType kind) const {
  impl_->reap();
  if (observer_ && !impl_->alone()) (*observer_)(name_of(kind));
}

Work<> Group::all_reduce_async_(at::Tensor tensor, ReduceOp op, Site site) const {
  Impl& group = *impl_;
  group.enter(OpType::kAllReduce, site);
  check_result(tensor, name_of(OpType::kAllReduce), group.origin());
  check_reduction(tensor.scalar_type(), op, group.origin());
  if (group.alone()) return ended();
  begin(OpType::kAllReduce);
  const RecordedCall call = group.record(OpType::kAllReduce, site, {.tensor = &tensor, .op = op});
  if (check_) group.agree(Fingerprint::of(OpType::kAllReduce, site).with_tensor(tensor).with_op(op));
  Backend& backend = group.backend_for(tensor);
  const Encoded encoded = encode(tensor, op, backend, group.origin());
  if (tensor.numel() == 0) return ended();
  return group.work<void>(
      OpType::kAllReduce, [&] { return backend.all_reduce(encoded.buffer, encoded.op); },
      [tensor, encoded] {
        const at::NoGradGuard no_grad;
        write_back(tensor, decode(encoded.buffer, encoded.divisor, tensor.scalar_type()));
      });
}

Work<> Group::reduce_async_(at::Tensor tensor, int root, ReduceOp op, Site site) const {
  Impl& group = *impl_;
  group.enter(OpType::kReduce, site);
  check_result(tensor, name_of(OpType::kReduce), group.origin());
  group.check_rank(root, "root", OpType::kReduce);
  check_reduction(tensor.scalar_type(), op, group.origin());
  if (group.alone()) return ended();
  begin(OpType::kReduce);
  const RecordedCall call = group.record(OpType::kReduce, site, {.tensor = &tensor, .op = op, .root = root});
  if (check_) group.agree(Fingerprint::of(OpType::kReduce, site).with_tensor(tensor).with_op(op).with_root(root));
  Backend& backend = group.backend_for(tensor);
  Encoded encoded = encode(tensor, op, backend, group.origin());
  if (tensor.numel() == 0) return ended();
  const bool is_scratch = rank() != root && !backend.reduce_keeps_inputs();
  if (is_scratch && encoded.buffer.is_alias_of(tensor)) encoded.buffer = encoded.buffer.clone();
  return group.work<void>(
      OpType::kReduce, [&] { return backend.reduce(encoded.buffer, root, encoded.op); },
      [tensor, encoded, is_root = rank() == root] {
        const at::NoGradGuard no_grad;
        if (is_root) write_back(tensor, decode(encoded.buffer, encoded.divisor, tensor.scalar_type()));
      });
}

Work<> Group::broadcast_async_(at::Tensor tensor, int root, Site site) const {
  Impl& group = *impl_;
  group.enter(OpType::kBroadcast, site);
  check_result(tensor, name_of(OpType::kBroadcast), group.origin());
  group.check_rank(root, "root", OpType::kBroadcast);
  if (group.alone()) return ended();
  begin(OpType::kBroadcast);
  const RecordedCall call = group.record(OpType::kBroadcast, site, {.tensor = &tensor, .root = root});
  if (check_) group.agree(Fingerprint::of(OpType::kBroadcast, site).with_tensor(tensor).with_root(root));
  if (tensor.numel() == 0) return ended();
  Backend& backend = group.backend_for(tensor);
  const at::Tensor staged = stage(tensor, backend);
  return group.work<void>(
      OpType::kBroadcast, [&] { return backend.broadcast(bytes_of(staged), root); },
      [tensor, staged, is_root = rank() == root] {
        if (!is_root) write_back(tensor, staged);
      });
}

Work<> Group::all_gather_into_async_(at::Tensor output, const at::Tensor& input, Site site) const {
  Impl& group = *impl_;
  group.enter(OpType::kAllGatherInto, site);
  check_result(output, name_of(OpType::kAllGatherInto), group.origin());
  if (output.scalar_type() != input.scalar_type() || output.numel() != input.numel() * world_size()) {
    throw UsageError(group.origin(), "all_gather_into: the output is ", output.scalar_type(), " of ", output.numel(),
                     " elements; world_size(", world_size(), ") * input(", input.numel(),
                     ") = ", world_size() * input.numel(), " of ", input.scalar_type(), " are needed.");
  }
  if (group.alone()) return Work<>([output, input] { write_back(output, input.detach().reshape({-1})); });
  begin(OpType::kAllGatherInto);
  const RecordedCall call = group.record(OpType::kAllGatherInto, site, {.tensor = &input});
  if (check_) group.agree(Fingerprint::of(OpType::kAllGatherInto, site).with_tensor(input));
  if (input.numel() == 0) return ended();
  Backend& backend = group.backend_for(input);
  const at::Tensor staged = stage(output, backend);
  return group.work<void>(
      OpType::kAllGatherInto, [&] { return backend.all_gather(bytes_of(staged), bytes_of(stage(input, backend))); },
      [output, staged] { write_back(output, staged); });
}

Work<std::vector<at::Tensor>> Group::all_gather_async(const at::Tensor& tensor, Site site) const {
  Impl& group = *impl_;
  group.enter(OpType::kAllGather, site);
  if (group.alone()) return ended(copies_of({tensor}));
  begin(OpType::kAllGather);
  const RecordedCall call = group.record(OpType::kAllGather, site, {.tensor = &tensor});
  const auto records = group.agree(Fingerprint::of(OpType::kAllGather, site).with_tensor(tensor));
  Backend& backend = group.backend_for(tensor);
  const int64_t row = tensor.dim() == 0 ? tensor.element_size() : row_bytes(tensor);
  std::vector<int64_t> firsts, counts;
  for (const Fingerprint& record : records) {
    firsts.push_back(tensor.dim() == 0 ? 1 : record.sizes[0]);
    counts.push_back(firsts.back() * row);
  }
  const int64_t most = *std::max_element(counts.begin(), counts.end());
  if (most == 0) {
    std::vector<at::Tensor> nothing;
    for (const int64_t first : firsts) nothing.push_back(at::empty(shape_with_first(tensor, first), tensor.options()));
    return ended(std::move(nothing));
  }
  at::Tensor input = bytes_of(stage(tensor, backend));
  if (input.numel() < most) {
    const at::Tensor padded = at::zeros({most}, input.options());
    padded.narrow(0, 0, input.numel()).copy_(input);
    input = padded;
  }
  const at::Tensor output = empty_bytes(most * world_size(), backend);
  return group.work<std::vector<at::Tensor>>(
      OpType::kAllGather, [&] { return backend.all_gather(output, input); },
      [output, counts, firsts, like = tensor.detach(), most] { return cut(output, counts, firsts, like, most); });
}

Work<std::vector<at::Tensor>> Group::gather_async(const at::Tensor& tensor, int root, Site site) const {
  Impl& group = *impl_;
  group.enter(OpType::kGather, site);
  group.check_rank(root, "root", OpType::kGather);
  if (group.alone()) return ended(copies_of({tensor}));
  begin(OpType::kGather);
  const RecordedCall call = group.record(OpType::kGather, site, {.tensor = &tensor, .root = root});
  const auto records = group.agree(Fingerprint::of(OpType::kGather, site).with_tensor(tensor).with_root(root));
  Backend& backend = group.backend_for(tensor);
  const at::Tensor input = bytes_of(stage(tensor, backend));
  const int64_t row = tensor.dim() == 0 ? tensor.element_size() : row_bytes(tensor);
  std::vector<int64_t> firsts, counts;
  std::vector<at::Tensor> inputs(world_size(), empty_bytes(0, backend));
  inputs[root] = input;
  for (const Fingerprint& record : records) {
    firsts.push_back(tensor.dim() == 0 ? 1 : record.sizes[0]);
    counts.push_back(rank() == root ? firsts.back() * row : 0);
  }
  const at::Tensor output = empty_bytes(sum(counts), backend);
  return group.work<std::vector<at::Tensor>>(
      OpType::kGather, [&] { return backend.all_to_all(output, counts, inputs); },
      [output, counts, firsts, like = tensor.detach(), is_root = rank() == root] {
        return is_root ? cut(output, counts, firsts, like) : std::vector<at::Tensor>{};
      });
}

namespace {

// Root's announcement of the parts that it scatters: for each rank dtype, dims, sizes.
constexpr int64_t kScatterHeader = 2 + Fingerprint::kMaxDims;

at::Tensor scatter_header(const std::vector<at::Tensor>& parts, int world_size) {
  at::Tensor header = at::full({world_size, kScatterHeader}, -1, at::kLong);
  if (static_cast<int>(parts.size()) != world_size) return header;
  for (int rank = 0; rank < world_size; ++rank) {
    if (parts[rank].dim() > Fingerprint::kMaxDims || parts[rank].scalar_type() != parts[0].scalar_type()) return header;
    int64_t* row = header[rank].data_ptr<int64_t>();
    row[1] = parts[rank].dim();
    std::copy_n(parts[rank].sizes().begin(), row[1], row + 2);
  }
  header.select(1, 0).fill_(static_cast<int64_t>(parts[0].scalar_type()));
  return header;
}

}  // namespace

Work<at::Tensor> Group::scatter_async(const std::vector<at::Tensor>& parts, int root, Site site) const {
  Impl& group = *impl_;
  group.enter(OpType::kScatter, site);
  group.check_rank(root, "root", OpType::kScatter);
  const bool is_root = rank() == root;
  begin(OpType::kScatter);
  const RecordedCall call = group.record(OpType::kScatter, site, {.root = root});
  if (check_ && !group.alone()) group.agree(Fingerprint::of(OpType::kScatter, site).with_root(root));
  at::Tensor header = scatter_header(is_root ? parts : std::vector<at::Tensor>{}, world_size());
  if (!group.alone()) group.wait(*group.cpu().broadcast(bytes_of(header), root), OpType::kScatter);
  const int64_t* mine = header[rank()].data_ptr<int64_t>();
  if (!is_root && group.stands_in()) {
    throw UsageError(
        group.origin(), "scatter from rank ", root,
        " before the ranks have met: under hasten launch --survive they do in accelerator.survive. Compute "
        "the parts on every rank, or scatter them inside.");
  }
  if (mine[0] < 0) {
    throw UsageError(group.origin(), "scatter: root ", root,
                     is_root ? text(" gave ", parts.size(), " parts") : std::string(" gave unusable parts"),
                     "; it needs one for each of the ", world_size(), " ranks, of one dtype and at most ",
                     Fingerprint::kMaxDims, " dimensions.");
  }
  if (group.alone() || group.stands_in()) return ended(copies_of({parts[static_cast<size_t>(rank())].cpu()})[0]);
  std::vector<int64_t> out(world_size(), 0), shape(mine + 2, mine + 2 + mine[1]);
  const auto options = at::TensorOptions().dtype(static_cast<at::ScalarType>(mine[0]));
  out[root] = std::accumulate(shape.begin(), shape.end(), static_cast<int64_t>(options.dtype().itemsize()),
                              std::multiplies<>());
  std::vector<at::Tensor> inputs(world_size(), empty_bytes(0, group.cpu()));
  for (int peer = 0; is_root && peer < world_size(); ++peer) {
    inputs[peer] = bytes_of(stage(parts[peer], group.cpu()));
  }
  const at::Tensor output = empty_bytes(out[root], group.cpu());
  return group.work<at::Tensor>(
      OpType::kScatter, [&] { return group.cpu().all_to_all(output, out, inputs); },
      [output, shape, options] { return from_bytes(output, 0, output.numel(), shape, options); });
}

Work<at::Tensor> Group::reduce_scatter_async(const at::Tensor& input, ReduceOp op, Site site) const {
  Impl& group = *impl_;
  group.enter(OpType::kReduceScatter, site);
  if (input.dim() == 0 || input.size(0) % world_size() != 0) {
    throw UsageError(group.origin(), "reduce_scatter: dim 0 of the input, of shape [", join(input.sizes()),
                     "], cannot be cut into world_size(", world_size(), ") equal parts. Pad it.");
  }
  const at::Tensor output = at::empty(shape_with_first(input, input.size(0) / world_size()), input.options());
  return reduce_scatter_into_async_(output, input, op, site).then([output] { return output; });
}

Work<> Group::reduce_scatter_into_async_(at::Tensor output, const at::Tensor& input, ReduceOp op, Site site) const {
  Impl& group = *impl_;
  group.enter(OpType::kReduceScatter, site);
  check_result(output, name_of(OpType::kReduceScatter), group.origin());
  if (output.scalar_type() != input.scalar_type() || input.numel() != output.numel() * world_size()) {
    throw UsageError(group.origin(), "reduce_scatter_into: the input is ", input.scalar_type(), " of ", input.numel(),
                     " elements; world_size(", world_size(), ") * output(", output.numel(),
                     ") = ", world_size() * output.numel(), " of ", output.scalar_type(), " are needed.");
  }
  check_reduction(input.scalar_type(), op, group.origin());
  if (group.alone()) return Work<>([output, input] { write_back(output, input.detach().reshape({-1})); });
  begin(OpType::kReduceScatter);
  const RecordedCall call = group.record(OpType::kReduceScatter, site, {.tensor = &input, .op = op});
  if (check_) group.agree(Fingerprint::of(OpType::kReduceScatter, site).with_tensor(input).with_op(op));
  Backend& backend = group.backend_for(input);
  const Encoded encoded = encode(input, op, backend, group.origin());
  if (input.numel() == 0) return ended();
  const at::Tensor flat = encoded.buffer.reshape({-1});
  const bool is_direct = output.is_contiguous() && !output.is_alias_of(input) &&
                         output.scalar_type() == flat.scalar_type() && output.device() == flat.device();
  const at::Tensor result =
      is_direct ? output.detach().view({-1}) : at::empty({flat.numel() / world_size()}, flat.options());
  return group.work<void>(
      OpType::kReduceScatter, [&] { return backend.reduce_scatter(result, flat, encoded.op); },
      [output, result, divisor = encoded.divisor] {
        const at::NoGradGuard no_grad;
        write_back(output, decode(result, divisor, output.scalar_type()));
      });
}

Work<std::vector<at::Tensor>> Group::all_to_all_async(const std::vector<at::Tensor>& parts, Site site) const {
  Impl& group = *impl_;
  group.enter(OpType::kAllToAll, site);
  if (static_cast<int>(parts.size()) != world_size()) {
    throw UsageError(group.origin(), "all_to_all: ", parts.size(), " parts given, one for each of the ", world_size(),
                     " ranks needed.");
  }
  if (group.alone()) return ended(copies_of(parts));
  begin(OpType::kAllToAll);
  const RecordedCall call = group.record(OpType::kAllToAll, site, {.tensor = &parts[0]});
  if (check_) group.agree(Fingerprint::of(OpType::kAllToAll, site).with_tensor(parts[0]));
  const at::Tensor& like = parts[0];
  const int64_t row = row_bytes(like);
  at::Tensor give = at::empty({world_size()}, at::kLong);
  std::vector<at::Tensor> inputs;
  Backend& backend = group.backend_for(like);
  for (int peer = 0; peer < world_size(); ++peer) {
    if (row_bytes(parts[peer]) != row || parts[peer].scalar_type() != like.scalar_type() || parts[peer].dim() == 0) {
      throw UsageError(group.origin(), "all_to_all: part ", peer, " is ", parts[peer].scalar_type(), " [",
                       join(parts[peer].sizes()), "], part 0 is ", like.scalar_type(), " [", join(like.sizes()),
                       "]; only the first size may differ, and there must be one.");
    }
    give[peer] = parts[peer].size(0);
    inputs.push_back(bytes_of(stage(parts[peer], backend)));
  }
  at::Tensor take = at::empty_like(give);
  const std::vector<int64_t> ones(world_size(), sizeof(int64_t));
  group.wait(*group.cpu().all_to_all(bytes_of(take), ones, bytes_of(give).split(sizeof(int64_t))), OpType::kAllToAll);
  const std::vector<int64_t> firsts(take.data_ptr<int64_t>(), take.data_ptr<int64_t>() + world_size());
  std::vector<int64_t> counts;
  for (const int64_t first : firsts) counts.push_back(first * row);
  const at::Tensor output = empty_bytes(sum(counts), backend);
  return group.work<std::vector<at::Tensor>>(
      OpType::kAllToAll, [&] { return backend.all_to_all(output, counts, inputs); },
      [output, counts, firsts, like = like.detach()] { return cut(output, counts, firsts, like); });
}

namespace {

// Rows of each part of a tensor that is cut for `world_size` ranks, as given or in equal parts.
std::vector<int64_t> rows_of(const at::Tensor& tensor, const std::vector<int64_t>& given, int world_size,
                             const char* role, const Origin& origin) {
  const auto refuse = [&](const auto&... why) {
    throw UsageError(origin, "all_to_all_into: the ", role, ", of shape [", join(tensor.sizes()), "], ", why...);
  };
  if (tensor.dim() == 0) refuse("has no rows. Give it a first dimension.");
  const int64_t rows = tensor.size(0);
  if (given.empty()) {
    if (rows % world_size == 0) return std::vector<int64_t>(world_size, rows / world_size);
    refuse("cannot be cut into world_size(", world_size, ") equal parts. Say how many rows each rank has.");
  }
  const bool fits = static_cast<int>(given.size()) == world_size && sum(given) == rows &&
                    *std::min_element(given.begin(), given.end()) >= 0;
  if (!fits) {
    refuse("does not have the rows [", join(given), "]. Give one number for each of the ", world_size,
           " ranks, 0 or more, of together ", rows, ".");
  }
  return given;
}

std::vector<int64_t> times(std::vector<int64_t> list, int64_t factor) {
  for (int64_t& number : list) number *= factor;
  return list;
}

// Every rank checks every pair, so that all throw or none.
void compare_rows(const at::Tensor& all, int world_size, const Origin& origin) {
  const auto rows = all.accessor<int64_t, 3>();
  for (int from = 0; from < world_size; ++from) {
    for (int to = 0; to < world_size; ++to) {
      const int64_t given = rows[from][0][to], taken = rows[to][1][from];
      if (given == taken) continue;
      throw CommError(origin, "all_to_all_into", "all_to_all_into: rank ", from, " gives ", given, " rows to rank ", to,
                      ", which takes ", taken, ". Both sides must name the same number.");
    }
  }
}

}  // namespace

Work<> Group::all_to_all_into_async_(at::Tensor output, const at::Tensor& input, const AllToAllRows& rows,
                                     Site site) const {
  Impl& group = *impl_;
  group.enter(OpType::kAllToAllInto, site);
  check_result(output, name_of(OpType::kAllToAllInto), group.origin());
  const auto give = rows_of(input, rows.input, world_size(), "input", group.origin());
  const auto take = rows_of(output, rows.output, world_size(), "output", group.origin());
  const int64_t row = row_bytes(input);
  if (output.scalar_type() != input.scalar_type() || row_bytes(output) != row) {
    throw UsageError(group.origin(), "all_to_all_into: the output is ", output.scalar_type(), " [",
                     join(output.sizes()), "], the input ", input.scalar_type(), " [", join(input.sizes()),
                     "]; only the first size may differ.");
  }
  if (group.alone()) {
    if (give != take) compare_rows(at::tensor({give[0], take[0]}, at::kLong).view({1, 2, 1}), 1, group.origin());
    return Work<>([output, input] { write_back(output, input.detach()); });
  }
  begin(OpType::kAllToAllInto);
  const RecordedCall call = group.record(OpType::kAllToAllInto, site, {.tensor = &input});
  if (check_) {
    group.agree(Fingerprint::of(OpType::kAllToAllInto, site).with_tensor(input));
    const at::Tensor mine = at::cat({at::tensor(give, at::kLong), at::tensor(take, at::kLong)});
    const at::Tensor all = at::empty({world_size(), 2, world_size()}, at::kLong);
    group.wait(*group.cpu().all_gather(bytes_of(all), bytes_of(mine)), OpType::kAllToAllInto);
    compare_rows(all, world_size(), group.origin());
  }
  Backend& backend = group.backend_for(input);
  const at::Tensor staged = stage(output, backend);
  const auto inputs = bytes_of(stage(input, backend)).split_with_sizes(times(give, row));
  return group.work<void>(
      OpType::kAllToAllInto, [&] { return backend.all_to_all(bytes_of(staged), times(take, row), inputs); },
      [output, staged] { write_back(output, staged); });
}

Work<> Group::barrier_async(Site site) const {
  Impl& group = *impl_;
  group.enter(OpType::kBarrier, site);
  if (group.alone()) return ended();
  begin(OpType::kBarrier);
  const RecordedCall call = group.record(OpType::kBarrier, site, {});
  if (check_) group.agree(Fingerprint::of(OpType::kBarrier, site));
  return group.work<void>(
      OpType::kBarrier, [&] { return group.cpu().barrier(); }, [] {});
}

void Group::all_reduce_(at::Tensor tensor, ReduceOp op, Site site) const {
  all_reduce_async_(std::move(tensor), op, site).wait();
}

void Group::reduce_(at::Tensor tensor, int root, ReduceOp op, Site site) const {
  reduce_async_(std::move(tensor), root, op, site).wait();
}

void Group::broadcast_(at::Tensor tensor, int root, Site site) const {
  broadcast_async_(std::move(tensor), root, site).wait();
}

void Group::all_gather_into_(at::Tensor output, const at::Tensor& input, Site site) const {
  all_gather_into_async_(std::move(output), input, site).wait();
}

std::vector<at::Tensor> Group::all_gather(const at::Tensor& tensor, Site site) const {
  return all_gather_async(tensor, site).wait();
}

std::vector<at::Tensor> Group::gather(const at::Tensor& tensor, int root, Site site) const {
  return gather_async(tensor, root, site).wait();
}

at::Tensor Group::scatter(const std::vector<at::Tensor>& parts, int root, Site site) const {
  return scatter_async(parts, root, site).wait();
}

at::Tensor Group::reduce_scatter(const at::Tensor& input, ReduceOp op, Site site) const {
  return reduce_scatter_async(input, op, site).wait();
}

void Group::reduce_scatter_into_(at::Tensor output, const at::Tensor& input, ReduceOp op, Site site) const {
  reduce_scatter_into_async_(std::move(output), input, op, site).wait();
}

std::vector<at::Tensor> Group::all_to_all(const std::vector<at::Tensor>& parts, Site site) const {
  return all_to_all_async(parts, site).wait();
}

void Group::all_to_all_into_(at::Tensor output, const at::Tensor& input, const AllToAllRows& rows, Site site) const {
  all_to_all_into_async_(std::move(output), input, rows, site).wait();
}

void Group::barrier(Site site) const {
  barrier_async(site).wait();
}

}  // namespace hasten::comm
