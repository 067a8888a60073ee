// Parts, the threads that read them ahead, the copying and the hashes; see bulk_read.h.
#include "hasten/files/folders/bulk_read.h"

#include <fcntl.h>
#include <sys/uio.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <cerrno>
#include <condition_variable>
#include <cstdlib>
#include <cstring>
#include <exception>
#include <filesystem>
#include <memory>
#include <mutex>
#include <thread>
#include <unordered_map>

#include "files/base/origin.h"
#include "files/base/source_file.h"
#include "files/base/posix_file.h"

namespace hasten::files {
namespace {

constexpr uint64_t kPart = uint64_t{8} << 20;
constexpr uint64_t kBlock = 4096;  // O_DIRECT's alignment of offsets, sizes and memory

uint64_t floor_block(uint64_t at) {
  return at / kBlock * kBlock;
}
uint64_t ceil_block(uint64_t at) {
  return (at + kBlock - 1) / kBlock * kBlock;
}

/// Cuts a box to boxes that are contiguous in it, one after the other, whose rows take at most kPart bytes of the
/// tensor.
void cut_box(const std::vector<int64_t>& shape, const Box& box, uint64_t item, std::vector<Box>& parts) {
  std::vector<uint64_t> row(shape.size() + 1, item);  // bytes of the dimensions from d on
  for (size_t d = shape.size(); d-- > 0;) row[d] = row[d + 1] * static_cast<uint64_t>(std::max<int64_t>(shape[d], 1));
  size_t axis = 0;
  while (axis < shape.size() && row[axis + 1] > kPart) ++axis;
  if (axis >= shape.size() || row[0] <= kPart) {
    parts.push_back(box);
    return;
  }
  const auto step = static_cast<int64_t>(std::max<uint64_t>(1, kPart / row[axis + 1]));
  std::vector<int64_t> index(axis, 0);
  for (;;) {
    Box part = box;
    for (size_t d = 0; d < axis; ++d) part.offset[d] += index[d], part.size[d] = 1;
    for (int64_t at = 0; at < box.size[axis]; at += step) {
      part.offset[axis] = box.offset[axis] + at;
      part.size[axis] = std::min(step, box.size[axis] - at);
      parts.push_back(part);
    }
    size_t d = axis;
    while (d > 0 && ++index[d - 1] == box.size[d - 1]) index[--d] = 0;
    if (d == 0) return;
  }
}

/// A file read past the page cache where its pages are not there.
class ColdFile {
 public:
  ColdFile(const std::string& path, uint64_t bytes) : file_(SourceFile::open(path)), bytes_(bytes) {
    if (file_->size() != bytes)
      fail_data(path, "it has ", file_->size(), " bytes, expected ", bytes, ". Get the file again.");
    try {
      direct_ = SourceFile::open(path, O_DIRECT);
    } catch (const DataError&) {
      // The file system has no direct reads.
    }
  }

  /// Reads [begin, end) to `to + begin % kBlock`; `to` is aligned and has room for the blocks around. Returns true if
  /// the bytes came past the page cache.
  bool read(uint64_t begin, uint64_t end, char* to) const {
    const uint64_t first = floor_block(begin), last = std::min(ceil_block(end), bytes_);
    const auto file = file_->opened();
    uint64_t done = cached(*file, first, last, to);
    if (first + done >= end) return false;
    done = floor_block(done);
    if (direct_ != nullptr && read_direct(*direct_->opened(), first + done, end, to + done)) return true;
    file->read_at(first + done, to + done, last - first - done);
    return false;
  }

 private:
  // Bytes from `first` on that the page cache had.
  static uint64_t cached(const PosixFile& file, uint64_t first, uint64_t last, char* to) {
    uint64_t done = 0;
    while (first + done < last) {
      const iovec part{to + done, last - first - done};
      const ssize_t got = ::preadv2(file.descriptor(), &part, 1, static_cast<off_t>(first + done), RWF_NOWAIT);
      if (got <= 0) break;
      done += static_cast<uint64_t>(got);
    }
    return done;
  }
  // False where the file system refuses direct reads, or the file ends.
  static bool read_direct(const PosixFile& file, uint64_t at, uint64_t end, char* to) {
    while (at < end) {
      const ssize_t got = ::pread(file.descriptor(), to, ceil_block(end) - at, static_cast<off_t>(at));
      if (got < 0 && errno == EINTR) continue;
      if (got <= 0) return false;
      at += static_cast<uint64_t>(got);
      to += got;
      if (at < end && at % kBlock != 0) return false;
    }
    return true;
  }

