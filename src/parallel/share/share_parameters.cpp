// See share_parameters.h.
#include "hasten/parallel/share/share_parameters.h"

#include <torch/types.h>

#include <map>
#include <string>
#include <vector>

#include "hasten/comm/nested/objects.h"
#include "hasten/comm/shared_region.h"
#include "hasten/comm/types/purpose.h"
#include "hasten/core/error.h"

namespace hasten::parallel {
namespace {

constexpr int64_t kAlignment = 64;

struct SharedPlace {
  std::string name;
  at::Tensor tensor;
  int64_t offset_bytes = 0;
};

// Tied tensors have one place.
std::vector<SharedPlace> plan_places(torch::nn::Module& module, int64_t& num_bytes) {
  std::vector<SharedPlace> places;
  std::map<const void*, int64_t> by_storage;
  num_bytes = 0;
  const auto add = [&](const std::string& name, const at::Tensor& tensor) {
    if (!tensor.defined()) return;
    const void* storage = tensor.storage().unsafeGetStorageImpl();
    const auto [known, is_new] = by_storage.try_emplace(storage, num_bytes);
    if (is_new) num_bytes += (static_cast<int64_t>(tensor.nbytes()) + kAlignment - 1) / kAlignment * kAlignment;
    places.push_back({name, tensor, known->second});
  };
  for (const auto& one : module.named_parameters()) add(one.key(), one.value());
  for (const auto& one : module.named_buffers()) add(one.key(), one.value());
  return places;
}

std::string problems_of(const std::vector<SharedPlace>& places) {
  std::string problems;
  for (const SharedPlace& place : places) {
    const at::Tensor& tensor = place.tensor;
    const bool whole = tensor.device().is_cpu() && tensor.layout() == at::kStrided && tensor.is_contiguous() &&
                       tensor.storage_offset() == 0 && tensor.storage().nbytes() == tensor.nbytes();
    if (whole) continue;
    problems +=
        text(" '", place.name, "' ",
             !tensor.device().is_cpu() ? "is not on the CPU" : "is a view of a larger or reordered storage", ".");
  }
  return problems;
}

std::string shapes_of(const std::vector<SharedPlace>& places) {
  std::string shapes;
  for (const SharedPlace& place : places)
    shapes += text(place.name, ' ', c10::toString(place.tensor.scalar_type()), ' ', place.tensor.sizes(), '\n');
  return shapes;
}

}  // namespace

void share_parameters_(torch::nn::Module& module, const comm::Group& group) {
  if (group.world_size() == 1) return;
  const Origin origin{"hogwild", group.rank(), group.world_size()};
  const auto hosts = comm::ranks_by_host(group);
  if (hosts.size() > 1) {
    throw UsageError(origin, "share_parameters_ needs all ranks on one host; these are on ", hosts.size(),
                     ". Share over a subgroup of one host's ranks, and average between hosts (LocalSgd).");
  }
  int64_t num_bytes = 0;
  const auto places = plan_places(module, num_bytes);
  const std::string problems = problems_of(places);
  const comm::Purpose purpose("share_parameters");
  const auto all_problems = comm::gather_object(group, problems);
  for (size_t rank = 0; rank < all_problems.size(); ++rank) {
    if (!all_problems[rank].empty())
      throw UsageError(origin, "the module cannot be shared, on rank ", rank, ":", all_problems[rank],
                       " Clone such tensors first.");
  }
  const auto all_shapes = comm::gather_object(group, shapes_of(places));
  for (size_t rank = 1; rank < all_shapes.size(); ++rank) {
    if (all_shapes[rank] != all_shapes[0])
      throw UsageError(origin, "the modules of rank 0 and rank ", rank,
                       " differ in their parameters' names, dtypes or shapes. "
                       "Construct the same module on all ranks.");
  }
  if (num_bytes == 0) return;
  const auto region = comm::SharedRegion::create(group, num_bytes, {.label = "hasten-hogwild"});
  const at::NoGradGuard no_grad;
  std::vector<at::Tensor> shared;
  for (const SharedPlace& place : places) {
    const at::Tensor memory =
        region.tensor(place.offset_bytes, place.tensor.numel(), place.tensor.scalar_type()).view(place.tensor.sizes());
    if (group.rank() == 0) memory.copy_(place.tensor);
    shared.push_back(memory);
  }
  group.barrier();
  for (size_t i = 0; i < places.size(); ++i) places[i].tensor.set_data(shared[i]);
  group.barrier();
}

}  // namespace hasten::parallel
