// See tile_file.h.
#include "hasten/offload/units/tile_file.h"

#include <fcntl.h>
#include <sys/mman.h>
#include <sys/statvfs.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <condition_variable>
#include <cstdlib>
#include <cstring>
#include <deque>
#include <filesystem>
#include <functional>
#include <mutex>
#include <optional>
#include <system_error>
#include <thread>
#include <utility>
#include <vector>

#include "hasten/core/error.h"
#include "hasten/core/text.h"

namespace hasten::offload {
namespace {

constexpr int64_t kPage = 4096;
const Origin kTiles{"offload"};

int64_t pages(int64_t bytes) {
  return (bytes + kPage - 1) / kPage * kPage;
}

std::string error_words(int code) {
  return std::system_category().message(code);
}

/// The last page of a tile.
struct Trailer {
  uint64_t magic = 0;
  uint64_t tile = 0;
  uint64_t writing = 0;
};
constexpr uint64_t kMagic = 0x68'61'73'74'65'6e'74'6c;

}  // namespace

namespace detail {

/// A descriptor past the page cache, and, if a request fails with EINVAL, a second one through it.
class TileDisk {
 public:
  explicit TileDisk(const std::string& folder, const void* owner) : folder_(folder) {
    std::error_code error;
    std::filesystem::create_directories(folder, error);
    const std::string path = (std::filesystem::path(folder) / text("hasten-state-", getpid(), '-', owner)).string();
    file_ = ::open(path.c_str(), O_RDWR | O_CREAT | O_EXCL | O_CLOEXEC, 0600);
    const int code = errno;
    if (file_ < 0) {
      throw DataError(kTiles, folder, "no file can be made in the folder '", folder,
                      "' for offloaded state: ", error ? error.message() : error_words(code),
                      ". Choose one that can be written to.");
    }
    direct_ = ::open(path.c_str(), O_RDWR | O_DIRECT | O_CLOEXEC);
    unlink(path.c_str());
  }
  ~TileDisk() {
    if (direct_ >= 0) ::close(direct_);
    if (file_ >= 0) ::close(file_);
  }
  TileDisk(const TileDisk&) = delete;
  TileDisk& operator=(const TileDisk&) = delete;

  bool is_direct() const noexcept { return direct_ >= 0; }
  int file() const noexcept { return file_; }
  const std::string& folder() const noexcept { return folder_; }

  // 0, or the error's number; a file that ends too early is EIO.
  int transfer(bool writes, std::byte* memory, int64_t bytes, int64_t offset) const {
    int file = direct_ >= 0 ? direct_ : file_;
    while (bytes > 0) {
      const auto count = static_cast<size_t>(bytes);
      const ssize_t done = writes ? pwrite(file, memory, count, offset) : pread(file, memory, count, offset);
      if (done < 0 && errno == EINTR) continue;
      if (done < 0 && errno == EINVAL && file == direct_) {
        file = file_;
        continue;
      }
      if (done < 0) return errno;
      if (done == 0) return EIO;
      memory += done;
      bytes -= done;
      offset += done;
      // The rest of a short transfer may not be aligned.
      if (done % kPage != 0) file = file_;
    }
    return 0;
  }

 private:
  std::string folder_;
  int file_ = -1, direct_ = -1;
};

struct FreeMemory {
  void operator()(std::byte* memory) const { std::free(memory); }
};

}  // namespace detail

struct TileFile::Impl {
  enum class State { kFree, kReading, kReady, kOpen, kWriting };
  struct Buffer {
    std::unique_ptr<std::byte, detail::FreeMemory> memory = {};
    int64_t capacity = 0;
    State state = State::kFree;
    size_t tile = 0;
    int64_t blocks_left = 0;
    int error = 0;
  };
  struct Tile {
    int64_t offset = 0, bytes = 0;
    uint64_t writings = 0;
    bool torn = false, used = true;
  };
  struct Block {
    size_t buffer = 0;
    bool writes = false;
    std::byte* memory = nullptr;
    int64_t bytes = 0, offset = 0;
  };