  std::shared_ptr<const SourceFile> file_, direct_;
  uint64_t bytes_;
};

struct Round {
  size_t first = 0, count = 0;  ///< of LoadPlan::reads
  size_t part_bytes = 0;
};

/// Reads in rounds of `share.count` parts; the size of each is known to all ranks.
std::vector<Round> rounds_of(const LoadPlan& plan, size_t share) {
  std::vector<Round> rounds;
  for (size_t i = 0; i < plan.reads.size(); i += share) {
    Round round{i, std::min(share, plan.reads.size() - i), 0};
    for (size_t k = i; k < i + round.count; ++k) {
      const LoadRead& read = plan.reads[k];
      round.part_bytes = std::max<size_t>(round.part_bytes, ceil_block(read.end) - floor_block(read.begin));
    }
    rounds.push_back(round);
  }
  return rounds;
}

struct FreeMemory {
  void operator()(char* memory) const { std::free(memory); }
};
using AlignedMemory = std::unique_ptr<char, FreeMemory>;

AlignedMemory aligned_memory(size_t bytes) {
  auto* memory = static_cast<char*>(std::aligned_alloc(kBlock, ceil_block(std::max<size_t>(bytes, 1))));
  if (memory == nullptr) throw std::bad_alloc();
  return AlignedMemory(memory);
}

/// Threads that fill the own part of each round, at most as many rounds ahead as there are slots.
class ReadAhead {
 public:
  using Fill = std::function<void(size_t round, char* memory)>;

  ReadAhead(const std::vector<Round>& rounds, size_t share, size_t num_threads, Fill fill)
      : fill_(std::move(fill)), num_rounds_(rounds.size()), slots_(std::min(rounds.size(), num_threads + 2)) {
    size_t most = 0;
    for (const Round& round : rounds) most = std::max(most, round.part_bytes * share);
    for (Slot& slot : slots_) slot.memory = aligned_memory(most);
    for (size_t i = 0; i < std::min(num_threads, slots_.size()); ++i) threads_.emplace_back([this] { run(); });
  }
  ~ReadAhead() {
    {
      const std::lock_guard lock(mutex_);
      stopped_ = true;
    }
    changed_.notify_all();
    for (auto& thread : threads_) thread.join();
  }
  ReadAhead(const ReadAhead&) = delete;
  ReadAhead& operator=(const ReadAhead&) = delete;

  struct Filled {
    char* memory;
    std::exception_ptr error;
  };
  /// Waits for the next round. The memory is the caller's until release().
  Filled next() {
    Slot& slot = slots_[consumed_ % slots_.size()];
    std::unique_lock lock(mutex_);
    changed_.wait(lock, [&] { return slot.round == consumed_ && slot.filled; });
    return {slot.memory.get(), slot.error};
  }
  void release() {
    {
      const std::lock_guard lock(mutex_);
      slots_[consumed_ % slots_.size()].filled = false;
      ++consumed_;
    }
    changed_.notify_all();
  }

 private:
  struct Slot {
    AlignedMemory memory = {};
    size_t round = 0;
    bool filled = false;
    std::exception_ptr error = {};
  };

  void run() {
    for (;;) {
      size_t round = 0;
      {
        std::unique_lock lock(mutex_);
        changed_.wait(lock,
                      [&] { return stopped_ || started_ >= num_rounds_ || started_ < consumed_ + slots_.size(); });
        if (stopped_ || started_ >= num_rounds_) return;
        round = started_++;
      }
      Slot& slot = slots_[round % slots_.size()];
      std::exception_ptr error;
      try {
        fill_(round, slot.memory.get());
      } catch (...) {
        error = std::current_exception();
      }
      {
        const std::lock_guard lock(mutex_);
        slot.round = round;
        slot.filled = true;
        slot.error = error;
      }
      changed_.notify_all();
    }
  }

  Fill fill_;
  size_t num_rounds_;
  std::vector<Slot> slots_;
  std::mutex mutex_;
  std::condition_variable changed_;
  size_t started_ = 0, consumed_ = 0;
  bool stopped_ = false;
  std::vector<std::thread> threads_;
};

/// Hashes pieces whose bytes come in order, part after part.
class PieceHashes {
 public:
  PieceHashes(const Manifest& manifest, const BulkReadOptions& options, BulkReport& report)
      : manifest_(manifest), options_(options), report_(report) {}

  void add(const LoadRead& read, const char* bytes) {
    if (!options_.verify) return;
    for (const LoadCopy& copy : read.copies) {
      const auto [found, is_new] = open_.try_emplace({copy.tensor, copy.piece});
      if (is_new) begin(copy, found->second);
      if (found->second.is_mine) feed(copy, read, bytes, found->second);
    }
  }

