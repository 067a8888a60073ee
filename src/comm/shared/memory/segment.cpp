// See segment.h.
#include "comm/shared/memory/segment.h"

#include <fcntl.h>
#include <sys/mman.h>
#include <sys/random.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <bit>
#include <cerrno>
#include <limits>
#include <mutex>
#include <new>
#include <system_error>

#include "hasten/core/error.h"

namespace hasten::comm::shared {
namespace {

constexpr size_t kChunkBytes = size_t{1} << 20;
// The rings of one rank together, and one of them.
constexpr size_t kRingsBytes = size_t{2} << 20;
constexpr size_t kLeastRingBytes = size_t{64} << 10, kMostRingBytes = size_t{512} << 10;

size_t round_up(size_t value, size_t to) {
  return (value + to - 1) / to * to;
}

[[noreturn]] void fail(const char* what) {
  throw std::system_error(errno, std::generic_category(), what);
}

std::byte* map(int descriptor, size_t bytes) {
  void* base = mmap(nullptr, bytes, PROT_READ | PROT_WRITE, MAP_SHARED, descriptor, 0);
  if (base == MAP_FAILED) fail("the shared memory could not be mapped (mmap)");
  return static_cast<std::byte*>(base);
}

// A number that distinguishes this process from every other with the same segment: from strangers by chance, from its
// forks by its id.
uint64_t this_process() {
  static const uint32_t kNumber = [] {
    uint32_t number = 0;
    if (getrandom(&number, sizeof(number), 0) != sizeof(number)) fail("getrandom");
    return number;
  }();
  return uint64_t{kNumber} << 32 | static_cast<uint32_t>(getpid());
}

// The segments of this process.
struct Known {
  std::mutex mutex;
  std::vector<std::weak_ptr<Segment>> segments;
};

Known& known() {
  static Known all;
  return all;
}

bool is_file_of(int descriptor, const struct stat& other) {
  struct stat status {};
  return fstat(descriptor, &status) == 0 && status.st_dev == other.st_dev && status.st_ino == other.st_ino;
}

struct flock byte_of(int rank, short type) {
  struct flock lock {};
  lock.l_type = type;
  lock.l_whence = SEEK_SET;
  lock.l_start = rank;
  lock.l_len = 1;
  return lock;
}

}  // namespace

Layout Layout::of(int world_size, size_t bytes_per_rank) {
  const auto world = static_cast<size_t>(world_size);
  Layout layout;
  layout.world_size = world_size;
  layout.chunk_bytes = kChunkBytes;
  layout.ring_bytes = std::clamp(std::bit_floor(kRingsBytes / world), kLeastRingBytes, kMostRingBytes);
  const size_t rings = world * (sizeof(Ring) + layout.ring_bytes);
  const size_t least = 2 * layout.chunk_bytes + rings;
  if (bytes_per_rank < least) {
    throw UsageError(Origin{"comm"}, "shared memory of ", bytes_per_rank, " bytes a rank (shared_bytes, HASTEN_SHM_MB)",
                     " is too little for a group of ", world_size, ": at least ", least, " bytes are needed (",
                     (least >> 20) + 1, " MB).");
  }
  if (bytes_per_rank > std::numeric_limits<off_t>::max() / (2 * world)) {
    throw UsageError(Origin{"comm"}, "shared memory of ", bytes_per_rank,
                     " bytes a rank (shared_bytes, HASTEN_SHM_MB) is more than any machine has.");
  }
  layout.heap_bytes = (bytes_per_rank - least) / kPage * kPage;
  layout.areas_begin = kPage + round_up(world * sizeof(RankBlock), kPage);
  layout.rings_begin = layout.areas_begin + world * 2 * layout.chunk_bytes;
  layout.heaps_begin = layout.rings_begin + round_up(world * rings, kPage);
  layout.total_bytes = layout.heaps_begin + world * layout.heap_bytes;
  return layout;
}

std::shared_ptr<Segment> Segment::create(const Layout& layout) {
  // Beyond the limit ftruncate would end the process by SIGXFSZ.
  rlimit file_size{};
  if (getrlimit(RLIMIT_FSIZE, &file_size) == 0 && layout.total_bytes > file_size.rlim_cur) {
    errno = EFBIG;
    fail("files may not have the size of the shared memory (ulimit -f)");
  }
  const int descriptor = memfd_create("hasten", MFD_CLOEXEC);
  if (descriptor < 0) fail("no shared memory could be made (memfd_create)");
  if (ftruncate(descriptor, static_cast<off_t>(layout.total_bytes)) != 0) {
    const int error = errno;
    close(descriptor);
    errno = error;
    fail("the shared memory could not be given its size (ftruncate)");
  }
  auto segment = attach(layout, descriptor);
  // Rings begin as the zeros that fresh memory is. Writing to each would touch a page for every pair.
  for (int rank = 0; rank < layout.world_size; ++rank) new (&segment->block(rank)) RankBlock();
  return segment;
}

std::shared_ptr<Segment> Segment::attach(const Layout& layout, int descriptor) {
  struct stat status {};
  const bool is_open = fstat(descriptor, &status) == 0;
  if (!is_open || status.st_size != static_cast<off_t>(layout.total_bytes)) {
    close(descriptor);
    throw std::runtime_error(text("the shared memory has ", status.st_size, " bytes, ", layout.total_bytes,
                                  " were expected: give every rank the same shared_bytes"));
  }
  const std::lock_guard lock(known().mutex);
  std::erase_if(known().segments, [](const auto& segment) { return segment.expired(); });
  for (const auto& entry : known().segments) {
    const auto segment = entry.lock();
    if (!segment || !is_file_of(segment->descriptor(), status)) continue;
    segment->others_.push_back(descriptor);
    return segment;
  }
  try {
    auto segment = std::shared_ptr<Segment>(new Segment(layout, descriptor, map(descriptor, layout.total_bytes)));
    known().segments.push_back(segment);
    return segment;
  } catch (...) {
    close(descriptor);
    throw;
  }
}

Segment::~Segment() {
  munmap(base_, layout_.total_bytes);
  close(descriptor_);
  for (const int descriptor : others_) close(descriptor);
}

void Segment::take_place(int rank) const {
  auto lock = byte_of(rank, F_WRLCK);
  if (fcntl(descriptor(), F_SETLK, &lock) != 0) fail("the rank's place in shared memory could not be locked");
  block(rank).process.store(this_process());
  block(rank).presence.store(Presence::kHere);
}

void Segment::leave(int rank) const noexcept {
  if (getpid() != owner_) return;
  block(rank).presence.store(Presence::kLeft);
  block(rank).posted.wake();
  for (int peer = 0; peer < layout_.world_size; ++peer) block(peer).doorbell.raise_by_one();
}

bool Segment::lives(int rank) const noexcept {
  if (block(rank).process.load() == this_process()) return true;
  auto lock = byte_of(rank, F_WRLCK);
  return fcntl(descriptor(), F_GETLK, &lock) != 0 || lock.l_type != F_UNLCK;
}

}  // namespace hasten::comm::shared