  Impl(const std::string& folder, const TileFileOptions& given)
      : options(given), disk(folder, this), buffers(static_cast<size_t>(given.num_buffers)) {
    const int count = std::clamp(options.queue_depth, 1, 16);
    for (int i = 0; i < count; ++i) threads.emplace_back([this] { run(); });
  }
  ~Impl() {
    // Threads end once the queue is empty.
    {
      const std::lock_guard lock(mutex);
      ending = true;
    }
    changed.notify_all();
    for (auto& thread : threads) thread.join();
  }

  void run() {
    std::unique_lock lock(mutex);
    while (true) {
      changed.wait(lock, [this] { return ending || !blocks.empty(); });
      if (blocks.empty()) return;
      const Block block = blocks.front();
      blocks.pop_front();
      ++num_running;
      lock.unlock();
      const int error = disk.transfer(block.writes, block.memory, block.bytes, block.offset);
      lock.lock();
      --num_running;
      auto& buffer = buffers[block.buffer];
      if (error != 0) buffer.error = error;
      if (--buffer.blocks_left == 0) end_transfer(buffer);
      changed.notify_all();
    }
  }

  void end_transfer(Buffer& buffer) {
    if (buffer.state == State::kReading) {
      buffer.state = State::kReady;
      return;
    }
    if (buffer.error != 0) {
      tiles[buffer.tile].torn = true;
      if (write_error == 0) write_error = buffer.error;
    }
    buffer.state = State::kFree;
    fetch_wanted();
  }

  // Reads the tile that waits longest for a buffer.
  void fetch_wanted() {
    const auto free = any_free();
    if (!free || requested.empty()) return;
    const size_t tile = requested.front();
    requested.pop_front();
    if (with(tile)) return;
    try {
      take(*free, tile);
    } catch (const std::bad_alloc&) {
      return;  // open() reports it
    }
    start(*free, false);
  }

  void forget_wanted(size_t tile) { std::erase(requested, tile); }

  void start(size_t index, bool writes) {
    auto& buffer = buffers[index];
    const Tile& tile = tiles[buffer.tile];
    buffer.state = writes ? State::kWriting : State::kReading;
    buffer.error = 0;
    const int64_t total = pages(tile.bytes) + kPage, step = pages(options.block_bytes);
    // The last block takes a small rest along, as the trailer's page.
    const int64_t count = std::max<int64_t>(1, (total + step / 2) / step);
    buffer.blocks_left = count;
    for (int64_t i = 0; i < count; ++i) {
      const int64_t begin = i * step, end = i + 1 < count ? begin + step : total;
      blocks.push_back({index, writes, buffer.memory.get() + begin, end - begin, tile.offset + begin});
    }
    changed.notify_all();
  }

  std::optional<size_t> with(size_t tile) const {
    for (size_t i = 0; i < buffers.size(); ++i) {
      const auto& buffer = buffers[i];
      if (buffer.tile == tile && buffer.state != State::kFree) return i;
    }
    return std::nullopt;
  }

  std::optional<size_t> any_free() const {
    for (size_t i = 0; i < buffers.size(); ++i) {
      if (buffers[i].state == State::kFree) return i;
    }
    return std::nullopt;
  }

  void take(size_t index, size_t tile) {
    auto& buffer = buffers[index];
    const int64_t needed = pages(tiles[tile].bytes) + kPage;
    if (buffer.capacity < needed) {
      buffer.memory.reset(
          static_cast<std::byte*>(std::aligned_alloc(static_cast<size_t>(kPage), static_cast<size_t>(needed))));
      buffer.capacity = buffer.memory ? needed : 0;
      if (!buffer.memory) throw std::bad_alloc();
    }
    buffer.tile = tile;
    buffer.error = 0;
  }