 private:
  struct Key {
    size_t tensor, piece;
    bool operator==(const Key&) const = default;
  };
  struct KeyHash {
    size_t operator()(const Key& key) const noexcept { return key.tensor * 1'000'003 + key.piece; }
  };
  struct State {
    std::unique_ptr<core::Xxh128Stream> hash = {};
    uint64_t next = 0, end = 0;
    bool is_mine = false;
  };

  void begin(const LoadCopy& copy, State& state) {
    const ManifestTensor& tensor = manifest_.tensors[copy.tensor];
    const ManifestPiece& piece = tensor.pieces[copy.piece];
    state.is_mine = (copy.tensor + copy.piece) % static_cast<size_t>(options_.share.count) ==
                    static_cast<size_t>(options_.share.index);
    state.next = piece.position;
    state.end = piece.position + static_cast<uint64_t>(numel_of(piece.box)) * element_bytes(tensor.info.dtype);
  }

  void feed(const LoadCopy& copy, const LoadRead& read, const char* bytes, State& state) {
    const uint64_t end = std::min(read.end, state.end);
    if (state.next >= end) return;
    if (read.begin > state.next) {  // a hole: the piece is not read whole
      state.is_mine = false;
      state.hash = nullptr;
      return;
    }
    const ManifestPiece& piece = manifest_.tensors[copy.tensor].pieces[copy.piece];
    const char* from = bytes + (state.next - read.begin);
    if (state.next == piece.position && end == state.end) {
      finish(copy, core::xxh3_128(from, end - state.next));
    } else {
      if (state.hash == nullptr) state.hash = std::make_unique<core::Xxh128Stream>();
      state.hash->update(from, end - state.next);
      if (end == state.end) finish(copy, std::exchange(state.hash, nullptr)->value());
    }
    state.next = end;
  }

  void finish(const LoadCopy& copy, const core::Xxh128& hash) {
    const ManifestTensor& tensor = manifest_.tensors[copy.tensor];
    const ManifestPiece& piece = tensor.pieces[copy.piece];
    ++report_.pieces_verified;
    if (hash == piece.xxh3) return;
    report_.damaged.push_back(text(manifest_.files[piece.file].name, ": tensor '", tensor.info.name, "' ",
                                   describe(piece.box), " has the hash ", hash.hex(), ", expected ", piece.xxh3.hex()));
  }

  const Manifest& manifest_;
  const BulkReadOptions& options_;
  BulkReport& report_;
  std::unordered_map<Key, State, KeyHash> open_;
};

/// A run of read_boxes.
class BulkRead {
 public:
  BulkRead(const Manifest& manifest, const std::string& folder, const std::vector<BulkTarget>& targets,
           const BulkReadOptions& options)
      : manifest_(manifest),
        folder_(folder),
        targets_(targets),
        options_(options),
        hashes_(manifest, options_, report_) {
    cut();
    plan_ = plan_load(manifest, wants_);
    rounds_ = rounds_of(plan_, static_cast<size_t>(options.share.count));
    files_.resize(manifest.files.size());
    open_files();
  }

  BulkReport run() {
    std::exception_ptr error = open_error_;
    if (!rounds_.empty()) {
      const auto share = static_cast<size_t>(options_.share.count);
      ReadAhead ahead(rounds_, share, options_.num_threads,
                      [this](size_t round, char* memory) { fill(round, memory); });
      for (const Round& round : rounds_) {
        const auto filled = ahead.next();
        if (filled.error && !error) error = filled.error;
        if (share > 1) options_.share.gather(filled.memory, round.part_bytes);
        if (!error) consume(round, filled.memory);
        ahead.release();
      }
    }
    if (error) std::rethrow_exception(error);
    return std::move(report_);
  }

 private:
  void cut() {
    std::unordered_map<std::string_view, const ManifestTensor*> known;
    for (const ManifestTensor& tensor : manifest_.tensors) known.emplace(tensor.info.name, &tensor);
    open_parts_.resize(targets_.size());
    memory_.resize(targets_.size());
    std::vector<Box> parts;
    for (size_t t = 0; t < targets_.size(); ++t) {
      const WantedBox& want = targets_[t].want;
      const auto found = known.find(want.name);
      parts.clear();
      const bool is_plain = found != known.end() && fits(want.box, found->second->info.shape);
      if (is_plain && numel_of(want.box) == 0) {
        complete_empty(t);
        continue;
      }
      const uint64_t item = is_plain ? element_bytes(found->second->info.dtype) : 1;
      if (is_plain) {
        cut_box(found->second->info.shape, want.box, item, parts);
      } else {
        parts.push_back(want.box);  // plan_load reports the mistake
      }
      uint64_t offset = 0;
      for (Box& part : parts) {
        const uint64_t bytes = static_cast<uint64_t>(numel_of(part)) * item;
        wants_.push_back({want.name, std::move(part)});
        owners_.push_back({t, offset, bytes});
        offset += bytes;
      }
      open_parts_[t] = offset;
    }
  }

