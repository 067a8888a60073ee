// See mapped_region.h.
#include "hasten/offload/units/mapped_region.h"

#include <ATen/ops/from_blob.h>
#include <fcntl.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <sys/vfs.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <cstring>

#include "hasten/core/error.h"

namespace hasten::offload {
namespace {

constexpr uint64_t kPieceBytes = 4 << 20;
constexpr uint64_t kLargestFolio = uint64_t{2} << 20;

uint64_t page_size() {
  return static_cast<uint64_t>(sysconf(_SC_PAGESIZE));
}

bool is_network(int file) {
  struct statfs info {};
  if (fstatfs(file, &info) != 0) return false;
  // nfs, smb2, cifs, lustre, fuse, 9p, ceph, gpfs: from linux/magic.h and their own sources.
  constexpr std::array<uint32_t, 8> kNetwork{0x6969,     0xFE534D42, 0xFF534D42, 0x0BD00BD0,
                                             0x65735546, 0x01021997, 0x00C36400, 0x47504653};
  return std::find(kNetwork.begin(), kNetwork.end(), static_cast<uint32_t>(info.f_type)) != kNetwork.end();
}

}  // namespace

std::shared_ptr<MappedRegion> MappedRegion::open(const std::string& path) {
  return std::shared_ptr<MappedRegion>(new MappedRegion(path));
}

MappedRegion::MappedRegion(const std::string& path) : path_(path) {
  file_ = ::open(path.c_str(), O_RDONLY | O_CLOEXEC);
  struct stat status {};
  if (file_ < 0 || fstat(file_, &status) != 0) {
    const std::string reason = std::strerror(errno);
    if (file_ >= 0) ::close(file_);
    throw DataError(Origin{"offload"}, path, "cannot open the weights in ", path, ": ", reason, ".");
  }
  size_ = static_cast<uint64_t>(status.st_size);
  device_ = status.st_dev;
  inode_ = status.st_ino;
  changed_s_ = status.st_mtim.tv_sec;
  changed_ns_ = status.st_mtim.tv_nsec;
  on_network_ = is_network(file_);
  if (size_ == 0) return;
  void* const data = mmap(nullptr, size_, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_NORESERVE, file_, 0);
  if (data == MAP_FAILED) {
    const std::string reason = std::strerror(errno);
    ::close(file_);
    throw DataError(Origin{"offload"}, path, "cannot map ", path, " (", size_, " bytes): ", reason, ".");
  }
  data_ = static_cast<char*>(data);
}

MappedRegion::~MappedRegion() {
  if (data_ != nullptr) munmap(data_, size_);
  ::close(file_);
}

at::Tensor MappedRegion::tensor(uint64_t offset, const std::vector<int64_t>& sizes, const std::vector<int64_t>& strides,
                                at::ScalarType type) {
  const uint64_t item = c10::elementSize(type);
  uint64_t last = 0, count = 1;
  for (size_t d = 0; d < sizes.size(); ++d) {
    count *= static_cast<uint64_t>(sizes[d]);
    if (sizes[d] > 0) last += static_cast<uint64_t>((sizes[d] - 1) * strides[d]);
  }
  const uint64_t end = count == 0 ? offset : offset + (last + 1) * item;
  if (end > size_) {
    throw DataError(Origin{"offload"}, path_, path_, " has ", size_, " bytes, but a tensor in it ends at ", end,
                    ". The file is truncated; copy it again.");
  }
  if (offset % item != 0)
    throw UsageError(Origin{"offload"}, "offset ", offset, " of ", path_, " is no multiple of ", item, ".");
  if (count == 0) return at::empty(sizes, at::TensorOptions(type));
  auto self = shared_from_this();
  return at::from_blob(
      data_ + offset, sizes, strides, [self](void*) {}, at::TensorOptions(type));
}

void MappedRegion::require_unchanged() const {
  struct stat status {};
  const bool same = fstat(file_, &status) == 0 && static_cast<uint64_t>(status.st_size) == size_ &&
                    status.st_dev == device_ && status.st_ino == inode_ && status.st_mtim.tv_sec == changed_s_ &&
                    status.st_mtim.tv_nsec == changed_ns_;
  if (same) return;
  throw DataError(Origin{"offload"}, path_, path_, " was written to while the model used it (", size_,
                  " bytes before, ", status.st_size,
                  " now). Load the model again; replace weight files by renaming a new one over them.");
}

void MappedRegion::read_into_cache(uint64_t offset, uint64_t bytes) const {
  thread_local std::vector<char> scratch(kPieceBytes);
  const uint64_t end = std::min(offset + bytes, size_);
  // The kernel would read on past the end, by as much as a unit where a disk's read_ahead_kb is large.
  posix_fadvise(file_, 0, 0, POSIX_FADV_RANDOM);
  posix_fadvise(file_, static_cast<off_t>(offset), static_cast<off_t>(end - offset), POSIX_FADV_WILLNEED);
  while (offset < end) {
    const ssize_t got = pread(file_, scratch.data(), std::min(kPieceBytes, end - offset), static_cast<off_t>(offset));
    if (got < 0 && errno == EINTR) continue;
    if (got <= 0) {
      throw DataError(Origin{"offload"}, path_, "cannot read ", path_, " at ", offset, ": ",
                      got == 0 ? "the file ends there" : std::strerror(errno), ".");
    }
    offset += static_cast<uint64_t>(got);
  }
}

MappedRegion::Range MappedRegion::whole_pages(uint64_t offset, uint64_t bytes) const noexcept {
  const uint64_t page = page_size();
  const uint64_t begin = (offset + page - 1) / page * page;
  const uint64_t end = std::min(offset + bytes, size_) / page * page;
  if (end <= begin || data_ == nullptr) return {nullptr, 0, 0};
  return {data_ + begin, end - begin, begin};
}

bool MappedRegion::map_if_cached(uint64_t offset, uint64_t bytes) const noexcept {
  const Range range = whole_pages(offset, bytes);
  if (range.bytes == 0) return false;
  std::vector<unsigned char> pages(range.bytes / page_size());
  if (mincore(range.begin, range.bytes, pages.data()) != 0) return false;
  if (!std::all_of(pages.begin(), pages.end(), [](unsigned char page) { return (page & 1) != 0; })) return false;
#ifdef MADV_POPULATE_READ
  return madvise(range.begin, range.bytes, MADV_POPULATE_READ) == 0;
#else
  return true;
#endif
}

void MappedRegion::drop(uint64_t offset, uint64_t bytes, bool keep_cached) noexcept {
  const Range range = whole_pages(offset, bytes);
  if (range.bytes == 0) return;
  madvise(range.begin, range.bytes, MADV_DONTNEED);
  if (keep_cached) return;
  // The kernel keeps a large folio that reaches past the range. The one at the front, which the drop of the range
  // before has left, goes with this one: pages that are mapped stay.
  const uint64_t front = range.offset / kLargestFolio * kLargestFolio;
  posix_fadvise(file_, static_cast<off_t>(front), static_cast<off_t>(range.offset - front + range.bytes),
                POSIX_FADV_DONTNEED);
}

void MappedRegion::set_writable(uint64_t offset, uint64_t bytes, bool writable) noexcept {
  const Range range = whole_pages(offset, bytes);
  if (range.bytes != 0) mprotect(range.begin, range.bytes, writable ? PROT_READ | PROT_WRITE : PROT_READ);
}

}  // namespace hasten::offload
