// Shares, and tensors cut into them; see split.h.
#include "hasten/process/split.h"

#include <torch/types.h>

#include <algorithm>

#include "hasten/core/count_text.h"
#include "hasten/core/error.h"

namespace hasten::process {

Share share_of(int64_t length, int rank, int world_size, bool apply_padding) {
  const int64_t each = length / world_size;
  const int64_t extras = length % world_size;
  const int64_t begin = rank * each + std::min<int64_t>(rank, extras);
  const int64_t end = begin + each + (rank < extras ? 1 : 0);
  const int64_t most = each + (extras > 0 ? 1 : 0);
  return {begin, end, apply_padding ? most - (end - begin) : 0};
}

namespace detail {

int64_t length_of(const at::Tensor& tensor) {
  if (tensor.dim() > 0) return tensor.size(0);
  throw UsageError({"state"}, "split_between_processes of a scalar tensor; it has no rows. Unsqueeze it first.");
}

at::Tensor take(const at::Tensor& tensor, const Share& share) {
  const at::Tensor mine = tensor.slice(0, share.begin, share.end);
  if (share.padding == 0) return mine;
  auto sizes = tensor.sizes().vec();
  sizes[0] = share.padding;
  return torch::cat({mine, tensor.slice(0, tensor.size(0) - 1).expand(sizes)});
}

void refuse_lengths(const Process& process, const std::string& one, int64_t its_length, const std::string& other,
                    int64_t other_length) {
  throw UsageError({"state", process.rank(), process.world_size()}, "split_between_processes: '", one, "' has ",
                   count_text(its_length, "element"), " and '", other, "' has ", other_length,
                   "; all need the same number.");
}

}  // namespace detail

at::Tensor split_between_processes(const Process& process, const at::Tensor& values, bool apply_padding) {
  const int64_t length = detail::length_of(values);
  return detail::take(values, share_of(length, process.rank(), process.world_size(), apply_padding));
}

}  // namespace hasten::process
