// See direct_collectives.h.
#include "comm/gloo/direct_collectives.h"

#include <torch/types.h>

#include <utility>

#include "comm/backend/codec.h"
#include "comm/backend/reduction.h"
#include "comm/backend/transfer_of.h"

namespace hasten::comm {
namespace {

// Largest amount that a rank takes in. Above it a ring is faster: it moves each byte less often and adds up parts while
// others are on their way.
constexpr size_t kMostBytes = 256 << 10;

}  // namespace

bool DirectCollectives::takes(size_t num_bytes) const {
  return num_bytes * static_cast<size_t>(connections_.world_size() - 1) <= kMostBytes;
}

bool DirectCollectives::reduces(at::ScalarType dtype) const {
  return shared::routines(dtype, ReduceOp::kSum).reduce != nullptr;
}

std::vector<at::Tensor> DirectCollectives::nothing() const {
  return std::vector<at::Tensor>(static_cast<size_t>(connections_.world_size()), torch::empty({0}, at::kByte));
}

Backend::Started DirectCollectives::start(std::shared_ptr<PeerConnections::Round> round) {
  connections_.start(round);
  return transfer_of(connections_, std::move(round));
}

Backend::Started DirectCollectives::all_reduce(const at::Tensor& tensor, ReduceOp op) {
  std::vector<at::Tensor> parts;
  for (int rank = 0; rank < connections_.world_size(); ++rank) {
    parts.push_back(rank == connections_.rank() ? tensor : torch::empty_like(tensor));
  }
  const auto reduce = shared::routines(tensor.scalar_type(), op).reduce;
  const auto add_up = [parts, tensor, reduce] {
    std::vector<const void*> inputs;
    for (const at::Tensor& part : parts) inputs.push_back(part.const_data_ptr());
    reduce(tensor.data_ptr(), inputs.data(), static_cast<int>(inputs.size()), tensor.numel());
  };
  return start(std::make_shared<PeerConnections::Round>(header_of(OpType::kAllReduce, tensor, op), parts, add_up));
}

Backend::Started DirectCollectives::broadcast(const at::Tensor& bytes, int root) {
  auto parts = nothing();
  parts.at(static_cast<size_t>(root)) = bytes;
  return start(
      std::make_shared<PeerConnections::Round>(header_of(OpType::kBroadcast, bytes.numel(), root), std::move(parts)));
}

Backend::Started DirectCollectives::all_gather(const at::Tensor& output, const at::Tensor& input) {
  std::vector<at::Tensor> parts = bytes_of(output).chunk(connections_.world_size());
  at::Tensor& mine = parts.at(static_cast<size_t>(connections_.rank()));
  mine.copy_(bytes_of(input));
  return start(
      std::make_shared<PeerConnections::Round>(header_of(OpType::kAllGather, input.numel()), std::move(parts)));
}

Backend::Started DirectCollectives::barrier() {
  return start(std::make_shared<PeerConnections::Round>(header_of(OpType::kBarrier, 0), nothing()));
}

}  // namespace hasten::comm
