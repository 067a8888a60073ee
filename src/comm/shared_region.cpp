// See shared_region.h.
#include "hasten/comm/shared_region.h"

#include <torch/types.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <optional>
#include <stdexcept>

#include "comm/backend/reduction.h"
#include "comm/group/origin.h"
#include "comm/hierarchical/hierarchical.h"
#include "comm/shared/memory/segment_setup.h"
#include "hasten/core/descriptor_passing.h"
#include "hasten/core/error.h"
#include "hasten/core/memory_file.h"

namespace hasten::comm {
namespace {

at::Tensor as_bytes(const std::string& words) {
  const auto bytes = torch::empty({static_cast<int64_t>(words.size())}, at::kByte);
  if (!words.empty()) std::memcpy(bytes.mutable_data_ptr(), words.data(), words.size());
  return bytes;
}

std::vector<std::string> all_words(const Group& group, const std::string& words) {
  if (group.world_size() == 1) return {words};
  std::vector<std::string> all;
  for (const auto& bytes : group.all_gather(as_bytes(words))) {
    all.emplace_back(static_cast<const char*>(bytes.const_data_ptr()), static_cast<size_t>(bytes.numel()));
  }
  return all;
}

// All ranks throw if one has a reason to; the first one's is shown.
void throw_together(const Group& group, const std::string& reason, int64_t num_bytes) {
  const auto reasons = all_words(group, reason);
  const auto first = std::find_if(reasons.begin(), reasons.end(), [](const auto& r) { return !r.empty(); });
  if (first == reasons.end()) return;
  throw UsageError(detail::origin_of(group), "shared memory of ", num_bytes, " bytes could not be mapped on rank ",
                   first - reasons.begin(), ": ", *first,
                   ". Raise the limit (ulimit -v, the container's memory), choose a strategy that takes less "
                   "(hasten plan --memory), or train without sharding.");
}

}  // namespace

struct SharedRegion::Impl {
  explicit Impl(MemoryFile made) : file(std::move(made)) {}
  Impl(const Impl&) = delete;
  Impl& operator=(const Impl&) = delete;

