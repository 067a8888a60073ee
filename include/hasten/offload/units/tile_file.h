// TileFile: tiles of bytes that rest in one file and are in memory only while they are in use (ZeRO-Infinity's
// optimizer state).
//
// Threads read a tile into a buffer ahead of its use and write it behind its use. They have several requests under way.
// If the file system allows it, they pass the page cache (O_DIRECT). Memory is num_buffers tiles, however many there
// are. Each tile carries the number of its last writing, so that one whose writing has failed is noticed. The file has
// no name once it is made, so none is left behind.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <string>

namespace hasten::offload {

struct TileFileOptions {
  /// Bytes of one request, and requests on their way at a time.
  int64_t block_bytes = int64_t{1} << 20;
  int queue_depth = 8;
  /// At least 2.
  int num_buffers = 3;
};

class TileFile {
 public:
  /// A file in `folder`, which is made if it is missing.
  /// Throws: DataError naming the folder if no file can be made there; UsageError for
  /// options out of range.
  explicit TileFile(const std::string& folder, const TileFileOptions& options = {});
  /// Waits for what is being written.
  ~TileFile();
  TileFile(const TileFile&) = delete;
  TileFile& operator=(const TileFile&) = delete;

  /// Bytes by which the file may still grow, from the file system.
  int64_t available_bytes() const;
  /// Returns a new tile of `num_bytes` zeros, whose space is reserved.
  /// Throws: DataError with the bytes needed and available where there is no space.
  size_t add(int64_t num_bytes);
  /// The tile's space may be taken by others of its size.
  void remove(size_t tile);
  int64_t tile_bytes(size_t tile) const;

  /// Starts to read a tile as soon as a buffer is free, unless it is opened before.
  void fetch(size_t tile);
  /// Returns the tile in memory, for reading and writing until close().
  /// Blocks: until it is read. Throws: DataError for a tile that cannot be read, or whose last writing
  /// has failed; UsageError if all buffers are open.
  std::byte* open(size_t tile);
  /// Returns the same without reading: contents are anything.
  std::byte* open_empty(size_t tile);
  /// Starts to write what open() gave. Throws: nothing; the next call gets the error.
  void close(size_t tile);
  /// Waits for all writing. Blocks: until then. Throws: DataError for what could not be written.
  void flush();

  /// Returns a mapping of a tile's bytes, to read them between their uses; it may outlive this object. After flush().
  /// Throws: DataError.
  std::shared_ptr<const std::byte> map(size_t tile) const;

  /// Returns the path of the bytes: "8 threads, past the page cache (O_DIRECT)".
  std::string describe() const;
  int64_t num_bytes() const noexcept;

 private:
  struct Impl;
  std::unique_ptr<Impl> impl_;
};

}  // namespace hasten::offload
