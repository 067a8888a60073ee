// Segment: the memory that the ranks of one group on one host share.
//
// For each rank it holds counters, the headers of its operations, and two halves of an area for its data
// (phase_protocol.h). It also holds a ring to every peer for messages (mailbox.h), and a heap for tensors that others
// may read in place. It is an anonymous file (memfd). The file has no name, does not count against the size of /dev/shm
// and is gone with its last user, whatever the end. Each process holds a lock on its ranks' bytes of the file. The
// kernel releases it when the process ends, so any rank can check whether another is alive.
#pragma once

#include <unistd.h>

#include <cstddef>
#include <cstdint>
#include <memory>
#include <vector>

#include "comm/connecting/counter.h"
#include "comm/types/header.h"

namespace hasten::comm::shared {

constexpr int kMaxRanks = 256;

enum class Presence : uint32_t { kAbsent, kHere, kLeft };

/// The parts of an operation's work that are taken, one after the other, by the ranks as they come.
class Claims {
 public:
  /// The number of the next part of the operation whose first step was `step`, from 0. Each is given once. Operations
  /// follow each other: once a later one was requested, no rank requests this one.
  int64_t next(uint32_t step) {
    uint64_t last = last_.load(std::memory_order_relaxed);
    uint64_t mine = 0;
    do {
      const bool is_first = last >> 32 != step;
      mine = is_first ? uint64_t{step} << 32 : last + 1;
    } while (!last_.compare_exchange_weak(last, mine, std::memory_order_relaxed));
    return static_cast<int64_t>(mine & 0xffffffff);
  }

 private:
  /// The step in the upper half, the part in the lower.
  std::atomic<uint64_t> last_{0};
};

/// Data of one rank that all read.
struct RankBlock {
  /// The number of the last step to which the rank has contributed.
  Counter posted;
  /// Raised by peers that have put something into a ring of the rank's, or taken something out of one.
  Counter doorbell;
  alignas(64) std::atomic<Presence> presence{Presence::kAbsent};
  /// Ranks of one process have the same; never 0.
  std::atomic<uint64_t> process{0};
  alignas(64) Header headers[2];
  /// Claims on the rank's share in a sum that is added up in place.
  alignas(64) Claims claims;
};

/// A direction between two ranks: a ring of bytes, written by one and read by the other.
struct Ring {
  alignas(64) std::atomic<uint64_t> written{0};
  alignas(64) std::atomic<uint64_t> read{0};
};

/// Where everything lies; the same on all ranks for the same arguments.
struct Layout {
  int world_size = 0;
  size_t chunk_bytes = 0;  ///< data of one step of one rank: half of its area
  size_t ring_bytes = 0;   ///< data of one ring, a power of two
  size_t heap_bytes = 0;   ///< for tensors, of each rank
  size_t areas_begin = 0, rings_begin = 0, heaps_begin = 0, total_bytes = 0;

  static constexpr size_t kLine = 64;
  static constexpr size_t kPage = 4096;

  /// Throws: UsageError where `bytes_per_rank` does not hold what is needed, naming the least.
  static Layout of(int world_size, size_t bytes_per_rank);
};

class Segment {
 public:
  /// Returns a new, empty segment. Throws: std::system_error.
  static std::shared_ptr<Segment> create(const Layout& layout);
  /// Maps the segment behind a descriptor, which this takes over. It is the same for all ranks of a process, since its
  /// locks go with the first descriptor that it closes. Throws: std::system_error, std::runtime_error if its size is
  /// not the layout's.
  static std::shared_ptr<Segment> attach(const Layout& layout, int descriptor);
  ~Segment();
  Segment(const Segment&) = delete;
  Segment& operator=(const Segment&) = delete;

  const Layout& layout() const noexcept { return layout_; }
  int descriptor() const noexcept { return descriptor_; }

  RankBlock& block(int rank) const { return reinterpret_cast<RankBlock*>(base_ + Layout::kPage)[rank]; }
  std::byte* area(int rank, uint32_t half) const {
    return base_ + layout_.areas_begin + (2 * static_cast<size_t>(rank) + half) * layout_.chunk_bytes;
  }
  Ring& ring(int from, int to) const { return *reinterpret_cast<Ring*>(ring_begin(from, to)); }
  std::byte* ring_data(int from, int to) const { return ring_begin(from, to) + sizeof(Ring); }
  std::byte* heap(int rank) const {
    return base_ + layout_.heaps_begin + static_cast<size_t>(rank) * layout_.heap_bytes;
  }

  /// Takes the rank's place: its byte is locked and it counts as present.
  void take_place(int rank) const;
  void leave(int rank) const noexcept;
  /// Returns true if the process that took the rank's place is still alive.
  bool lives(int rank) const noexcept;

 private:
  Segment(const Layout& layout, int descriptor, std::byte* base)
      : layout_(layout), descriptor_(descriptor), base_(base) {}
  std::byte* ring_begin(int from, int to) const {
    return base_ + layout_.rings_begin +
           (static_cast<size_t>(from) * layout_.world_size + to) * (sizeof(Ring) + layout_.ring_bytes);
  }

  Layout layout_;
  const int descriptor_;
  /// Further ones of the same file, of other ranks of this process: closing any gives all locks back.
  std::vector<int> others_;
  std::byte* base_;
  /// A forked child has the mapping, but not the rank.
  const int owner_ = getpid();
};

}  // namespace hasten::comm::shared