  MemoryFile file;
  Mapping readable, writable;
  std::vector<std::vector<int>> hosts;
  int host = 0, local = 0;
  int64_t size = 0;
};

std::vector<std::vector<int>> ranks_by_host(const Group& group) {
  if (group.world_size() == 1) return {{0}};
  const std::string& named = group.options().host;
  return group_by_host(all_words(group, named.empty() ? shared::this_host() : named));
}

SharedRegion::SharedRegion() = default;

namespace {

struct HostPlace {
  std::vector<std::vector<int>> hosts;
  int host = 0, local = 0;
};

HostPlace find_place(const Group& group) {
  HostPlace place{ranks_by_host(group)};
  for (size_t host = 0; host < place.hosts.size(); ++host) {
    const auto& ranks = place.hosts[host];
    const auto found = std::find(ranks.begin(), ranks.end(), group.rank());
    if (found == ranks.end()) continue;
    place.host = static_cast<int>(host);
    place.local = static_cast<int>(found - ranks.begin());
  }
  return place;
}

MemoryFile make_file(const SharedRegionOptions& options, int64_t num_bytes) {
  if (options.file.empty()) return MemoryFile::create(options.label, num_bytes);
  return MemoryFile::create_at(options.file, num_bytes);
}

}  // namespace

SharedRegion SharedRegion::create(const Group& group, int64_t num_bytes, const SharedRegionOptions& options) {
  const HostPlace place = find_place(group);
  const auto& mates = place.hosts[place.host];
  const bool leads = place.local == 0;
  std::string reason, ticket;
  std::optional<MemoryFile> file;
  std::optional<DescriptorOffer> offer;
  const auto attempt = [&](const auto& action) {
    try {
      action();
    } catch (const std::exception& error) {
      reason = error.what();
    }
  };
  if (leads) {
    attempt([&] {
      file = make_file(options, num_bytes);
      if (mates.size() > 1) ticket = offer.emplace().ticket();
    });
  }
  const auto tickets = all_words(group, ticket);
  throw_together(group, reason, num_bytes);
  Mapping readable, writable;
  attempt([&] {
    if (!leads) file = MemoryFile::adopt(fetch_descriptor(tickets[mates.front()]), num_bytes);
    if (offer) offer->serve(file->descriptor(), static_cast<int>(mates.size()) - 1, std::chrono::seconds(20));
    readable = file->map(Mapping::Access::kRead);
    writable = file->map(Mapping::Access::kReadWrite);
  });
  throw_together(group, reason, num_bytes);
  // Nothing is left behind, however the processes end.
  if (leads && !options.file.empty()) unlink(options.file.c_str());
  SharedRegion region;
  region.impl_ = std::make_shared<Impl>(std::move(*file));
  region.impl_->readable = std::move(readable);
  region.impl_->writable = std::move(writable);
  region.impl_->hosts = place.hosts;
  region.impl_->host = place.host;
  region.impl_->local = place.local;
  region.impl_->size = num_bytes;
  return region;
}

int64_t SharedRegion::size() const noexcept {
  return impl_ ? impl_->size : 0;
}

const std::byte* SharedRegion::data() const noexcept {
  return impl_ ? impl_->readable.data() : nullptr;
}

std::byte* SharedRegion::writable() const noexcept {
  return impl_ ? impl_->writable.data() : nullptr;
}

const std::vector<int>& SharedRegion::local_ranks() const noexcept {
  return impl_->hosts[impl_->host];
}

int SharedRegion::local_index() const noexcept {
  return impl_->local;
}

const std::vector<std::vector<int>>& SharedRegion::hosts() const noexcept {
  return impl_->hosts;
}

int SharedRegion::host_index() const noexcept {
  return impl_->host;
}

namespace {

void require_inside(int64_t offset_bytes, int64_t num_bytes, int64_t size) {
  if (offset_bytes >= 0 && num_bytes >= 0 && offset_bytes + num_bytes <= size) return;
  throw InternalError(Origin{"comm"}, "bytes ", offset_bytes, " to ", offset_bytes + num_bytes, " of a region of ",
                      size);
}

}  // namespace

at::Tensor SharedRegion::tensor(int64_t offset_bytes, int64_t numel, c10::ScalarType dtype) const {
  require_inside(offset_bytes, numel * static_cast<int64_t>(c10::elementSize(dtype)), size());
  return torch::from_blob(
      writable() + offset_bytes, {numel}, [keep = impl_](void*) {}, dtype);
}

void SharedRegion::write(int64_t offset_bytes, const void* from, int64_t num_bytes) const {
  require_inside(offset_bytes, num_bytes, size());
  const auto* next = static_cast<const std::byte*>(from);
  while (num_bytes > 0) {
    const ssize_t done = pwrite(impl_->file.descriptor(), next, static_cast<size_t>(num_bytes), offset_bytes);
    if (done < 0 && errno == EINTR) continue;
    if (done <= 0) {
      throw UsageError(
          Origin{"comm"}, num_bytes, " bytes of ", size(),
          " of shared memory could not be written: ", std::strerror(done == 0 ? ENOSPC : errno),
          ". Give the container more memory, or choose a strategy that takes less (hasten plan --memory).");
    }
    next += done;
    offset_bytes += done;
    num_bytes -= done;
  }
}

at::DataPtr SharedRegion::read_only(int64_t offset_bytes, int64_t num_bytes) const {
  require_inside(offset_bytes, num_bytes, size());
  using Keep = std::shared_ptr<Impl>;
  // A storage's pointer has no const; the pages have.
  return {const_cast<std::byte*>(data()) + offset_bytes, new Keep(impl_),
          [](void* keep) { delete static_cast<Keep*>(keep); }, c10::Device(c10::kCPU)};
}

void reduce_local(const at::Tensor& output, const std::vector<at::Tensor>& inputs, ReduceOp op) {
  if (inputs.size() == 1 && (op == ReduceOp::kSum || op == ReduceOp::kMean)) {
    if (!output.is_same(inputs[0])) output.copy_(inputs[0]);
    return;
  }
  const auto reduce = shared::routines(output.scalar_type(), op).reduce;
  if (reduce == nullptr) {
    throw UsageError(Origin{"comm"}, "tensors of ", output.scalar_type(),
                     " cannot be reduced this way. Use a floating dtype.");
  }
  std::vector<const void*> sources;
  for (const auto& input : inputs) sources.push_back(input.const_data_ptr());
  reduce(output.mutable_data_ptr(), sources.data(), static_cast<int>(sources.size()), output.numel());
}

}  // namespace hasten::comm