  // A buffer for the tile: its own once it is written, else a free one, else one that was read ahead in vain.
  size_t claim(std::unique_lock<std::mutex>& lock, size_t tile) {
    while (true) {
      const auto own = with(tile);
      if (own && buffers[*own].state != State::kWriting) return *own;
      if (!own) {
        if (const auto free = any_free()) return *free;
        for (size_t i = 0; i < buffers.size(); ++i) {
          if (buffers[i].state == State::kReady) {
            buffers[i].state = State::kFree;
            return i;
          }
        }
        const bool all_open =
            std::all_of(buffers.begin(), buffers.end(), [](const Buffer& each) { return each.state == State::kOpen; });
        if (all_open) throw UsageError(kTiles, "all ", buffers.size(), " buffers of tiles are open. Close one first.");
      }
      changed.wait(lock);
    }
  }

  TileFileOptions options;
  detail::TileDisk disk;
  std::mutex mutex;
  std::condition_variable changed;
  std::vector<Buffer> buffers;
  std::vector<Tile> tiles;
  std::deque<Block> blocks;
  /// Tiles that fetch() found no buffer for.
  std::deque<size_t> requested;
  int num_running = 0, write_error = 0;
  bool ending = false;
  int64_t end = 0;
  std::vector<std::thread> threads;
};

TileFile::TileFile(const std::string& folder, const TileFileOptions& options) {
  if (options.block_bytes < 1 || options.queue_depth < 1 || options.num_buffers < 2) {
    throw UsageError(kTiles, "tiles with blocks of ", options.block_bytes, " bytes, ", options.queue_depth,
                     " requests and ", options.num_buffers, " buffers; expected at least 1, 1 and 2.");
  }
  impl_ = std::make_unique<Impl>(folder, options);
}

TileFile::~TileFile() = default;

int64_t TileFile::available_bytes() const {
  struct statvfs facts {};
  if (fstatvfs(impl_->disk.file(), &facts) != 0) return 0;
  return static_cast<int64_t>(facts.f_bavail) * static_cast<int64_t>(facts.f_frsize);
}

size_t TileFile::add(int64_t num_bytes) {
  const std::lock_guard lock(impl_->mutex);
  auto& tiles = impl_->tiles;
  const auto same = std::find_if(tiles.begin(), tiles.end(),
                                 [&](const auto& tile) { return !tile.used && pages(tile.bytes) == pages(num_bytes); });
  if (same != tiles.end()) {
    *same = {.offset = same->offset, .bytes = num_bytes};
    return static_cast<size_t>(same - tiles.begin());
  }
  const int64_t total = pages(num_bytes) + kPage;
  if (const int error = posix_fallocate(impl_->disk.file(), impl_->end, total); error != 0) {
    throw DataError(kTiles, impl_->disk.folder(), "the folder '", impl_->disk.folder(), "' has no space for ", total,
                    " bytes of offloaded state beside ", impl_->end, " that are there (", available_bytes(),
                    " are free): ", error_words(error), ". Choose another folder, or free space.");
  }
  tiles.push_back({.offset = impl_->end, .bytes = num_bytes});
  impl_->end += total;
  return tiles.size() - 1;
}

void TileFile::remove(size_t tile) {
  const std::lock_guard lock(impl_->mutex);
  impl_->tiles.at(tile).used = false;
  impl_->forget_wanted(tile);
}

int64_t TileFile::tile_bytes(size_t tile) const {
  return impl_->tiles.at(tile).bytes;
}

void TileFile::fetch(size_t tile) {
  const std::lock_guard lock(impl_->mutex);
  if (impl_->with(tile)) return;
  impl_->forget_wanted(tile);
  impl_->requested.push_back(tile);
  impl_->fetch_wanted();
}

std::byte* TileFile::open_empty(size_t tile) {
  std::unique_lock lock(impl_->mutex);
  impl_->forget_wanted(tile);
  const size_t index = impl_->claim(lock, tile);
  impl_->changed.wait(lock, [&] { return impl_->buffers[index].state != Impl::State::kReading; });
  impl_->take(index, tile);
  impl_->buffers[index].state = Impl::State::kOpen;
  return impl_->buffers[index].memory.get();
}

std::byte* TileFile::open(size_t tile) {
  std::unique_lock lock(impl_->mutex);
  const size_t index = impl_->claim(lock, tile);
  impl_->forget_wanted(tile);
  auto& buffer = impl_->buffers[index];
  if (buffer.state == Impl::State::kFree) {
    impl_->take(index, tile);
    impl_->start(index, false);
  }
  impl_->changed.wait(lock, [&] { return buffer.state != Impl::State::kReading; });
  const auto& of = impl_->tiles.at(tile);
  Trailer trailer;
  std::memcpy(&trailer, buffer.memory.get() + pages(of.bytes), sizeof(trailer));
  const bool matches =
      of.writings == 0 || (trailer.magic == kMagic && trailer.tile == tile && trailer.writing == of.writings);
  if (buffer.error != 0 || of.torn || !matches) {
    buffer.state = Impl::State::kFree;
    throw DataError(kTiles, impl_->disk.folder(), "tile ", tile, " of the offloaded state in '", impl_->disk.folder(),
                    "' ",
                    buffer.error != 0 ? "cannot be read: " + error_words(buffer.error)
                                      : text("is of writing ", trailer.writing, ", not of the last one, ", of.writings),
                    ". Go on from a checkpoint.");
  }
  buffer.state = Impl::State::kOpen;
  return buffer.memory.get();
}

void TileFile::close(size_t tile) {
  const std::lock_guard lock(impl_->mutex);
  const auto index = impl_->with(tile);
  if (!index) return;
  auto& buffer = impl_->buffers[*index];
  auto& of = impl_->tiles[tile];
  const Trailer trailer{kMagic, tile, ++of.writings};
  std::byte* const last = buffer.memory.get() + pages(of.bytes);
  std::memset(last, 0, static_cast<size_t>(kPage));
  std::memcpy(last, &trailer, sizeof(trailer));
  impl_->start(*index, true);
}

void TileFile::flush() {
  std::unique_lock lock(impl_->mutex);
  impl_->changed.wait(lock, [this] {
    return std::none_of(impl_->buffers.begin(), impl_->buffers.end(),
                        [](const auto& buffer) { return buffer.state == Impl::State::kWriting; });
  });
  if (const int error = std::exchange(impl_->write_error, 0); error != 0) {
    throw DataError(kTiles, impl_->disk.folder(), "offloaded state could not be written in '", impl_->disk.folder(),
                    "': ", error_words(error), ". Go on from a checkpoint, with a folder that has space.");
  }
}

std::shared_ptr<const std::byte> TileFile::map(size_t tile) const {
  const auto& of = impl_->tiles.at(tile);
  const auto size = static_cast<size_t>(pages(std::max<int64_t>(1, of.bytes)));
  void* const memory = mmap(nullptr, size, PROT_READ | PROT_WRITE, MAP_SHARED, impl_->disk.file(), of.offset);
  if (memory == MAP_FAILED) {
    throw DataError(kTiles, impl_->disk.folder(), "offloaded state in '", impl_->disk.folder(),
                    "' cannot be mapped: ", error_words(errno), '.');
  }
  return {static_cast<const std::byte*>(memory),
          [size](const std::byte* begin) { munmap(const_cast<std::byte*>(begin), size); }};
}

std::string TileFile::describe() const {
  return text(
      impl_->threads.size(), " threads, ",
      impl_->disk.is_direct() ? "past the page cache (O_DIRECT)" : "through the page cache (no O_DIRECT there)");
}

int64_t TileFile::num_bytes() const noexcept {
  return impl_->end;
}

}  // namespace hasten::offload
