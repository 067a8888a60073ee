// See program_writes.h.
#include "parallel/shard/program_writes.h"

#include <torch/types.h>

#include <algorithm>
#include <cstring>

#include "hasten/comm/types/purpose.h"
#include "hasten/core/error.h"
#include "hasten/interception/interceptor.h"

namespace hasten::parallel::shard {
namespace {

// A storage whose values on this rank are not the region's: written to, or replaced.
struct Departed {
  RegionModel* model;
  SharedStorage* storage;
};

bool has_departed(const SharedStorage& storage) {
  return storage.home.is_private() || !storage.home.is_of(storage.tensor);
}

// FNV-1a over words of eight bytes.
uint64_t checksum(uint64_t hash, const void* data, size_t num_bytes) {
  constexpr uint64_t kPrime = 1099511628211ULL;
  const auto* bytes = static_cast<const unsigned char*>(data);
  size_t i = 0;
  for (; i + 8 <= num_bytes; i += 8) {
    uint64_t word = 0;
    std::memcpy(&word, bytes + i, 8);
    hash = (hash ^ word) * kPrime;
  }
  for (; i < num_bytes; ++i) hash = (hash ^ bytes[i]) * kPrime;
  return hash;
}

uint64_t checksum(const SharedStorage& storage) {
  // A storage that set_data has put in may hold more than the parameter.
  const interception::PassScope pass;
  const at::Tensor values = storage.tensor.detach().contiguous();
  return checksum(14695981039346656037ULL ^ values.nbytes(), values.const_data_ptr(), values.nbytes());
}

[[noreturn]] void refuse(const std::vector<std::shared_ptr<RegionModel>>& models, const comm::Group& group) {
  std::vector<std::string> names;
  std::vector<int64_t> sums;
  for (const auto& model : models) {
    for (const auto& storage : model->storages()) {
      names.push_back(storage.name);
      sums.push_back(has_departed(storage) ? static_cast<int64_t>(checksum(storage) | 1) : 0);
    }
  }
  refuse_different_writes(names, sums, group);
  throw UsageError(Origin{"shard", group.rank(), group.world_size()},
                   "parameters were changed differently on the ranks between two steps.");
}

// Each rank of the host copies its part of the bytes. The first rank copies data that lies in another storage, and
// perhaps in another form.
void write_back(const Departed& departed) {
  const at::NoGradGuard no_grad;
  auto& [model, storage] = departed;
  if (storage->item && model->is_paged(*storage->item)) {
    const auto mine = model->owned(*storage->item);
    if (mine.size() == 0) return;
    const at::Tensor values =
        at::empty_strided(storage->sizes, storage->strides, storage->tensor.options().requires_grad(false));
    values.copy_(storage->tensor.detach());
    model->value_slice(*storage->item, mine)
        .copy_(values.as_strided({values.numel()}, {1}).narrow(0, mine.begin, mine.size()));
    return;
  }
  const auto& region = model->region();
  if (!storage->home.is_of(storage->tensor)) {
    if (region.local_index() > 0) return;
    const auto item = static_cast<int64_t>(storage->tensor.element_size());
    region.tensor(storage->offset_bytes, storage->num_bytes / item, storage->tensor.scalar_type())
        .as_strided(storage->sizes, storage->strides, storage->first_element)
        .copy_(storage->tensor.detach());
    return;
  }
  const auto num_local = static_cast<int64_t>(region.local_ranks().size());
  const int64_t part = (storage->num_bytes + num_local - 1) / num_local;
  const int64_t begin = std::min(storage->num_bytes, part * region.local_index());
  const int64_t end = std::min(storage->num_bytes, begin + part);
  std::memcpy(region.writable() + storage->offset_bytes + begin,
              static_cast<const std::byte*>(storage->tensor.storage().data()) + begin,
              static_cast<size_t>(end - begin));
}

void return_home(const Departed& departed) {
  auto& [model, storage] = departed;
  if (storage->home.is_of(storage->tensor)) {
    storage->home.restore();
    return;
  }
  const auto memory = [&, storage = storage, model = model] {
    return model->region().read_only(storage->offset_bytes, storage->num_bytes);
  };
  // The tensor leaves the storage that it was given, which others may share.
  auto& impl = *storage->tensor.unsafeGetTensorImpl();
  impl.set_storage_keep_dtype(
      c10::Storage(c10::Storage::use_byte_size_t(), static_cast<size_t>(storage->num_bytes), memory()));
  impl.set_sizes_and_strides(storage->sizes, storage->strides, storage->first_element);
  storage->home = {};
  storage->home = offload::Home(storage->tensor, memory());
}

}  // namespace

void refuse_different_writes(const std::vector<std::string>& names, const std::vector<int64_t>& marks,
                             const comm::Group& group) {
  const comm::Purpose purpose("writes of the program");
  const auto all = group.all_gather(torch::tensor(marks, at::kLong));
  const Origin origin{"shard", group.rank(), group.world_size()};
  for (size_t i = 0; i < names.size(); ++i) {
    for (size_t rank = 1; rank < all.size(); ++rank) {
      const int64_t first = all[0].const_data_ptr<int64_t>()[i], other = all[rank].const_data_ptr<int64_t>()[i];
      if (first == other) continue;
      throw UsageError(origin, "'", names[i], "' was changed by the program between two steps, and rank ", rank,
                       other == 0   ? " did not change it"
                       : first == 0 ? " alone did"
                                    : " gave it other values",
                       " (compared with rank 0). Change parameters on every rank alike.");
    }
  }
}

bool take_in_program_writes(const std::vector<std::shared_ptr<RegionModel>>& models, const comm::Group& group,
                            bool flag) {
  std::vector<Departed> departed;
  uint64_t hash = 0;
  int64_t index = 0;
  for (const auto& model : models) {
    for (auto& storage : model->storages()) {
      ++index;
      if (!has_departed(storage)) continue;
      departed.push_back({model.get(), &storage});
      hash = (hash ^ checksum(storage)) * 31 + static_cast<uint64_t>(index);
    }
  }
  const at::Tensor mine =
      torch::tensor({static_cast<int64_t>(departed.size()), static_cast<int64_t>(hash), int64_t{flag}}, at::kLong);
  const at::Tensor all = at::empty({3 * group.world_size()}, at::kLong);
  const comm::Purpose purpose("writes of the program");
  group.all_gather_into_(all, mine);
  const int64_t* records = all.const_data_ptr<int64_t>();
  for (int rank = 0; rank < group.world_size(); ++rank) {
    if (records[3 * rank] != records[0] || records[3 * rank + 1] != records[1]) refuse(models, group);
    flag = flag || records[3 * rank + 2] != 0;
  }
  if (departed.empty()) return flag;
  for (const auto& one : departed) {
    const at::Tensor& now = one.storage->tensor;
    const auto item = static_cast<int64_t>(now.element_size());
    if (now.sizes() == at::IntArrayRef(one.storage->sizes) && now.is_cpu() && one.storage->num_bytes % item == 0 &&
        one.storage->dtype == now.scalar_type()) {
      continue;
    }
    throw UsageError(Origin{"shard", group.rank(), group.world_size()}, "'", one.storage->name, "' is ", now.toString(),
                     " of [", join(now.sizes(), ", "), "] now and was ", one.storage->dtype, " of [",
                     join(one.storage->sizes, ", "),
                     "] when it was prepared. Run the prepared model's forward after changing dtypes or sizes.");
  }
  for (const auto& one : departed) write_back(one);
  group.barrier();
  for (const auto& one : departed) return_home(one);
  return flag;
}

}  // namespace hasten::parallel::shard