  void complete_empty(size_t target) {
    targets_[target].begin();
    if (targets_[target].end) targets_[target].end();
  }

  void open_files() {
    try {
      for (const LoadRead& read : plan_.reads) {
        if (files_[read.file] != nullptr) continue;
        const ManifestFile& file = manifest_.files[read.file];
        files_[read.file] =
            std::make_unique<ColdFile>((std::filesystem::path(folder_) / file.name).string(), file.bytes);
      }
    } catch (const std::exception&) {
      open_error_ = std::current_exception();
    }
  }

  void fill(size_t number, char* memory) {
    const Round& round = rounds_[number];
    const auto index = static_cast<size_t>(options_.share.index);
    if (index >= round.count || open_error_) return;
    const LoadRead& read = plan_.reads[round.first + index];
    const bool direct = files_[read.file]->read(read.begin, read.end, memory + index * round.part_bytes);
    bytes_read_ += read.end - read.begin;
    if (direct) bytes_direct_ += read.end - read.begin;
  }

  void consume(const Round& round, const char* memory) {
    for (size_t k = 0; k < round.count; ++k) {
      const LoadRead& read = plan_.reads[round.first + k];
      const char* bytes = memory + k * round.part_bytes + read.begin % kBlock;
      hashes_.add(read, bytes);
      for (const LoadCopy& copy : read.copies) prepare(copy.want);
      copy_read(manifest_, wants_, read, bytes, addresses_);
      for (const LoadCopy& copy : read.copies) finish(copy);
    }
    report_.bytes_read = bytes_read_;
    report_.bytes_direct = bytes_direct_;
  }

  void prepare(size_t want) {
    const Owner& owner = owners_[want];
    if (memory_[owner.target] == nullptr) memory_[owner.target] = static_cast<char*>(targets_[owner.target].begin());
    if (addresses_.size() < wants_.size()) addresses_.resize(wants_.size());
    addresses_[want] = memory_[owner.target] + owner.offset;
  }

  // A part may come from several pieces: elements are counted.
  void finish(const LoadCopy& copy) {
    const ManifestTensor& tensor = manifest_.tensors[copy.tensor];
    const auto common = intersection(tensor.pieces[copy.piece].box, wants_[copy.want].box);
    const size_t target = owners_[copy.want].target;
    open_parts_[target] -= static_cast<uint64_t>(numel_of(*common)) * element_bytes(tensor.info.dtype);
    if (open_parts_[target] == 0 && targets_[target].end) targets_[target].end();
  }

  struct Owner {
    size_t target;
    uint64_t offset, bytes;
  };

  const Manifest& manifest_;
  const std::string& folder_;
  const std::vector<BulkTarget>& targets_;
  const BulkReadOptions options_;
  BulkReport report_;
  PieceHashes hashes_;
  std::vector<WantedBox> wants_;
  std::vector<Owner> owners_;
  std::vector<uint64_t> open_parts_;  // bytes that a target still lacks
  std::vector<char*> memory_;
  std::vector<void*> addresses_;
  LoadPlan plan_;
  std::vector<Round> rounds_;
  std::vector<std::unique_ptr<ColdFile>> files_;
  std::exception_ptr open_error_;
  std::atomic<uint64_t> bytes_read_ = 0, bytes_direct_ = 0;
};

}  // namespace

BulkReport read_boxes(const Manifest& manifest, const std::string& folder, const std::vector<BulkTarget>& targets,
                      const BulkReadOptions& options) {
  return BulkRead(manifest, folder, targets, options).run();
}

Manifest manifest_of_source(const TensorSource& source, std::vector<std::string>& left_out) {
  Manifest manifest;
  std::unordered_map<std::string, size_t> files;
  for (const std::string& name : source.names()) {
    const TensorInfo& info = source.info(name);
    const auto location = source.location(name);
    if (!location || location->strides != contiguous_strides(info.shape)) {
      left_out.push_back(name);
      continue;
    }
    const auto [file, is_new] = files.emplace(location->path, manifest.files.size());
    if (is_new)
      manifest.files.push_back(
          {std::filesystem::absolute(location->path).string(), PosixFile::open_to_read(location->path).size(), {}});
    manifest.tensors.push_back(
        {.info = info, .kind = "model", .pieces = {{file->second, whole_box(info.shape), {}, location->offset}}});
  }
  return manifest;
}

}  // namespace hasten::files
