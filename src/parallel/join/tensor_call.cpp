// See tensor_call.h.
#include "hasten/parallel/join/tensor_call.h"

#include <array>
#include <cstddef>

#include "hasten/comm/types/collective.h"

namespace hasten::parallel {
namespace {

constexpr std::array kKindNames = {"gather", "reduce", "pad_across_processes"};

}  // namespace

TensorCall TensorCall::with(const std::vector<at::Tensor>& given) const {
  TensorCall call = *this;
  call.tensors.clear();
  for (const at::Tensor& tensor : given) {
    auto sizes = tensor.sizes().vec();
    const int64_t dim = kind != Kind::kPad ? 0 : pad.dim < 0 ? pad.dim + tensor.dim() : pad.dim;
    if (kind == Kind::kGather && sizes.empty()) sizes = {0};
    if (kind != Kind::kReduce && dim >= 0 && dim < static_cast<int64_t>(sizes.size()))
      sizes[static_cast<size_t>(dim)] = 0;
    call.tensors.push_back({tensor.scalar_type(), std::move(sizes)});
  }
  return call;
}

training::JoinCall TensorCall::encode(const std::string& component) const {
  training::JoinCall call{component, kKindNames[static_cast<size_t>(kind)]};
  call.integers = {static_cast<int64_t>(kind), static_cast<int64_t>(reduce.op), pad.dim, pad.pad_first ? 1 : 0};
  for (const TensorShape& tensor : tensors) {
    call.integers.push_back(static_cast<int64_t>(tensor.dtype));
    call.integers.push_back(static_cast<int64_t>(tensor.sizes.size()));
    call.integers.insert(call.integers.end(), tensor.sizes.begin(), tensor.sizes.end());
  }
  call.reals = {reduce.scale, pad.pad_index.toDouble()};
  return call;
}

TensorCall TensorCall::decode(const training::JoinCall& call) {
  const auto& numbers = call.integers;
  TensorCall result{.kind = static_cast<Kind>(numbers.at(0))};
  result.reduce = {.op = static_cast<comm::ReduceOp>(numbers.at(1)), .scale = call.reals.at(0)};
  result.pad = {.dim = numbers.at(2), .pad_index = call.reals.at(1), .pad_first = numbers.at(3) != 0};
  for (size_t i = 4; i + 1 < numbers.size();) {
    const auto dims = static_cast<size_t>(numbers[i + 1]);
    const auto begin = numbers.begin() + static_cast<std::ptrdiff_t>(i + 2);
    result.tensors.push_back(
        {static_cast<at::ScalarType>(numbers[i]), {begin, begin + static_cast<std::ptrdiff_t>(dims)}});
    i += 2 + dims;
  }
  return result;
}

std::vector<at::Tensor> neutral_tensors(const TensorCall& call, c10::Device device) {
  const auto op = call.kind == TensorCall::Kind::kReduce ? call.reduce.op : comm::ReduceOp::kSum;
  std::vector<at::Tensor> tensors;
  for (const TensorShape& tensor : call.tensors) {
    tensors.push_back(comm::neutral_tensor(tensor.sizes, at::TensorOptions(device).dtype(tensor.dtype), op));
  }
  return tensors;
}

std::vector<at::Tensor> carry_out(const TensorCall& call, const std::vector<at::Tensor>& tensors,
                                  const training::ActiveRanks& active, const comm::Group& group) {
  const comm::Group unchecked = group.with_check(false);
  const auto site = comm::Group::Site::current();
  switch (call.kind) {
    case TensorCall::Kind::kGather:
      return comm::detail::gather(unchecked, tensors, site);
    case TensorCall::Kind::kPad:
      return comm::detail::pad(unchecked, tensors, call.pad, site);
    case TensorCall::Kind::kReduce:
      break;
  }
  comm::ReduceOptions options = call.reduce;
  if (options.op == comm::ReduceOp::kMean) {
    options.op = comm::ReduceOp::kSum;
    options.scale /= static_cast<double>(active.ranks.size());
  }
  return comm::detail::reduce(unchecked, tensors, options, site);
}

}  // namespace hasten::parallel
