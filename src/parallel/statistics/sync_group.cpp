// See sync_group.h.
#include "parallel/statistics/sync_group.h"

#include <torch/types.h>

#include <algorithm>

#include "hasten/comm/types/purpose.h"
#include "hasten/core/error.h"

namespace hasten::parallel {
namespace {

constexpr int64_t kGather = 1, kSum = 2;

}  // namespace

at::Tensor SyncGroup::gather(const at::Tensor& mine) const {
  announce(kGather, mine);
  const at::Tensor all = at::empty({group_.world_size(), mine.numel()}, mine.options());
  const comm::Purpose purpose("statistics of a batch norm");
  group_.all_gather_into_(all.view({-1}), mine);
  return all;
}

void SyncGroup::sum_(const at::Tensor& tensor) const {
  announce(kSum, tensor);
  const comm::Purpose purpose("statistics of a batch norm");
  group_.all_reduce_(tensor);
}

void SyncGroup::answer(c10::Device device) const {
  while (true) {
    const auto [kind, numel, dtype] = hold_round({});
    if (kind == 0) return;
    const at::Tensor nothing = at::zeros({numel}, at::TensorOptions(device).dtype(static_cast<at::ScalarType>(dtype)));
    const comm::Purpose purpose("statistics of a batch norm");
    if (kind == kSum) {
      group_.all_reduce_(nothing);
    } else {
      group_.all_gather_into_(at::empty({group_.world_size() * numel}, nothing.options()), nothing);
    }
  }
}

SyncGroup::Call SyncGroup::hold_round(const Call& mine) const {
  const at::Tensor calls = at::empty({group_.world_size(), 3}, at::kLong);
  const comm::Purpose purpose("statistics of a batch norm");
  group_.all_gather_into_(calls.view({-1}), torch::tensor(at::ArrayRef<int64_t>(mine)));
  Call agreed = {};
  for (int64_t rank = 0; rank < calls.size(0); ++rank) {
    Call theirs;
    std::copy_n(calls[rank].const_data_ptr<int64_t>(), theirs.size(), theirs.begin());
    if (theirs == Call{}) continue;
    if (agreed == Call{}) agreed = theirs;
    if (agreed == theirs) continue;
    throw UsageError(Origin{"sync_batch_norm", group_.rank(), group_.world_size()},
                     "ranks with batches exchange different statistics: [", join(agreed), "] and, on rank ", rank,
                     ", [", join(theirs),
                     "] (gather 1 or sum 2, numbers, dtype). All must run the same BatchNorms in the same "
                     "order.");
  }
  return agreed;
}

void SyncGroup::announce(int64_t kind, const at::Tensor& tensor) const {
  if (uneven_) hold_round({kind, tensor.numel(), static_cast<int64_t>(tensor.scalar_type())});
}

}  // namespace hasten::parallel
