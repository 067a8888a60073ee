// See snapshot.h.
#include "checkpoint/save/snapshot.h"

#include <ATen/Functions.h>
#include <ATen/Parallel.h>
#include <ATen/ops/from_blob.h>
#include <torch/nn/module.h>

#include <algorithm>
#include <cstring>
#include <set>
#include <unordered_map>

#include "hasten/comm/nested/objects.h"
#include "hasten/core/error.h"
#include "hasten/core/hash.h"
#include "hasten/files/base/box.h"
#include "hasten/parallel/ddp/distributed_models.h"
#include "hasten/parallel/layout/placement.h"
#include "hasten/parallel/parameters/checksum.h"

namespace hasten::checkpoint {
namespace {

constexpr size_t kParallelBytes = size_t{1} << 20;

void copy_bytes(char* to, const char* from, size_t bytes) {
  if (bytes < kParallelBytes) {
    std::memcpy(to, from, bytes);
    return;
  }
  at::parallel_for(0, static_cast<int64_t>(bytes), kParallelBytes, [&](int64_t begin, int64_t end) {
    std::memcpy(to + begin, from + begin, static_cast<size_t>(end - begin));
  });
}

void copy_tensor(char* to, const at::Tensor& tensor) {
  if (tensor.device().is_cpu() && tensor.is_contiguous() && !tensor.is_conj() && !tensor.is_neg()) {
    copy_bytes(to, static_cast<const char*>(tensor.const_data_ptr()), tensor.nbytes());
    return;
  }
  at::from_blob(to, tensor.sizes(), tensor.options().device(at::kCPU).requires_grad(false)).copy_(tensor.detach());
}

// The device whose tensors are copied in a stream of their own. None if all lie on the CPU.
std::optional<c10::Device> device_of(const std::vector<at::Tensor>& tensors) {
  for (const auto& tensor : tensors) {
    if (DeviceCopy::serves(tensor.device())) return tensor.device();
  }
  return std::nullopt;
}

// Hashes of this rank's copies of what every rank has.
std::vector<std::string> replica_hashes(const Checkpoints::Impl& own, const Capture& capture,
                                        const std::unordered_map<std::string, size_t>& where) {
  const auto& joint = *own.joint;
  std::vector<std::string> hashes(joint.size());
  std::vector<at::Tensor> of_device;
  std::vector<size_t> places;
  for (size_t i = 0; i < joint.size(); ++i) {
    if (joint[i].rank != kEveryRank && !own.has_copies[i]) continue;
    const auto found = where.find(joint[i].info.name + files::describe(joint[i].box));
    if (found == where.end()) continue;
    const at::Tensor tensor = capture.data[found->second].detach().resolve_conj().resolve_neg();
    if (tensor.is_cpu()) {
      const at::Tensor plain = tensor.contiguous();
      hashes[i] = core::xxh3_128(plain.const_data_ptr(), plain.nbytes()).hex();
    } else {
      of_device.push_back(at::isComplexType(tensor.scalar_type()) ? at::view_as_real(tensor) : tensor);
      places.push_back(i);
    }
  }
  const at::Tensor sums = parallel::checksums(of_device);
  for (size_t i = 0; i < places.size(); ++i) {
    hashes[places[i]] = text("sum ", sums.const_data_ptr<int64_t>()[i]);
  }
  // All parts of a cut parameter count together, so that copies of the model are compared.
  for (size_t i = 0; i < joint.size(); ++i) {
    const auto cut = capture.cut.find(joint[i].info.name);
    if (cut == capture.cut.end()) continue;
    const auto parts = comm::gather_object(parallel::placed_by(cut->second)->group(), hashes[i]);
    hashes[i] = core::xxh3_128(hasten::join(parts)).hex();
  }
  return hashes;
}

// Copies of device tensors: running statistics first, which the next forward writes to. Any other write is watched for,
// or where libtorch does not report it, waits.
void copy_from_device(Checkpoints::Impl& own, c10::Device device, std::vector<std::pair<char*, at::Tensor>> copies) {
  std::set<const c10::StorageImpl*> buffers;
  for (const auto* module : own.run.models->modules()) {
    for (const auto& buffer : module->buffers()) {
      if (buffer.has_storage()) buffers.insert(buffer.storage().unsafeGetStorageImpl());
    }
  }
  const auto others = std::stable_partition(copies.begin(), copies.end(), [&](const auto& item) {
    return item.second.has_storage() && buffers.contains(item.second.storage().unsafeGetStorageImpl());
  });
  const auto copy = own.device_copy = std::make_shared<DeviceCopy>(device);
  for (auto item = copies.begin(); item != others; ++item) copy->add(item->first, item->second);
  if (others != copies.begin()) copy->hold_first();
  for (auto item = others; item != copies.end(); ++item) copy->add(item->first, item->second);
  copy->close();
  if (!compat::listeners_run_before_writes()) return copy->hold();
  const auto hold = std::make_shared<WriteHold>(copy);
  for (auto item = others; item != copies.end(); ++item) {
    if (item->second.has_storage()) own.device_watches.emplace_back(item->second, hold);
  }
}

// Cut parameters: the ranks that hold the parts gather each, in the order of the plan, and its writer keeps it. Without
// buffers this rank only takes part. Collective: yes.
void gather_cut(const Checkpoints::Impl& own, const Capture& capture, const SaveJob& job,
                const std::unordered_map<std::string, size_t>& where) {
  if (capture.cut.empty()) return;
  size_t file_here = 0;
  for (const auto& file : own.plan.files) {
    char* buffer = nullptr;
    if (file.writer == job.rank && !job.buffers.empty()) buffer = job.buffers[file_here++];
    for (const auto& [piece, position] : file.pieces) {
      const auto& info = (*own.joint)[piece];
      const auto cut = capture.cut.find(info.info.name);
      if (cut == capture.cut.end()) continue;
      const at::Tensor& part = capture.data[where.at(info.info.name + files::describe(info.box))];
      const at::Tensor whole = parallel::gather_as(cut->second, part);
      if (buffer != nullptr) copy_tensor(buffer + position, whole);
    }
  }
}

}  // namespace

void take_snapshot(Checkpoints::Impl& own, const Capture& capture, SaveJob& job, bool check_replicas) {
  const at::NoGradGuard no_grad;
  std::unordered_map<std::string, size_t> where;
  for (size_t i = 0; i < capture.infos.size(); ++i) {
    where.emplace(capture.infos[i].info.name + files::describe(capture.infos[i].box), i);
  }
  if (check_replicas && job.world_size > 1) job.replicas = replica_hashes(own, capture, where);
  std::vector<size_t> sizes;
  for (const auto& file : own.plan.files) {
    if (file.writer != job.rank) continue;
    job.files.push_back(file);
    sizes.push_back(file.bytes);
  }
  const auto device = device_of(capture.data);
  try {
    job.buffers = own.memory->buffers(sizes, device.has_value());
  } catch (const std::bad_alloc&) {
    gather_cut(own, capture, job, where);
    throw;
  }
  gather_cut(own, capture, job, where);
  job.memory = own.memory;
  job.pieces = own.joint;
  std::vector<std::pair<char*, at::Tensor>> from_device;
  for (size_t i = 0; i < job.files.size(); ++i) {
    const auto& file = job.files[i];
    std::memcpy(job.buffers[i], file.head.data(), file.head.size());
    for (const auto& [piece, position] : file.pieces) {
      const auto& info = (*own.joint)[piece];
      if (capture.cut.contains(info.info.name)) continue;
      const auto found = where.find(info.info.name + files::describe(info.box));
      if (found == where.end())
        throw InternalError(own.origin(), "the plan holds '", info.info.name, "', which this rank lacks");
      const at::Tensor& tensor = capture.data[found->second];
      if (device && tensor.device() == *device) {
        from_device.emplace_back(job.buffers[i] + position, tensor);
      } else {
        copy_tensor(job.buffers[i] + position, tensor);
      }
    }
  }
  own.device_watches.clear();
  if (!device) return;
  copy_from_device(own, *device, std::move(from_device));
  job.device_copy = own.device_copy;
}

}  // namespace hasten::checkpoint
