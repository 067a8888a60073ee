// Exchange: collectives on few bytes, in which every rank sends what it has to every other.
//
// For small data, one round wins over a ring's 2 (n - 1), and a round over a PeerConnections wakes no thread. Source:
// Thakur et al., "Optimization of Collective Communication Operations in MPICH", 2005, section 4.5. Every rank adds up
// in the order of the ranks, so the results are equal bit for bit.
#pragma once

#include "comm/backend/backend.h"
#include "comm/connecting/peer_connections.h"

namespace hasten::comm {

class DirectCollectives {
 public:
  /// Collective: yes. Blocks: until the ranks are connected. Throws: as PeerConnections.
  explicit DirectCollectives(const BackendSetup& setup) : connections_(setup) {}

  /// Returns true if messages of this size are better sent here; alike on all ranks.
  bool takes(size_t num_bytes) const;
  /// Returns true if all_reduce supports this dtype.
  bool reduces(at::ScalarType dtype) const;

  // All ranks call these in the same order, with contiguous tensors, as those of Backend.
  Backend::Started all_reduce(const at::Tensor& tensor, ReduceOp op);
  Backend::Started broadcast(const at::Tensor& bytes, int root);
  Backend::Started all_gather(const at::Tensor& output, const at::Tensor& input);
  Backend::Started barrier();

  void set_timeout(std::chrono::milliseconds timeout) noexcept { connections_.set_timeout(timeout); }
  void close() noexcept { connections_.close(); }

 private:
  /// Returns an empty part of each rank: only headers are sent.
  std::vector<at::Tensor> nothing() const;
  Backend::Started start(std::shared_ptr<PeerConnections::Round> round);

  PeerConnections connections_;
};

}  // namespace hasten::comm
